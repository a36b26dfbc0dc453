#include "scenario/parse.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "scenario/json_text.h"
#include "scenario_text.h"
#include "support/catch.h"

namespace hpsim {
namespace {

TEST_CASE("the smallest scenario has every default") {
  const Scenario scenario = parsed(minimal_with(""));
  CHECK(scenario.name == "file");
  CHECK(scenario.description.empty());
  CHECK(scenario.file == "dir/file.json");
  CHECK(scenario.mesh.num_ranks() == 4);
  CHECK(scenario.mesh.name(0) == "fsdp");
  REQUIRE(scenario.parameters.size() == 1);
  CHECK(scenario.parameters[0].name == "weight");
  CHECK(scenario.parameters[0].shape == Shape{7, 8});
  REQUIRE(scenario.units.size() == 1);
  CHECK(scenario.units[0].is_root);
  CHECK(scenario.fully_shard.shards_parameters);
  CHECK(scenario.fully_shard.reshard_after_forward);
  CHECK(scenario.fully_shard.reduce_op == ReduceOp::Avg);
  CHECK(scenario.fully_shard.sync_object == SyncObject::Grad);
  CHECK(scenario.fully_shard.gradient_scaling_factor == 1);
  CHECK_FALSE(scenario.fully_shard.gradient_divide_factor);
  CHECK(scenario.fully_shard.replicate_params.empty());
  CHECK(scenario.training.steps == 1);
  CHECK(scenario.training.global_batch == 8);
  CHECK(scenario.training.loss_normalization == LossNormalization::LocalMean);
  CHECK(scenario.training.optimizer.kind == OptimizerSpec::Kind::Sgd);
  CHECK(scenario.training.optimizer.lr == 0.1);
  CHECK(scenario.training.optimizer.momentum == 0);
  CHECK_FALSE(scenario.training.optimizer.round_to);
  CHECK_FALSE(scenario.training.optimizer.clamp);
  CHECK(scenario.data.seed == 0);
  CHECK(scenario.data.init_bound_from_shape);
  CHECK(parameter_fill(scenario.data, scenario.parameters[0]).bound == 1 / std::sqrt(8.0));
  CHECK(scenario.data.input == FillSpec{});
  CHECK(scenario.data.target == FillSpec{});
  CHECK(scenario.numerics.dtype == DType::Float32);
  CHECK(scenario.numerics.mode == NumericsSpec::Mode::Derived);
  CHECK(scenario.expect.empty());
}

TEST_CASE("optimizers have the defaults of torch.optim") {
  const auto optimizer = [](const char* text) {
    return parsed(minimal_with(fmt::format("\"training\": {{\"optimizer\": {}}}", text)))
        .training.optimizer;
  };
  const OptimizerSpec adam = optimizer(R"({"name": "adam"})");
  CHECK(adam.kind == OptimizerSpec::Kind::Adam);
  CHECK(adam.lr == 1e-3);
  CHECK(adam.beta1 == 0.9);
  CHECK(adam.beta2 == 0.999);
  CHECK(adam.eps == 1e-8);
  CHECK(adam.weight_decay == 0);
  const OptimizerSpec adamw = optimizer(R"({"name": "adamw"})");
  CHECK(adamw.kind == OptimizerSpec::Kind::AdamW);
  CHECK(adamw.lr == 1e-3);
  CHECK(adamw.weight_decay == 0.01);
  CHECK(optimizer(R"({"name": "sgd"})").lr == 0.1);
  const OptimizerSpec all = optimizer(
      R"({"name": "adamw", "lr": 0.5, "betas": [0, 0.5], "eps": 1e-3, "weight_decay": 2})");
  CHECK(all.lr == 0.5);
  CHECK(all.beta1 == 0);
  CHECK(all.beta2 == 0.5);
  CHECK(all.eps == 1e-3);
  CHECK(all.weight_decay == 2);
  const OptimizerSpec sgd = optimizer(
      R"({"name": "sgd", "lr": 0, "momentum": 0.9, "weight_decay": 0.1, "nesterov": true})");
  CHECK(sgd.lr == 0);
  CHECK(sgd.momentum == 0.9);
  CHECK(sgd.weight_decay == 0.1);
  CHECK(sgd.nesterov);
}

TEST_CASE("exact mode has defaults of its own") {
  const Scenario plain = parsed(minimal_with(R"("numerics": {"mode": "exact"})"));
  const FillSpec integers{.kind = FillSpec::Kind::Integer, .max = 2, .scale = 1};
  CHECK(plain.data.init.kind == FillSpec::Kind::Integer);
  CHECK(parameter_fill(plain.data, plain.parameters[0]).max == integers.max);
  CHECK(plain.data.input == integers);
  CHECK(plain.data.target == integers);
  CHECK(plain.training.optimizer.lr == 0.0625);
  CHECK(plain.training.optimizer.round_to == 1.0);
  CHECK(plain.training.optimizer.clamp == 2.0);

  const Scenario given = parsed(minimal_with(
      R"("numerics": {"mode": "exact"}, "data": {"init": {"kind": "integer", "max": 3, "scale": 0.5}},)"
      R"("training": {"optimizer": {"name": "sgd", "lr": 0.25, "momentum": 0.5}})"));
  CHECK(given.training.optimizer.lr == 0.25);
  CHECK(given.training.optimizer.round_to == 0.5);
  CHECK(given.training.optimizer.clamp == 1.5);
  CHECK(given.data.input.scale == 1);

  const Scenario bounds = parsed(minimal_with(
      R"("numerics": {"mode": "exact"}, "training": {"optimizer": {"name": "sgd", "round_to": 0.25, "clamp": 0.75}})"));
  CHECK(bounds.training.optimizer.round_to == 0.25);
  CHECK(bounds.training.optimizer.clamp == 0.75);
}

TEST_CASE("values that are given are the values that are read") {
  const Scenario scenario = parsed(chain_with(
      R"("name": "n", "description": "d", "fully_shard": {"units": ["l1"], "enable_param_shard": false,)"
      R"("reshard_after_forward": false, "reduce_op": "sum", "gradient_scaling_factor": -2.5,)"
      R"("gradient_divide_factor": 3, "replicate_params": ["*.bias", "l0.*"]},)"
      R"("training": {"steps": 7, "global_batch": 12, "loss": "mse", "loss_normalization": "sum"},)"
      R"("data": {"seed": 18446744073709551615, "init": {"kind": "uniform", "bound": 0.5},)"
      R"("input": {"kind": "integer", "max": 5, "scale": 0.1}, "sample_shape": [8]},)"
      R"("numerics": {"dtype": "float64", "mode": "derived"}, "expect": {"losses": [ 1 ]})"));
  CHECK(scenario.name == "n");
  CHECK(scenario.description == "d");
  CHECK_FALSE(scenario.fully_shard.shards_parameters);
  CHECK_FALSE(scenario.fully_shard.reshard_after_forward);
  CHECK(scenario.fully_shard.reduce_op == ReduceOp::Sum);
  CHECK(scenario.fully_shard.gradient_scaling_factor == -2.5);
  CHECK(scenario.fully_shard.gradient_divide_factor == 3.0);
  CHECK(scenario.fully_shard.replicate_params == std::vector<int>{0, 1, 3});
  REQUIRE(scenario.units.size() == 2);
  CHECK(scenario.units[0].is_root);
  CHECK(scenario.units[1].name == "l1");
  CHECK(scenario.training.steps == 7);
  CHECK(scenario.training.global_batch == 12);
  CHECK(scenario.training.loss_normalization == LossNormalization::Sum);
  CHECK(scenario.data.seed == 18446744073709551615U);
  CHECK(scenario.data.init.bound == 0.5);
  CHECK_FALSE(scenario.data.init_bound_from_shape);
  CHECK(scenario.data.input == FillSpec{.kind = FillSpec::Kind::Integer, .max = 5, .scale = 0.1});
  CHECK(scenario.numerics.dtype == DType::Float64);
  CHECK(Json::parse(scenario.expect) == Json::parse(R"({"losses": [1]})"));
}

TEST_CASE("modules are read in order and named by their index by default") {
  const Scenario scenario = parsed(
      R"({"hpsim": 1, "mesh": {"shape": [1], "mesh_dim_names": ["fsdp"]}, "model": [
          {"type": "relu"},
          {"type": "linear", "in_features": 4, "out_features": 6, "bias": false},
          {"type": "gelu"}, {"type": "gelu", "approximate": "tanh", "name": "g"}, {"type": "silu"},
          {"type": "linear", "in_features": 6, "out_features": 2}], "data": {"sample_shape": [4]}})");
  REQUIRE(scenario.model.modules.size() == 6);
  CHECK(scenario.model.modules[0].name == "0");
  CHECK(scenario.model.modules[0].type == ModuleType::Relu);
  CHECK_FALSE(scenario.model.modules[1].bias);
  CHECK_FALSE(scenario.model.modules[2].tanh_approximation);
  CHECK(scenario.model.modules[3].tanh_approximation);
  CHECK(scenario.model.modules[3].name == "g");
  REQUIRE(scenario.parameters.size() == 3);
  CHECK(scenario.parameters[0].name == "1.weight");
  CHECK(scenario.parameters[2].name == "5.bias");
  CHECK(scenario.units.size() == 2);
}

