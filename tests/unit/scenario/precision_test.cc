#include "scenario/precision.h"

#include <fmt/format.h>

#include "scenario_text.h"
#include "support/catch.h"

namespace hpsim {
namespace {

constexpr DType kF64 = DType::Float64;
constexpr DType kF32 = DType::Float32;
constexpr DType kBF16 = DType::BFloat16;
constexpr DType kF16 = DType::Float16;

std::string policy(std::string_view members, std::string_view more = "") {
  return fmt::format(R"("fully_shard": {{"mp_policy": {{{}}}}}{})", members, more);
}

TEST_CASE("a scenario has one dtype unless it says otherwise") {
  const Scenario scenario = parsed(chain_with(""));
  const MixedPrecision& mixed = scenario.fully_shard.mp_policy;
  CHECK_FALSE(mixed.param_dtype);
  CHECK_FALSE(mixed.reduce_dtype);
  CHECK_FALSE(mixed.output_dtype);
  CHECK(mixed.cast_forward_inputs);
  CHECK(scenario.numerics.parameter_dtypes.empty());
  CHECK(carrier_dtype(scenario) == kF32);
  CHECK_FALSE(is_emulated(scenario));
  CHECK(loss_dtype(scenario) == kF32);
}

TEST_CASE("the run may have a dtype of 16 bits, also in exact mode") {
  for (const char* mode : {"derived", "exact"}) {
    const Scenario elementwise = parsed(
        minimal_with(fmt::format(R"("numerics": {{"dtype": "bfloat16", "mode": "{}"}})", mode)));
    CHECK(elementwise.numerics.dtype == kBF16);
    CHECK(input_dtype(elementwise) == kBF16);
    CHECK(loss_dtype(elementwise) == kF32);
    CHECK(carrier_dtype(elementwise) == kF32);
    CHECK(is_emulated(elementwise));
  }
  CHECK(parsed(chain_with(R"("numerics": {"dtype": "float16"})")).numerics.dtype == kF16);
  CHECK_FALSE(is_emulated(parsed(chain_with(R"("numerics": {"dtype": "float64"})"))));
  CHECK(loss_dtype(parsed(chain_with(R"("numerics": {"dtype": "float64"})"))) == kF64);
}

TEST_CASE("parameters may have dtypes of their own") {
  const Scenario scenario = parsed(minimal_with(
      R"("numerics": {"parameter_dtypes": {"w*": "bfloat16", "weight": "bfloat16"}})"));
  CHECK(scenario.numerics.parameter_dtypes == std::vector<DType>{kBF16});
  CHECK(parameter_dtype(scenario, 0) == kBF16);
  CHECK(compute_dtype(scenario, 0) == kBF16);
  CHECK(input_dtype(scenario) == kF32);
  // All have that of the run: nothing is said.
  CHECK(parsed(minimal_with(R"("numerics": {"parameter_dtypes": {"*": "float32"}})"))
            .numerics.parameter_dtypes.empty());
  CHECK(parsed(minimal_with(R"("numerics": {"parameter_dtypes": {}})"))
            .numerics.parameter_dtypes.empty());
  const Scenario wide =
      parsed(minimal_with(R"("numerics": {"parameter_dtypes": {"*": "float64"}})"));
  CHECK(carrier_dtype(wide) == kF64);
  CHECK(is_emulated(wide));
  CHECK(loss_dtype(wide) == kF32);
}

TEST_CASE("parameters with two dtypes, or none of that name, are refused where that stands") {
  const auto twice = diagnostics_of(
      chain_with(R"("numerics": {"parameter_dtypes": {"l0.*": "bfloat16", "*.bias": "float16"}})"));
  REQUIRE(twice.size() == 1);
  CHECK(twice[0].pointer == "/numerics/parameter_dtypes/*.bias");
  CHECK(twice[0].message ==
        "\"l0.bias\" is float16 here, but bfloat16 at /numerics/parameter_dtypes/l0.*");
  CHECK(messages_of(chain_with(R"("numerics": {"parameter_dtypes": {"l2.*": "bfloat16"}})")) ==
        "\"l2.*\" matches no parameter\n");
}

TEST_CASE("dtypes of mp_policy that change nothing are left out") {
  const auto mixed = [](std::string_view members, std::string_view more = "") {
    return parsed(minimal_with(policy(members, more))).fully_shard.mp_policy;
  };
  CHECK(mixed(R"("param_dtype": "bfloat16")").param_dtype == kBF16);
  CHECK_FALSE(mixed(R"("param_dtype": "float32")").param_dtype);
  CHECK_FALSE(mixed(R"("param_dtype": null)").param_dtype);
  CHECK_FALSE(mixed(R"("reduce_dtype": "float32")").reduce_dtype);
  CHECK(mixed(R"("reduce_dtype": "bfloat16")").reduce_dtype == kBF16);
  CHECK_FALSE(mixed(R"("param_dtype": "bfloat16", "reduce_dtype": "bfloat16")").reduce_dtype);
  CHECK(mixed(R"("param_dtype": "bfloat16", "reduce_dtype": "float32")").reduce_dtype == kF32);
  CHECK(mixed(R"("output_dtype": "float32")").output_dtype == kF32);
  CHECK_FALSE(mixed(R"("cast_forward_inputs": false)").cast_forward_inputs);
  // All parameters are bfloat16: only the input is cast.
  const char* const own = R"(, "numerics": {"parameter_dtypes": {"*": "bfloat16"}})";
  CHECK(mixed(R"("param_dtype": "bfloat16")", own).param_dtype == kBF16);
  CHECK_FALSE(mixed(R"("param_dtype": "bfloat16", "cast_forward_inputs": false)", own).param_dtype);
  CHECK_FALSE(mixed(R"("reduce_dtype": "bfloat16")", own).reduce_dtype);
  CHECK(mixed(R"("reduce_dtype": "float32")", own).reduce_dtype == kF32);
  // What units give is float32, and units cast it again.
  const char* const run = R"(, "numerics": {"dtype": "bfloat16"})";
  CHECK_FALSE(mixed(R"("param_dtype": "bfloat16")", run).param_dtype);
  CHECK(mixed(R"("param_dtype": "bfloat16", "output_dtype": "float32")", run).param_dtype == kBF16);
}

TEST_CASE("parameters are gathered in param_dtype and reduced in reduce_dtype, unless ignored") {
  const Scenario scenario =
      parsed(minimal_with(policy(R"("param_dtype": "bfloat16", "reduce_dtype": "float64")", "")));
  CHECK(parameter_dtype(scenario, 0) == kF32);
  CHECK(compute_dtype(scenario, 0) == kBF16);
  CHECK(reduce_dtype(scenario, 0) == kF64);
  CHECK(carrier_dtype(scenario) == kF64);
  const Scenario ignored = parsed(minimal_with(
      R"("fully_shard": {"ignored_params": ["*"], "mp_policy": {"param_dtype": "bfloat16",)"
      R"("reduce_dtype": "float64"}})"));
  CHECK(compute_dtype(ignored, 0) == kF32);
  CHECK(reduce_dtype(ignored, 0) == kF32);
  const Scenario compute = parsed(minimal_with(policy(R"("param_dtype": "float16")")));
  CHECK(reduce_dtype(compute, 0) == kF16);
}

TEST_CASE("units cast what they take, and hand on output_dtype") {
  const Scenario cast = parsed(chain_with(policy(R"("param_dtype": "bfloat16")")));
  const std::vector<ModuleDTypes> plain = module_dtypes(cast);
  REQUIRE(plain.size() == 3);
  for (const ModuleDTypes& module : plain) {
    CHECK(module.inputs == std::vector<DType>{kBF16});
    CHECK(module.output == kBF16);
    CHECK(module.given == kBF16);
  }
  // l0 and l1 are units, a0 is none: it has no parameters.
  const std::vector<ModuleDTypes> given = module_dtypes(
      parsed(chain_with(policy(R"("param_dtype": "bfloat16", "output_dtype": "float32")"))));
  CHECK(given[0].inputs == std::vector<DType>{kBF16});
  CHECK(given[0].output == kBF16);
  CHECK(given[0].given == kF32);
  CHECK(given[1].inputs == std::vector<DType>{kF32});
  CHECK(given[1].output == kF32);
  CHECK(given[1].given == kF32);
  CHECK(given[2].inputs == std::vector<DType>{kBF16});
  CHECK(given[2].given == kF32);
}

TEST_CASE("without casts, a residual reads what comes") {
  const char* const text =
      R"({"hpsim": 1, "mesh": {"shape": [4], "mesh_dim_names": ["fsdp"]}, "model": [)"
      R"({"name": "r", "type": "residual", "modules": [)"
      R"({"name": "l", "type": "linear", "in_features": 8, "out_features": 8}]}],)"
      R"("data": {"sample_shape": [8]}, "numerics": {"dtype": "bfloat16"}, "fully_shard": {)"
      R"("mp_policy": {)"
      R"("cast_forward_inputs": false, "output_dtype": "float32"}}})";
  const std::vector<ModuleDTypes> dtypes = module_dtypes(parsed(text));
  REQUIRE(dtypes.size() == 2);
  CHECK(dtypes[0].given == kBF16);
  CHECK(dtypes[1].inputs == std::vector<DType>{kBF16, kBF16});
  CHECK(dtypes[1].output == kBF16);
  CHECK(dtypes[1].given == kF32);
}

TEST_CASE("tokens are never cast, and need float32") {
  const Scenario scenario =
      parsed(R"({"hpsim": 1, "mesh": {"shape": [4], "mesh_dim_names": ["fsdp"]}, "model": [)"
             R"({"name": "tok", "type": "embedding", "num_embeddings": 11, "embedding_dim": 8}],)"
             R"("data": {"sample_shape": [5]}, "numerics": {"dtype": "float16"},)"
             R"("fully_shard": {"mp_policy": {"param_dtype": "float16"}}})");
  CHECK_FALSE(scenario.fully_shard.mp_policy.param_dtype);
  CHECK(input_dtype(scenario) == kF32);
  const std::vector<ModuleDTypes> dtypes = module_dtypes(scenario);
  CHECK(dtypes[0].inputs == std::vector<DType>{kF32});
  CHECK(dtypes[0].output == kF16);
}

TEST_CASE("elementwise parameters multiply in the wider dtype") {
  const auto dtypes = [](const std::string& members) {
    return elementwise_dtypes(parsed(minimal_with(members)), 0);
  };
  const ElementwiseDTypes cast = dtypes(policy(R"("param_dtype": "bfloat16")"));
  CHECK(cast.input == kBF16);
  CHECK(cast.product == kBF16);
  CHECK(cast.given == kBF16);
  const ElementwiseDTypes uncast =
      dtypes(policy(R"("param_dtype": "bfloat16", "cast_forward_inputs": false)"));
  CHECK(uncast.input == kF32);
  CHECK(uncast.product == kF32);
  const ElementwiseDTypes given =
      dtypes(policy(R"("param_dtype": "bfloat16", "output_dtype": "float32")"));
  CHECK(given.product == kBF16);
  CHECK(given.given == kF32);
  const ElementwiseDTypes halves =
      dtypes(R"("numerics": {"dtype": "float16", "parameter_dtypes": {"*": "bfloat16"}})");
  CHECK(halves.input == kF16);
  CHECK(halves.product == kF32);
}

TEST_CASE("the wider of two dtypes; float32 holds both of 16 bits") {
  CHECK(promoted(kF16, kF16) == kF16);
  CHECK(promoted(kF16, kBF16) == kF32);
  CHECK(promoted(kBF16, kF32) == kF32);
  CHECK(promoted(kF64, kBF16) == kF64);
}

TEST_CASE("float16 is divided before the sum by the power of two that its table says") {
  const std::pair<double, double> table[] = {{1, 1},  {2, 2},  {3, 2},  {4, 2},  {6, 4},  {8, 4},
                                             {12, 4}, {16, 4}, {32, 8}, {64, 8}, {2.5, 1}};
  for (const auto& [divisor, factor] : table) {
    CAPTURE(divisor);
    CHECK(predivision(kF16, divisor) == 1 / factor);
    CHECK(predivision(kBF16, divisor) == 1);
    CHECK(predivision(kF32, divisor) == 1);
  }
}

/// Where and how the reader refuses operands of several dtypes; empty if it does not.
std::string refusal(const std::string& text) {
  try {
    static_cast<void>(parsed(text));
    return "";
  } catch (const Error& error) {
    REQUIRE(error.diagnostics().size() == 1);
    return error.diagnostics()[0].pointer + ": " + error.diagnostics()[0].message;
  }
}

TEST_CASE("modules whose operands have several dtypes are refused by name") {
  CHECK(refusal(chain_with(policy(R"("param_dtype": "bfloat16", "cast_forward_inputs": false)"))) ==
        "/model/0: linear \"l0\" computes in bfloat16, but reads float32; PyTorch refuses mixed "
        "operands");
  CHECK(refusal(chain_with(
            policy(R"("output_dtype": "float32")", R"(, "numerics": {"dtype": "float16"})"))) ==
        "/model/2: linear \"l1\" computes in float16, but reads float32; PyTorch refuses mixed "
        "operands");
  CHECK(refusal(chain_with(R"("numerics": {"parameter_dtypes": {"*.bias": "bfloat16"}})")) ==
        "/model/0: linear \"l0\" computes with \"l0.weight\" in float32, but with \"l0.bias\" in "
        "bfloat16 (1 other module too); PyTorch refuses mixed operands");
  // param_dtype gives all one dtype.
  CHECK(refusal(chain_with(policy(R"("param_dtype": "float16")",
                                  R"(, "numerics": {"parameter_dtypes": {"*.bias": "bfloat16"}})")))
            .empty());
  // What fully_shard ignores keeps its dtype, and reads what is cast.
  CHECK(refusal(
            chain_with(R"("fully_shard": {"ignored_params": ["l1.*"], "mp_policy": {"param_dtype":)"
                       R"("bfloat16"}})")) ==
        "/model/2: linear \"l1\" computes in float32, but reads bfloat16; PyTorch refuses mixed "
        "operands");
  CHECK(refusal(minimal_with(R"("numerics": {"parameter_dtypes": {"*": "bfloat16"}})")).empty());
}

TEST_CASE("inputs of one sum, or of attention, have one dtype") {
  const auto residual = [](std::string_view units) {
    return fmt::format(
        R"({{"hpsim": 1, "mesh": {{"shape": [4], "mesh_dim_names": ["fsdp"]}}, "model": [)"
        R"({{"name": "r", "type": "residual", "modules": [)"
        R"({{"name": "l", "type": "linear", "in_features": 8, "out_features": 8}}]}}],)"
        R"("data": {{"sample_shape": [8]}},)"
        R"("fully_shard": {{"units": {}, "mp_policy": {{"param_dtype": "bfloat16",)"
        R"("output_dtype": "float32"}}}}}})",
        units);
  };
  CHECK(refusal(residual(R"(["r"])")).empty());
  CHECK(refusal(residual(R"(["r.l"])")) ==
        "/model/0: add \"r.add\" takes float32 and bfloat16: its inputs must have one dtype");
}

}  // namespace
}  // namespace hpsim
