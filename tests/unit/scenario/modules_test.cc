#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "scenario/json_text.h"
#include "scenario_text.h"
#include "support/catch.h"

namespace hpsim {
namespace {

/// A scenario on 4 ranks of fsdp with this model, and other members.
std::string with_model(std::string_view modules, std::string_view members = "") {
  return fmt::format(
      R"({{"hpsim": 1, "mesh": {{"shape": [4], "mesh_dim_names": ["fsdp"]}}, "model": [{}]{}{}}})",
      modules, members.empty() ? "" : ", ", members);
}

constexpr const char* kVectors = R"("data": {"sample_shape": [8]})";
constexpr const char* kSequences = R"("data": {"sample_shape": [5, 8]})";
constexpr const char* kTokens = R"("data": {"sample_shape": [5]})";
constexpr const char* kLinear =
    R"({"name": "l", "type": "linear", "in_features": 8, "out_features": 8})";
constexpr const char* kEmbedding =
    R"({"name": "tok", "type": "embedding", "num_embeddings": 11, "embedding_dim": 8})";

/// One line per operation: `attn.core attention_core(1, 2, 3)`, with the activations it reads.
std::string operations(const ModelSpec& model) {
  std::string lines;
  for (int m = 0; m < static_cast<int>(model.modules.size()); ++m) {
    const ModuleSpec& module = model.modules[static_cast<std::size_t>(m)];
    lines += fmt::format("{} {}({})\n", module.name, name_of(module.type),
                         fmt::join(inputs_of(model, m), ", "));
  }
  return lines;
}

/// One line per group: `res residual [0, 3)`.
std::string groups(const ModelSpec& model) {
  std::string lines;
  for (const ModuleGroup& group : model.groups)
    lines +=
        fmt::format("{} {} [{}, {})\n", group.name, name_of(group.kind), group.first, group.end);
  return lines;
}

TEST_CASE("attention is four linears around its core") {
  const Scenario scenario = parsed(with_model(
      R"({"name": "attn", "type": "attention", "dim": 8, "heads": 4, "kv_heads": 2, "causal": false})",
      kSequences));
  const ModelSpec& model = scenario.model;
  CHECK(operations(model) ==
        "attn.wq linear(0)\n"
        "attn.wk linear(0)\n"
        "attn.wv linear(0)\n"
        "attn.core attention_core(1, 2, 3)\n"
        "attn.wo linear(4)\n");
  CHECK(groups(model) == "attn attention [0, 5)\n");
  CHECK(features_along(model) == std::vector<std::int64_t>{8, 8, 4, 4, 8, 8});
  CHECK(model.modules[3].heads == 4);
  CHECK(model.modules[3].kv_heads == 2);
  CHECK(model.modules[3].head_dim == 2);
  CHECK_FALSE(model.modules[3].causal);
  for (const int m : {0, 1, 2, 4})
    CHECK_FALSE(model.modules[static_cast<std::size_t>(m)].bias);

  const ModuleSpec core =
      parsed(with_model(R"({"type": "attention", "dim": 8, "heads": 2})", kSequences))
          .model.modules[3];
  CHECK(core.name == "0.core");
  CHECK(core.kv_heads == 2);
  CHECK(core.head_dim == 4);
  CHECK(core.causal);
}

TEST_CASE(
    "a gated mlp multiplies what two linears make of its input; one without a gate does not") {
  const ModelSpec gated =
      parsed(with_model(R"({"name": "m", "type": "mlp", "dim": 8, "hidden": 12})", kVectors)).model;
  CHECK(operations(gated) ==
        "m.w1 linear(0)\nm.w3 linear(0)\nm.gate silu_gate(1, 2)\nm.w2 linear(3)\n");
  CHECK(features_along(gated) == std::vector<std::int64_t>{8, 12, 12, 12, 8});
  CHECK(names_of(list_parameters(gated)) ==
        std::vector<std::string>{"m.w1.weight", "m.w3.weight", "m.w2.weight"});
  const ModelSpec plain =
      parsed(with_model(R"({"name": "m", "type": "mlp", "dim": 8, "hidden": 12, "gated": false})",
                        kVectors))
          .model;
  CHECK(operations(plain) == "m.w1 linear(0)\nm.act gelu(1)\nm.w2 linear(2)\n");
  CHECK(groups(plain) == "m mlp [0, 3)\n");
  CHECK_FALSE(plain.modules[1].tanh_approximation);
}

TEST_CASE("a mixture of experts is a router and experts, which read its input too") {
  const ModelSpec model =
      parsed(
          with_model(
              fmt::format(
                  R"({}, {{"name": "m", "type": "moe", "dim": 8, "hidden": 12, "experts": 6, "top_k": 2}})",
                  kLinear),
              kVectors))
          .model;
  CHECK(operations(model) == "l linear(0)\nm.router linear(1)\nm.experts experts(1, 2)\n");
  CHECK(groups(model) == "m moe [1, 3)\n");
  CHECK(features_along(model) == std::vector<std::int64_t>{8, 8, 6, 8});
  CHECK_FALSE(model.modules[1].bias);
  CHECK(model.modules[2].hidden == 12);
  CHECK(model.modules[2].num_experts == 6);
  CHECK(model.modules[2].top_k == 2);
  CHECK(experts_modules(model) == std::vector<int>{2});
  const auto parameters = list_parameters(model);
  CHECK(names_of(parameters) == std::vector<std::string>{"l.weight", "l.bias", "m.router.weight",
                                                         "m.experts.w1", "m.experts.w2",
                                                         "m.experts.w3"});
  CHECK(parameters[3].shape == Shape{6, 12, 8});
  CHECK(parameters[4].shape == Shape{6, 8, 12});
  CHECK(parameters[5].shape == Shape{6, 12, 8});
}

TEST_CASE("norms and embeddings have their sizes, and epsilons of their own") {
  const ModelSpec model =
      parsed(with_model(
                 fmt::format(
                     R"({}, {{"type": "layer_norm", "dim": 8}}, {{"type": "rms_norm", "dim": 8}},)"
                     R"({{"type": "layer_norm", "dim": 8, "eps": 0.5}})",
                     kEmbedding),
                 kTokens))
          .model;
  REQUIRE(model.modules.size() == 4);
  CHECK(model.modules[0].in_features == 11);
  CHECK(model.modules[0].out_features == 8);
  CHECK(model.modules[1].eps == 1e-5);
  CHECK(model.modules[2].eps == 1e-6);
  CHECK(model.modules[3].eps == 0.5);
  CHECK(names_of(list_parameters(model)) == std::vector<std::string>{"tok.weight", "1.weight",
                                                                     "1.bias", "2.weight",
                                                                     "3.weight", "3.bias"});
}

TEST_CASE("residuals add their input, repeats copy, and dots join the names") {
  const ModelSpec model =
      parsed(with_model(fmt::format(
                 R"({}, {{"name": "b", "type": "repeat", "count": 2, "module":)"
                 R"({{"type": "residual", "modules": [{{"type": "relu"}},)"
                 R"({{"name": "in", "type": "residual", "modules": [{{"type": "tanh"}}]}}]}}}},)"
                 R"({{"type": "repeat", "count": 3, "module": {{"type": "relu"}}}})",
                 kLinear)))
          .model;
  CHECK(operations(model) ==
        "l linear(0)\n"
        "b.0.0 relu(1)\n"
        "b.0.in.0 tanh(2)\n"
        "b.0.in.add add(3, 2)\n"
        "b.0.add add(4, 1)\n"
        "b.1.0 relu(5)\n"
        "b.1.in.0 tanh(6)\n"
        "b.1.in.add add(7, 6)\n"
        "b.1.add add(8, 5)\n"
        "2.0 relu(9)\n"
        "2.1 relu(10)\n"
        "2.2 relu(11)\n");
  CHECK(groups(model) ==
        "b repeat [1, 9)\n"
        "b.0 residual [1, 5)\n"
        "b.0.in residual [2, 4)\n"
        "b.1 residual [5, 9)\n"
        "b.1.in residual [6, 8)\n"
        "2 repeat [9, 12)\n");
}

TEST_CASE("repeats repeat repeats") {
  const ModelSpec model =
      parsed(with_model(R"({"name": "b", "type": "repeat", "count": 2, "module":)"
                        R"({"type": "repeat", "count": 2, "module": {"type": "mlp", "dim": 8,)"
                        R"("hidden": 4}}})",
                        kVectors))
          .model;
  REQUIRE(model.modules.size() == 16);
  CHECK(model.modules[13].name == "b.1.1.w3");
  CHECK(inputs_of(model, 13) == std::vector<int>{12});
  CHECK(inputs_of(model, 14) == std::vector<int>{13, 14});
  CHECK(groups(model) ==
        "b repeat [0, 16)\nb.0 repeat [0, 8)\nb.0.0 mlp [0, 4)\nb.0.1 mlp [4, 8)\n"
        "b.1 repeat [8, 16)\nb.1.0 mlp [8, 12)\nb.1.1 mlp [12, 16)\n");
}

TEST_CASE("parameters are those that PyTorch has, by name and size") {
  for (const char* name :
       {"attention", "attention_gqa_full", "mlp_gated", "mlp_plain", "norms", "transformer"}) {
    INFO(name);
    const Json fixture = Json::parse(read_file(fmt::format("tests/data/torch/{}.json", name)));
    Json text = fixture["scenario"];
    text["hpsim"] = 1;
    text["mesh"] = Json::parse(R"({"shape": [2], "mesh_dim_names": ["fsdp"]})");
    const Scenario scenario = parsed(text.dump());
    const Json& gradients = fixture["steps"][0]["grads"];
    CHECK(scenario.parameters.size() == gradients.size());
    for (const ParameterSpec& parameter : scenario.parameters) {
      INFO(parameter.name);
      REQUIRE(gradients.contains(parameter.name));
      CHECK(static_cast<std::int64_t>(gradients[parameter.name].size()) ==
            num_elems(parameter.shape));
    }
  }
}

TEST_CASE("samples are vectors, sequences or tokens") {
  const auto positions = [](const std::string& text) { return parsed(text).model.positions; };
  CHECK(positions(with_model(kLinear)).empty());
  CHECK(positions(with_model(kLinear, kVectors)).empty());
  CHECK(positions(with_model(kLinear, kSequences)) == Shape{5});
  CHECK(positions(with_model(kEmbedding, kTokens)) == Shape{5});
  CHECK(positions(with_model(R"({"type": "rms_norm", "dim": 8})", kVectors)).empty());
  CHECK(positions(with_model(
            fmt::format(R"({{"type": "sequential", "modules": [{}]}})", kEmbedding), kTokens)) ==
        Shape{5});
  CHECK(messages_of(with_model(
            fmt::format(R"({{"name": "s", "type": "sequential", "modules": [{}]}})", kLinear))) ==
        "data.sample_shape is missing: the first module, \"s\", is no linear\n");
  CHECK(messages_of(with_model(R"({"name": "n", "type": "rms_norm", "dim": 6})", kVectors)) ==
        "samples have 8 features, but \"n\" takes 6\n");
}

TEST_CASE("what is wrong with a size is told once, also about a sample of that size") {
  CHECK(messages_of(with_model(
            R"({"name": "l", "type": "linear", "in_features": 0, "out_features": 8})", kVectors)) ==
        "expected an integer of at least 1, found 0\n");
  CHECK(messages_of(with_model(R"({"name": "a", "type": "attention", "dim": 8, "heads": 16})",
                               kSequences)) ==
        "the dim of \"a\", 8, does not divide into 16 heads: 8 remain\n");
}

TEST_CASE("a misplaced embedding is told, and samples are not measured by it") {
  CHECK(messages_of(with_model(fmt::format(R"({{"type": "tanh"}}, {})", kEmbedding), kVectors)) ==
        "embedding \"tok\" takes tokens, but \"0\" before it gives features\n");
}

TEST_CASE("tokens are drawn where the model begins with an embedding or the loss takes classes") {
  const Scenario tokens = parsed(with_model(
      fmt::format(R"({}, {{"type": "linear", "in_features": 8, "out_features": 7}})", kEmbedding),
      fmt::format(R"({}, "training": {{"loss": "cross_entropy"}})", kTokens)));
  CHECK(tokens.training.loss == LossKind::CrossEntropy);
  CHECK(tokens.data.input == FillSpec{.kind = FillSpec::Kind::Token, .vocabulary = 11});
  CHECK(tokens.data.target == FillSpec{.kind = FillSpec::Kind::Token, .vocabulary = 7});

  const Scenario vectors = parsed(with_model(kLinear, R"("training": {"loss": "cross_entropy"})"));
  CHECK(vectors.data.input == FillSpec{});
  CHECK(vectors.data.target == FillSpec{.kind = FillSpec::Kind::Token, .vocabulary = 8});

  const Scenario squares = parsed(with_model(kEmbedding, kTokens));
  CHECK(squares.training.loss == LossKind::Mse);
  CHECK(squares.data.target == FillSpec{});
}

TEST_CASE("exact mode takes embeddings, residuals and repeats of what it computes") {
  const Scenario scenario = parsed(with_model(
      fmt::format(R"({}, {{"type": "repeat", "count": 2, "module": {{"type": "residual",)"
                  R"("modules": [{}, {{"type": "relu"}}]}}}})",
                  kEmbedding, kLinear),
      fmt::format(R"({}, "numerics": {{"mode": "exact"}})", kTokens)));
  CHECK(scenario.is_exact());
  CHECK(scenario.data.input.kind == FillSpec::Kind::Token);
  CHECK(scenario.data.target.kind == FillSpec::Kind::Integer);
}

TEST_CASE("a tied weight is that of the module that has it first") {
  const Scenario scenario = parsed(with_model(
      fmt::format(R"({}, {{"name": "n", "type": "rms_norm", "dim": 8}}, {{"name": "out",)"
                  R"("type": "linear", "in_features": 8, "out_features": 11,)"
                  R"("tied_to": "tok.weight"}})",
                  kEmbedding),
      fmt::format(R"({}, "fully_shard": {{"units": ["n"]}})", kTokens)));
  CHECK(scenario.model.modules[2].tied_to == 0);
  CHECK(names_of(scenario.parameters) ==
        std::vector<std::string>{"tok.weight", "n.weight", "out.bias"});
  REQUIRE(scenario.units.size() == 2);
  CHECK(scenario.units[0].parameters == std::vector<int>{0, 2});
}

TEST_CASE("a weight may be tied inside one unit, or left alone by fully_shard") {
  const std::string inside =
      fmt::format(R"({{"name": "s", "type": "sequential", "modules": [{0}, {{"name": "m",)"
                  R"("type": "linear", "in_features": 8, "out_features": 8,)"
                  R"("tied_to": "s.l.weight"}}]}})",
                  kLinear);
  CHECK_NOTHROW(parsed(with_model(inside, kVectors)));
  CHECK_THAT(messages_of(with_model(
                 inside, fmt::format(R"({}, "fully_shard": {{"units": ["s.*"]}})", kVectors))),
             Catch::StartsWith("\"s.m\" is in unit \"s.m\", but its weight is that of \"s.l\", in "
                               "unit \"s.l\""));
  CHECK_NOTHROW(parsed(with_model(
      inside,
      fmt::format(R"({}, "fully_shard": {{"units": ["s.*"], "ignored_params": ["s.l.weight"]}})",
                  kVectors))));
}

TEST_CASE("every copy of a repeat may be tied to one weight before it, not to one of the copies") {
  const auto repeated = [](const char* target) {
    return with_model(
        fmt::format(R"({}, {{"name": "b", "type": "repeat", "count": 3, "module": {{"type":)"
                    R"("linear", "in_features": 8, "out_features": 8, "bias": false,)"
                    R"("tied_to": "{}"}}}})",
                    kLinear, target),
        R"("fully_shard": {"units": []})");
  };
  const Scenario scenario = parsed(repeated("l.weight"));
  CHECK(scenario.parameters.size() == 2);
  for (const int m : {1, 2, 3})
    CHECK(scenario.model.modules[static_cast<std::size_t>(m)].tied_to == 0);
  CHECK(messages_of(repeated("b.0.weight")) == "\"b.0.weight\" is tied to itself\n");
  CHECK(messages_of(repeated("b.1.weight")) ==
        "\"b.0.weight\" is tied to \"b.1.weight\", of a module that comes later\n");
}

TEST_CASE("a mistake inside a repeat is told once, whatever the count") {
  const auto repeated = [](int count) {
    return with_model(
        fmt::format(R"({{"name": "b", "type": "repeat", "count": {}, "module": {{"type":)"
                    R"("residual", "modules": [{{"name": "n", "type": "rms_norm", "dim": 6}},)"
                    R"({{"name": "up", "type": "linear", "in_features": 8, "out_features": 6,)"
                    R"("tied_to": "none"}}, {{"name": "e", "type": "embedding",)"
                    R"("num_embeddings": 3, "embedding_dim": 6}}]}}}})",
                    count),
        R"("data": {"sample_shape": [6]})");
  };
  const std::string messages =
      "\"b.0.up\" takes 8 features, but \"b.0.n\" before it gives 6\n"
      "\"b.0.up.weight\" is tied to \"none\", but no parameter, linear or embedding is called so\n"
      "embedding \"b.0.e\" takes tokens, but \"b.0.up\" before it gives features\n";
  CHECK(messages_of(repeated(1)) == messages);
  CHECK(messages_of(repeated(5)) == messages);
}

TEST_CASE("what is repeated once may change the features") {
  const auto repeated = [](int count) {
    return with_model(fmt::format(R"({{"name": "b", "type": "repeat", "count": {}, "module":)"
                                  R"({{"type": "linear", "in_features": 8, "out_features": 6}}}})",
                                  count),
                      kVectors);
  };
  CHECK(output_features(parsed(repeated(1)).model) == 6);
  CHECK(messages_of(repeated(2)) ==
        "\"b.0\" is repeated, but takes 8 features, and \"b.0\" gives 6\n");
}

TEST_CASE("a residual of functions keeps any features, and one that begins the model its own") {
  CHECK_NOTHROW(parsed(with_model(
      fmt::format(R"({{"type": "residual", "modules": [{{"type": "relu"}}]}}, {})", kLinear),
      kVectors)));
  CHECK(messages_of(with_model(
            R"({"name": "r", "type": "residual", "modules": [{"type": "relu"}, {"name": "up",)"
            R"("type": "linear", "in_features": 8, "out_features": 12}, {"name": "down",)"
            R"("type": "linear", "in_features": 12, "out_features": 7}]})",
            kVectors)) ==
        "\"r.down\" gives 7 features, but residual \"r\" adds them to its input of 8\n");
}

TEST_CASE("a model has at most a hundred thousand operations") {
  const auto repeated = [](int count) {
    return with_model(
        fmt::format(R"({}, {{"name": "b", "type": "repeat", "count": {}, "module":)"
                    R"({{"type": "sequential", "modules": [{{"type": "relu"}}, {{"type": "relu"}},)"
                    R"({{"type": "relu"}}]}}}})",
                    kLinear, count));
  };
  CHECK(parsed(repeated(33'333)).model.modules.size() == 100'000);
  CHECK(messages_of(repeated(33'334)) ==
        "\"b\" repeats 3 operations 33334 times, but a model has at most 100000\n");
  CHECK(messages_of(
            with_model(R"({"type": "repeat", "count": 50001, "module": {"type": "relu"}},)"
                       R"({"type": "repeat", "count": 50000, "module": {"type": "relu"}})")) ==
        "the model has 100001 operations, the limit is 100000\n");
  CHECK(messages_of(
            with_model(R"({"name": "b", "type": "repeat", "count": 9223372036854775807, "module":)"
                       R"({"type": "repeat", "count": 99999, "module": {"type": "relu"}}})")) ==
        "\"b\" repeats 99999 operations 9223372036854775807 times, but a model has at most "
        "100000\n");
}

TEST_CASE("modules nest as deep as JSON may") {
  const auto nested = [](int depth) {
    std::string module = kLinear;
    for (int i = 0; i < depth; ++i)
      module = fmt::format(R"({{"name": "s", "type": "sequential", "modules": [{}]}})", module);
    return with_model(module, kVectors);
  };
  // The file, its model and the linear are 3 levels, every sequential is 2: 64 are taken.
  CHECK(parsed(nested(30)).parameters.size() == 2);
  CHECK_THAT(messages_of(nested(31)), Catch::Contains("64"));
}

TEST_CASE("data are counted with all positions, and with the scores of attention") {
  const auto sized = [](const char* sequence) {
    return with_model(R"({"name": "a", "type": "attention", "dim": 8, "heads": 4})",
                      fmt::format(R"("data": {{"sample_shape": [{}, 8]}})", sequence));
  };
  CHECK_NOTHROW(parsed(sized("268435456")));
  // 8 samples of 2^30 * 2^30 * 4 scores are 2^65.
  CHECK_THAT(messages_of(sized("1073741824")), Catch::Contains("more than 2^62 elements"));
}

TEST_CASE("the name that a default gives is taken too") {
  CHECK(messages_of(with_model(
            fmt::format(R"({{"name": "1", "type": "relu"}}, {{"type": "tanh"}}, {})", kLinear),
            kVectors)) == "modules 0 and 1 both have the name \"1\"\n");
  // Siblings alone: the same name is fine elsewhere.
  CHECK_NOTHROW(parsed(
      with_model(fmt::format(R"({{"name": "l", "type": "sequential", "modules": [{}]}})", kLinear),
                 kVectors)));
}

TEST_CASE("all that is wrong with a tree of modules is told at once") {
  CHECK(messages_of(with_model(
            R"({"name": "a", "type": "residual", "modules": [{"type": "relo"}, {"name": "x.y",)"
            R"("type": "relu"}, 3]}, {"name": "a", "type": "repeat", "count": 0, "module": []},)"
            R"({"type": "moe", "dim": 8, "hidden": 8, "experts": 2, "top_k": 1})")) ==
        "expected \"linear\", \"relu\", \"tanh\", \"silu\", \"gelu\", \"layer_norm\", "
        "\"rms_norm\", \"embedding\", \"attention\", \"mlp\", \"moe\", \"residual\", "
        "\"sequential\" or "
        "\"repeat\", found \"relo\"\n"
        "the name \"x.y\" of module 1 contains a dot\n"
        "expected an object, found 3\n"
        "modules 0 and 1 both have the name \"a\"\n"
        "expected an integer of at least 1, found 0\n"
        "expected an object, found []\n");
}

}  // namespace
}  // namespace hpsim