TEST_CASE(
    "elementwise parameters are shapes or objects, keep their order, and any script is fine") {
  const Scenario scenario = parsed(
      R"({"hpsim": 1, "mesh": {"shape": [2], "mesh_dim_names": ["fsdp"]},
          "parameters": {"z": [3], "层.重み": {"shape": [2, 2, 2]}, "a": [5, 1]}})");
  REQUIRE(scenario.parameters.size() == 3);
  CHECK(scenario.parameters[0].name == "z");
  CHECK(scenario.parameters[1].name == "层.重み");
  CHECK(scenario.parameters[1].shape == Shape{2, 2, 2});
  CHECK(scenario.parameters[2].name == "a");
}

TEST_CASE("ranks place ranks in the mesh") {
  const Scenario scenario =
      parsed(R"({"hpsim": 1, "mesh": {"shape": [2, 2], "mesh_dim_names": ["rep", "fsdp"],
                 "ranks": [3, 1, 0, 2]}, "parameters": {"w": [2]}})");
  CHECK(scenario.mesh.coordinate_of(Rank{3}) == Coordinate{0, 0});
  CHECK(scenario.mesh.coordinate_of(Rank{2}) == Coordinate{1, 1});
}

TEST_CASE("the hash sees what a file says, not how it is written") {
  const std::string a = R"({"hpsim": 1, "mesh": {"shape": [4], "mesh_dim_names": ["fsdp"]},
      "parameters": {"w": [7, 8]}, "training": {"steps": 2, "global_batch": 8}})";
  const std::string b = R"({"training": {"global_batch": 8, "steps": 2}, // other order
      "parameters": {"w":[7,8]}, "mesh": {"mesh_dim_names": ["fsdp"], "shape": [4]}, "hpsim": 1})";
  const std::string c = R"({"training": {"global_batch": 8, "steps": 3},
      "parameters": {"w":[7,8]}, "mesh": {"mesh_dim_names": ["fsdp"], "shape": [4]}, "hpsim": 1})";
  CHECK(parsed(a).hash == parsed(b).hash);
  CHECK(parsed(a).hash != parsed(c).hash);
  CHECK(parsed(a).hash.size() == 16);
  CHECK(parsed(R"({"parameters":{"w":[1]},"hpsim":1,"mesh":{"shape":[1],"mesh_dim_names":["dp"]}})")
            .hash == fmt::format("{:016x}", fnv1a64(R"({"hpsim":1,"mesh":{"mesh_dim_names":["dp"],)"
                                                    R"("shape":[1]},"parameters":{"w":[1]}})")));
}

