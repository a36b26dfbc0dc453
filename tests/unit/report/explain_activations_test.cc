// What `hpsim explain` tells of the layouts of activations.

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string>

#include "plan/build_plan.h"
#include "report/explain_report.h"
#include "scenario/parse.h"
#include "support/catch.h"

namespace hpsim {
namespace {

using Catch::Matchers::Contains;
using Json = nlohmann::ordered_json;

Plan plan_on_2x2(const std::string& model, const std::string& more) {
  return build_plan(parse_scenario(
      fmt::format(R"x({{"hpsim": 1, "mesh": {{"shape": [2, 2], "mesh_dim_names": ["fsdp", "tp"]}},
                        "model": {}, {}}})x",
                  model, more),
      "explain.json"));
}

/// A norm on parts of the sequence, and a residual whose branch is colwise, then rowwise_sp.
Plan sequence_parallel() {
  return plan_on_2x2(R"x([
      {"name": "norm", "type": "rms_norm", "dim": 8},
      {"name": "r", "type": "residual", "modules": [
        {"name": "up", "type": "linear", "in_features": 8, "out_features": 6, "bias": false},
        {"name": "act", "type": "gelu"},
        {"name": "down", "type": "linear", "in_features": 6, "out_features": 8, "bias": false}]}])x",
                     R"x("data": {"sample_shape": [4, 8]}, "parallelize": {
                       "norm": "sequence_parallel", "r.up": "colwise", "r.down": "rowwise_sp"})x");
}

TEST_CASE("explain tells how activations are laid out along a model with sequence parallelism") {
  CHECK(activations_text(sequence_parallel(), {}) ==
        "\n"
        "activations along fsdp, tp: S(0) by samples, S(1) by positions, S(2) by features, R "
        "whole, P terms\n"
        "\n"
        "  module  takes      before it      gives      after it           in backward\n"
        "  norm    S(0) S(1)  slice tp       S(0) S(1)\n"
        "  r.up    S(0) R     all_gather tp  S(0) S(2)                     reduce_scatter tp\n"
        "  r.act   S(0) S(2)                 S(0) S(2)\n"
        "  r.down  S(0) S(2)                 S(0) S(1)  reduce_scatter tp  all_gather tp\n"
        "  r.add   S(0) S(1)                 S(0) S(1)\n"
        "  (loss)  S(0) S(1)\n");
}

TEST_CASE("explain as JSON has every module's layouts and what changes them") {
  const Json json = activations_json(sequence_parallel());
  REQUIRE(json.size() == 5);
  CHECK(json[1] == Json::parse(R"x({
    "module": "r.up", "type": "linear",
    "inputs": [["Shard(0)", "Replicate"]],
    "output": ["Shard(0)", "Shard(2)"],
    "given": ["Shard(0)", "Shard(2)"],
    "input_gradients": [["Shard(0)", "Partial(sum)"]],
    "redistributions": {
      "before": [{"op": "all_gather", "activation": "input of \"r.up\"", "mesh_dims": ["tp"]}],
      "after": [],
      "backward": [{"op": "reduce_scatter", "activation": "gradient of the input of \"r.up\"",
                    "mesh_dims": ["tp"]}]}})x"));
  const Json& down = json[3];
  CHECK(down["output"] == Json::parse(R"x(["Shard(0)", "Partial(sum)"])x"));
  CHECK(down["given"] == Json::parse(R"x(["Shard(0)", "Shard(1)"])x"));
  CHECK(down["redistributions"]["after"] == Json::parse(R"x([
      {"op": "reduce_scatter", "activation": "output of \"r.down\"", "mesh_dims": ["tp"]}])x"));
  CHECK(json[4]["inputs"].size() == 2);
  // Nothing needs the gradient of the model's input.
  CHECK(json[0]["input_gradients"] == Json::parse("[null]"));
}

TEST_CASE("explain tells of vectors without positions, and of logits that stay cut") {
  const Plan plan = plan_on_2x2(
      R"x([{"name": "l", "type": "linear", "in_features": 4, "out_features": 6, "bias": false}])x",
      R"x("parallelize": {"l": "colwise"}, "training": {"loss": "cross_entropy"})x");
  const std::string text = activations_text(plan, {});
  CHECK_THAT(text, Contains("S(0) by samples, S(1) by features, R whole"));
  CHECK_THAT(text, Contains("\n  (loss)  S(0) S(1)\n"));
}

TEST_CASE("explain folds long models, and tells nothing of elementwise parameters") {
  const Plan plan = plan_on_2x2(
      R"x([{"name": "b", "type": "repeat", "count": 30, "module":
            {"type": "linear", "in_features": 4, "out_features": 4}}])x",
      R"x("data": {"sample_shape": [4]})x");
  REQUIRE(plan.modules.size() == 30);
  const std::string folded = activations_text(plan, {});
  CHECK_THAT(folded, Contains("… 7 more modules; --full tells all of them"));
  CHECK_THAT(folded, !Contains("(loss)"));
  const std::string whole = activations_text(plan, TextStyle{.full = true});
  CHECK_THAT(whole, !Contains("more modules"));
  CHECK_THAT(whole, Contains("\n  (loss)"));
  const Plan elementwise = build_plan(parse_scenario(
      R"({"hpsim": 1, "mesh": {"shape": [2], "mesh_dim_names": ["fsdp"]}, "parameters": {"w": [4]}})",
      "explain.json"));
  CHECK(activations_text(elementwise, {}).empty());
  CHECK(activations_json(elementwise).empty());
}

TEST_CASE("explain tells where positions go to experts and come back") {
  const std::string model = R"x([
      {"name": "norm", "type": "rms_norm", "dim": 8},
      {"name": "moe", "type": "moe", "dim": 8, "hidden": 6, "experts": 4, "top_k": 2}])x";
  const auto plan_on = [&](const std::string& data) {
    return build_plan(parse_scenario(
        R"({"hpsim": 1, "mesh": {"shape": [2, 2], "mesh_dim_names": ["fsdp", "ep"]}, "model": )" +
            model + R"(, "parallelize": {"moe": "expert"}, "data": {"sample_shape": [8])" + data +
            "}}",
        "explain.json"));
  };
  const Plan exchanging = plan_on("");
  CHECK_THAT(activations_text(exchanging, {}),
             Contains("\n  moe.experts  S(0) S(0)  all_to_all ep  S(0) S(0)  all_to_all ep  "
                      "all_to_all ep, twice\n"));
  CHECK(activations_json(exchanging)[2]["exchange"] == Json::parse(R"(["ep"])"));
  const Plan alike = plan_on(R"(, "data_dims": ["fsdp"])");
  CHECK_THAT(activations_text(alike, {}), !Contains("all_to_all"));
  CHECK(activations_json(alike)[2]["exchange"].empty());
  CHECK_FALSE(activations_json(alike)[1].contains("exchange"));
}

}  // namespace
}  // namespace hpsim
