// Memory of activations with and without recomputation, counted by hand.

#include <algorithm>
#include <string>

#include "plan/build_plan.h"
#include "scenario/parse.h"
#include "support/catch.h"
#include "trace/plan_ledger.h"

namespace hpsim {
namespace {

Plan plan_of(const std::string& members) {
  return build_plan(parse_scenario(
      R"({"hpsim": 1, "mesh": {"shape": [1], "mesh_dim_names": ["fsdp"]}, )" + members + "}",
      "recomputed.json"));
}

constexpr auto kActivations = static_cast<std::size_t>(MemoryKind::Activations);

std::int64_t peak_elems(const Plan& plan) {
  return planned_memory(plan, {0}).ledger.peak()[kActivations] / 4;
}

/// What is alive when the loss is done: kept for backward.
std::int64_t kept_elems(Plan plan) {
  const auto loss = std::find_if(plan.steps.begin(), plan.steps.end(),
                                 [](const Step& step) { return step.kind == StepKind::Loss; });
  plan.steps.erase(loss + 1, plan.steps.end());
  return planned_memory(plan, {0}).ledger.live()[kActivations] / 4;
}

/// Two samples: in 4 -> 8, `count` blocks of a linear 8 -> 8 and gelu, out 8 -> 2.
Plan chain(int count, bool is_recomputed) {
  return plan_of(R"("model": [
        {"name": "in", "type": "linear", "in_features": 4, "out_features": 8},
        {"name": "b", "type": "repeat", "count": )" +
                 std::to_string(count) + R"(, "module": {"type": "sequential", "modules": [
          {"name": "l", "type": "linear", "in_features": 8, "out_features": 8},
          {"name": "a", "type": "gelu"}]}},
        {"name": "out", "type": "linear", "in_features": 8, "out_features": 2}])" +
                 (is_recomputed ? R"(, "training": {"activation_checkpointing": ["b.*"]})" : ""));
}

TEST_CASE("a chain of blocks keeps one activation of each instead of two") {
  for (const int n : {1, 2, 3, 10}) {
    CAPTURE(n);
    // The input 2 x 4; what in gives, and each l and each a, 2 x 8; the gradient of the output.
    CHECK(kept_elems(chain(n, false)) == 8 + 16 + 32 * n + 4);
    // What in and each a give: the inputs of blocks, and of out.
    CHECK(kept_elems(chain(n, true)) == 8 + 16 + 16 * n + 4);
    // In the backward of out the gradient of its input comes to it.
    CHECK(peak_elems(chain(n, false)) == 8 + 16 + 32 * n + 4 + 16);
    // Before the last block's backward: the input, inputs of all blocks, the gradient of what the
    // last one gives; and l and a computed again.
    CHECK(peak_elems(chain(n, true)) == 8 + 16 * n + 16 + 16 + 16);
  }
}

TEST_CASE("what experts keep is free after forward where backward computes it again") {
  const auto experts = [](const std::string& patterns) {
    return plan_of(R"("model": [
          {"name": "a", "type": "moe", "dim": 4, "hidden": 3, "experts": 2, "top_k": 1},
          {"name": "b", "type": "moe", "dim": 4, "hidden": 3, "experts": 2, "top_k": 1}],
          "data": {"sample_shape": [4]}, "training": {"activation_checkpointing": [)" +
                   patterns + "]}");
  };
  // Two vectors of 4: input 8; of each moe logits 4, rows sorted 8, inside 12, outputs of experts
  // 8; what a gives 8, the gradient of what b gives 8.
  CHECK(kept_elems(experts("")) == 8 + 2 * (4 + 8 + 12 + 8) + 8 + 8);
  CHECK(kept_elems(experts(R"("a", "b")")) == 8 + 8 + 8);
  CHECK(kept_elems(experts(R"("b")")) == 8 + (4 + 8 + 12 + 8) + 8 + 8);
}

TEST_CASE("what experts keep is free after forward where no backward reads it") {
  const Plan plan = plan_of(R"("model": [
          {"name": "a", "type": "moe", "dim": 4, "hidden": 3, "experts": 2, "top_k": 1},
          {"name": "out", "type": "linear", "in_features": 4, "out_features": 2}],
          "data": {"sample_shape": [4]}, "training": {"steps": 2, "frozen": ["a.**"]})");
  // What a gives, and the gradient of the output, 2 x 2.
  CHECK(kept_elems(plan) == 8 + 4);
  CHECK(planned_memory(plan, {0}).ledger.live()[kActivations] == 0);
}

}  // namespace
}  // namespace hpsim