TEST_CASE("the name is the stem of the file") {
  const auto name = [](const char* file) { return parse_scenario(minimal_with(""), file).name; };
  CHECK(name("a/b.c.json") == "b.c");
  CHECK(name("x") == "x");
  CHECK(name("") == "scenario");
  CHECK(name("-") == "-");
}

TEST_CASE("fixture scenarios are read once they have a version and a mesh") {
  for (const char* name : {"elementwise_7x8", "elementwise_integer", "elementwise_two",
                           "linear_chain", "linear_adamw"}) {
    INFO(name);
    Json fixture = Json::parse(read_file(fmt::format("tests/data/torch/{}.json", name)));
    Json scenario = fixture["scenario"];
    scenario["hpsim"] = 1;
    scenario["mesh"] = Json::parse(R"({"shape": [2, 2], "mesh_dim_names": ["rep", "fsdp"]})");
    const Scenario read = parsed(scenario.dump());
    CHECK(read.name == name);
    CHECK(read.training.global_batch % 4 == 0);
    CHECK(read.training.steps == static_cast<std::int64_t>(fixture["losses"].size()));
    CHECK_FALSE(read.parameters.empty());
  }
}

TEST_CASE("beyond a thousand mistakes only their number is told") {
  std::string members;
  for (int i = 0; i < 1500; ++i)
    members += fmt::format("{}\"unheard{}\": 1", i == 0 ? "" : ", ", i);
  const auto diagnostics = diagnostics_of(minimal_with(members));
  REQUIRE(diagnostics.size() == 1001);
  CHECK(diagnostics.back().message == "500 more mistakes are not shown");
}

TEST_CASE("a file of another version is wrong in that alone") {
  CHECK(messages_of(R"({"hpsim": 3, "anything": 1, "mesh": 7})") ==
        "format version 3, but this hpsim reads version 1\n");
}

}  // namespace
}  // namespace hpsim
