#include "plan/parameter_replay.h"

#include <algorithm>
#include <functional>

#include "plan/build_plan.h"
#include "plan/plan_checks.h"
#include "support/catch.h"
#include "support/scenarios.h"
#include "unit/plan/activation_scenarios.h"

namespace hpsim {
namespace {

using test::linear_json;

/// Mesh (rep 2, fsdp 2, tp 2): up.weight [8, 4] is [Replicate, StridedShard(0, 2), Shard(0)],
/// out.weight [2, 8] [Replicate, Shard(0), Replicate].
Plan small_plan() {
  return build_plan(test::scenario_of({"2, 2, 2",
                                       R"("rep", "fsdp", "tp")",
                                       {linear_json("up", 4, 8), linear_json("out", 8, 2)},
                                       R"("parallelize": {"up": "colwise"})"}));
}

constexpr int kRep = 0;
constexpr int kFsdp = 1;
constexpr int kTp = 2;
constexpr int kUp = 0;
constexpr int kOut = 1;

/// "CODE message" of what check_placements finds.
std::vector<std::string> found(Plan plan, const std::function<void(Plan&)>& plant) {
  plant(plan);
  std::vector<std::string> texts;
  for (const Finding& finding : check_placements(plan).findings)
    texts.push_back(std::string(name_of(finding.code)) + " " + finding.message);
  return texts;
}

using Texts = std::vector<std::string>;

void each_step(Plan& plan, StepKind kind, int bucket, const std::function<void(Step&)>& change) {
  int num_changed = 0;
  for (Step& step : plan.steps) {
    if (step.kind != kind || step.bucket != bucket) continue;
    change(step);
    ++num_changed;
  }
  CHECK(num_changed > 0);
}

void erase_all(Plan& plan, StepKind kind, int bucket) {
  plan.steps.erase(
      std::remove_if(plan.steps.begin(), plan.steps.end(),
                     [&](const Step& step) { return step.kind == kind && step.bucket == bucket; }),
      plan.steps.end());
}

TEST_CASE("a plan that is right keeps placements, and every step of a parameter counts") {
  CHECK(found(small_plan(), [](Plan&) {}).empty());
  // unshard, forward, reshard, unshard, backward, reshard, store_gradient, optimizer
  const Plan plan = build_plan(test::fsdp_scenario(test::elementwise_model({{"w", {7, 8}}}), 4));
  ParameterReplay replay(plan);
  for (const Step& step : plan.steps)
    CHECK(replay.take(step).empty());
  CHECK(replay.compared() == 8);
}

TEST_CASE("along a mesh dim of one rank sharded and whole are the same") {
  const Plan plan = build_plan(test::fsdp_scenario(test::elementwise_model({{"w", {7, 8}}}), 1));
  CHECK(check_placements(plan).findings.empty());
}

TEST_CASE("planted: unshard gathers along another mesh dim than fully_shard's") {
  const auto over = [](MeshDims dims) {
    return [dims](Plan& plan) {
      each_step(plan, StepKind::Unshard, kUp, [&](Step& step) { step.collective->dims = dims; });
    };
  };
  CHECK(found(small_plan(), over({kTp})) ==
        Texts{"OFFSET_WRONG at unshard \"up.weight\" is StridedShard(0, 2) along fsdp, expected "
              "Replicate"});
  CHECK(found(small_plan(), over({kFsdp, kTp})) ==
        Texts{"OFFSET_WRONG at unshard \"up.weight\" is Replicate along tp, expected Shard(0)"});
}

TEST_CASE("planted: a bucket that is gathered along another mesh dim than its parameter is cut") {
  // What the steps say agrees with the bucket: only the parameter tells.
  const auto texts = found(small_plan(), [](Plan& plan) {
    plan.buckets[kUp].sharded_group.dims = {kTp};
    each_step(plan, StepKind::Unshard, kUp, [](Step& step) { step.collective->dims = {kTp}; });
  });
  REQUIRE(texts.size() == 1);
  CHECK(texts[0].find("OFFSET_WRONG at unshard \"up.weight\" is") == 0);
}

TEST_CASE("planted: a parameter is used, or left, in the wrong placement") {
  CHECK(found(small_plan(), [](Plan& plan) { erase_all(plan, StepKind::Unshard, kOut); }) ==
        Texts{"OFFSET_WRONG at forward \"out.weight\" is Shard(0) along fsdp, expected Replicate"});
  CHECK(found(small_plan(), [](Plan& plan) { erase_all(plan, StepKind::Reshard, kOut); }) ==
        Texts{"OFFSET_WRONG at optimizer \"out.weight\" is Replicate along fsdp, expected "
              "Shard(0)"});
  CHECK(found(small_plan(), [](Plan& plan) { plan.buckets[kOut].sharded_group.dims.clear(); }) ==
        Texts{"OFFSET_WRONG at reshard \"out.weight\" is Replicate along fsdp, expected "
              "Shard(0)"});
}

TEST_CASE("planted: a gradient does not end up as its parameter is placed") {
  CHECK(found(small_plan(),
              [](Plan& plan) {
                plan.buckets[kOut].sharded_group.dims.clear();
                erase_all(plan, StepKind::Reshard, kOut);
              }) ==
        Texts{"OFFSET_WRONG at store_gradient the gradient of \"out.weight\" is Replicate "
              "along fsdp, expected Shard(0)"});
}

TEST_CASE("planted: gradients are cut, or added, where they must not be") {
  const auto over = [](StepKind kind, int bucket, MeshDims dims) {
    return found(small_plan(), [&](Plan& plan) {
      each_step(plan, kind, bucket, [&](Step& step) { step.collective->dims = dims; });
    });
  };
  CHECK(over(StepKind::ReduceScatter, kOut, {kRep}) ==
        Texts{"COMM_GROUP reduce_scatter cuts the gradient of \"out.weight\" along rep, where "
              "fully_shard does not cut it"});
  CHECK(over(StepKind::ReduceScatter, kUp, {kFsdp, kTp}) ==
        Texts{"COMM_GROUP reduce_scatter cuts the gradient of \"up.weight\" along tp, where "
              "fully_shard does not cut it"});
  CHECK(over(StepKind::AllReduce, kOut, {kRep, kFsdp}) ==
        Texts{"COMM_GROUP all_reduce adds different parts of the gradient of \"out.weight\": it is "
              "Shard(0) along fsdp"});
  CHECK(over(StepKind::AllReduce, kUp, {kRep, kTp}) ==
        Texts{"COMM_GROUP all_reduce adds different parts of the gradient of \"up.weight\": it is "
              "Shard(0) along tp"});
  // Copies may be added: how often, check_sync_set says.
  CHECK(over(StepKind::AllReduce, kOut, {kRep, kTp}).empty());
}

TEST_CASE("each step after the first is followed too, and tells which it is") {
  Scenario scenario = test::fsdp_scenario(test::elementwise_model({{"w", {7, 8}}}), 4);
  scenario.training.steps = 3;
  Plan plan = build_plan(scenario);
  for (Step& step : plan.steps) {
    if (step.step == 2 && step.kind == StepKind::Unshard) step.collective->dims.clear();
  }
  const PlanCheckOutcome outcome = check_placements(plan);
  REQUIRE(outcome.findings.size() == 1);
  CHECK(outcome.findings[0].step == 2);
  CHECK(outcome.findings[0].param == "w");
}

}  // namespace
}  // namespace hpsim
