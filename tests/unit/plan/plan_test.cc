#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "plan/build_plan.h"
#include "plan/rank_layout.h"
#include "plan/verify_plan.h"
#include "support/catch.h"
#include "support/scenarios.h"

namespace hpsim {
namespace {

using test::activation;
using test::elementwise_model;
using test::finish_scenario;
using test::fsdp_scenario;
using test::hsdp_scenario;
using test::linear;
using test::modules_model;

Plan plan_of(Scenario scenario) {
  return build_plan(std::move(scenario));
}

/// "all_gather(fsdp) 16->64" of every collective, in order.
std::vector<std::string> collectives(const Plan& plan) {
  std::vector<std::string> result;
  for (const Step& step : plan.steps) {
    if (!step.collective) continue;
    const CollectiveSpec& spec = *step.collective;
    result.push_back(std::string(name_of(spec.op)) + "(" + plan.mesh().names(spec.dims) + ") " +
                     to_string(plan.mesh(), spec.elems_in) + "->" +
                     to_string(plan.mesh(), spec.elems_out));
  }
  return result;
}

std::vector<std::string> kinds(const Plan& plan) {
  std::vector<std::string> result;
  for (const Step& step : plan.steps)
    result.emplace_back(name_of(step.kind));
  return result;
}

using Texts = std::vector<std::string>;

TEST_CASE("FSDP of one uneven parameter: gathered twice, scattered once, scale on the scatter") {
  const Plan plan = plan_of(fsdp_scenario(elementwise_model({{"weight", {7, 8}}}), 4));
  const PlannedParameter& weight = plan.parameters.at(0);
  CHECK(to_string(weight.sharded) == "[RaggedShard((0,), (2, 2, 2, 1))]");
  CHECK(to_string(weight.unsharded) == "[Replicate]");
  CHECK(padded_shape_at(plan.mesh(), weight, {0}) == Shape{2, 8});
  CHECK(weight.padded_elems == 16);
  CHECK(weight.shard_size() == 4);
  CHECK(weight.dp_size() == 1);
  CHECK(weight.rank_size() == 4);
  CHECK(held_shard(plan.mesh(), weight, {3}).elems == 8);
  CHECK(collectives(plan) ==
        Texts{"all_gather(fsdp) 16->64", "all_gather(fsdp) 16->64", "reduce_scatter(fsdp) 64->16"});
  CHECK(kinds(plan) == Texts{"unshard", "forward", "reshard", "loss", "unshard", "backward",
                             "reshard", "reduce_scatter", "store_gradient", "optimizer"});
  for (const Step& step : plan.steps) {
    CHECK_FALSE(step.why.rule.empty());
    if (step.kind == StepKind::ReduceScatter) {
      CHECK(step.collective->scale == 0.25);
      CHECK(step.why.before == "[Partial(sum)]");
      CHECK(step.why.after == "[RaggedShard((0,), (2, 2, 2, 1))]");
    }
  }
}

TEST_CASE("HSDP: reduce-scatter over shards, then all-reduce of the row over replicas") {
  Scenario scenario = hsdp_scenario(elementwise_model({{"weight", {32, 64}}}), 2, 4);
  scenario.fully_shard.gradient_scaling_factor = 2;
  const Plan plan = plan_of(scenario);
  CHECK(to_string(plan.parameters[0].sharded) == "[Replicate, Shard(0)]");
  CHECK(plan.parameters[0].dp_size() == 2);
  CHECK(plan.parameters[0].rank_size() == 8);
  CHECK(collectives(plan) == Texts{"all_gather(fsdp) 512->2048", "all_gather(fsdp) 512->2048",
                                   "reduce_scatter(fsdp) 2048->512", "all_reduce(rep) 512->512"});
  double total = 1;
  for (const Step& step : plan.steps) {
    if (step.kind == StepKind::ReduceScatter) {
      CHECK(step.collective->prescale == 2);
      CHECK(step.collective->scale == 1);
    }
    if (step.kind == StepKind::AllReduce) {
      CHECK(step.collective->prescale == 1);
      CHECK(step.collective->scale == 0.125);
    }
    if (step.collective) total *= step.collective->prescale * step.collective->scale;
  }
  CHECK(total == 0.25);
}

TEST_CASE("a mesh of one rank sends nothing and scales once, locally") {
  Scenario scenario = fsdp_scenario(elementwise_model({{"w", {5, 3}}}), 1);
  scenario.fully_shard.gradient_divide_factor = 4;
  const Plan plan = plan_of(scenario);
  CHECK(collectives(plan).empty());
  CHECK(kinds(plan) ==
        Texts{"forward", "loss", "backward", "scale_gradient", "store_gradient", "optimizer"});
  CHECK(plan.steps[3].local_scale == 0.25);
  CHECK(to_string(plan.parameters[0].sharded) == "[Shard(0)]");
}

TEST_CASE("shard size 1: all-reduce only") {
  const Plan plan = plan_of(hsdp_scenario(elementwise_model({{"w", {5, 3}}}), 8, 1));
  CHECK(collectives(plan) == Texts{"all_reduce(rep) 15->15"});
}

TEST_CASE("replica size 1: reduce-scatter carries the scale") {
  const Plan plan = plan_of(hsdp_scenario(elementwise_model({{"w", {8, 3}}}), 1, 4));
  CHECK(collectives(plan) ==
        Texts{"all_gather(fsdp) 6->24", "all_gather(fsdp) 6->24", "reduce_scatter(fsdp) 24->6"});
}

TEST_CASE("nothing cut: one all-reduce over the whole domain") {
  Scenario scenario = hsdp_scenario(elementwise_model({{"w", {5, 3}}}), 2, 2);
  scenario.fully_shard.shards_parameters = false;
  const Plan plan = plan_of(scenario);
  CHECK(collectives(plan) == Texts{"all_reduce(rep, fsdp) 15->15"});
  CHECK(plan.parameters[0].shard_size() == 1);
  CHECK(plan.parameters[0].dp_size() == 4);
}

TEST_CASE("a replicated member of a unit has a bucket of its own") {
  Scenario scenario = hsdp_scenario(modules_model({linear("l0", 6, 5)}), 2, 2);
  scenario.fully_shard.replicate_params = {1};
  const Plan plan = plan_of(scenario);
  REQUIRE(plan.buckets.size() == 2);
  CHECK(collectives(plan) == Texts{"all_gather(fsdp) 18->36", "all_gather(fsdp) 18->36",
                                   "reduce_scatter(fsdp) 36->18", "all_reduce(rep) 18->18",
                                   "all_reduce(rep, fsdp) 5->5"});
}

TEST_CASE("parameters of a unit are fused, slots end to end by padded size") {
  Scenario scenario = fsdp_scenario(elementwise_model({{"a", {7, 8}}, {"b", {5, 3}}}), 4);
  const Plan plan = plan_of(scenario);
  REQUIRE(plan.buckets.size() == 1);
  CHECK(plan.buckets[0].row_elems == 22);
  CHECK(plan.parameters[0].offset_elems == 0);
  CHECK(plan.parameters[1].offset_elems == 16);
  CHECK(collectives(plan) ==
        Texts{"all_gather(fsdp) 22->88", "all_gather(fsdp) 22->88", "reduce_scatter(fsdp) 88->22"});
}

TEST_CASE("units are gathered one by one; without reshard after forward once per step") {
  Scenario scenario = fsdp_scenario(
      modules_model({linear("l0", 4, 4), activation("a0", ModuleType::Relu), linear("l1", 4, 2)}),
      2);
  scenario.training.steps = 2;
  const Plan resharding = plan_of(scenario);
  const auto count = [](const Plan& plan, StepKind kind) {
    return std::count_if(plan.steps.begin(), plan.steps.end(),
                         [&](const Step& step) { return step.kind == kind; });
  };
  CHECK(count(resharding, StepKind::Unshard) == 2 * 2 * 2);
  CHECK(count(resharding, StepKind::ReduceScatter) == 2 * 2);
  scenario.fully_shard.reshard_after_forward = false;
  CHECK(count(plan_of(scenario), StepKind::Unshard) == 2 * 2);
}

TEST_CASE("the root unit is gathered first, freed and reduced last") {
  Scenario scenario =
      fsdp_scenario(modules_model({linear("l0", 4, 4), linear("l1", 4, 4), linear("l2", 4, 4)}), 2);
  scenario.units = assign_units(scenario.model, scenario.parameters, {"l1"}, true);
  const Plan plan = plan_of(scenario);
  std::vector<std::string> events;
  for (const Step& step : plan.steps) {
    if (step.bucket < 0 || step.kind == StepKind::StoreGradient) continue;
    const auto unit =
        static_cast<std::size_t>(plan.buckets[static_cast<std::size_t>(step.bucket)].unit);
    events.push_back(std::string(name_of(step.kind)) + " " + plan.scenario.units[unit].name);
  }
  CHECK(events == Texts{"unshard (root)", "unshard l1", "reshard l1", "reshard (root)",
                        "unshard (root)", "unshard l1", "reshard l1", "reduce_scatter l1",
                        "reshard (root)", "reduce_scatter (root)"});
}

TEST_CASE("reductions follow the data: along a dim that does not split it nothing is sent") {
  Scenario scenario = hsdp_scenario(elementwise_model({{"w", {8, 2}}}), 2, 4);
  scenario.data.data_dims = {1};
  CHECK(collectives(plan_of(scenario)).back() == "reduce_scatter(fsdp) 16->4");
  scenario.data.data_dims = {0};
  CHECK(collectives(plan_of(scenario)).back() == "all_reduce(rep) 4->4");
  scenario.data.data_dims = {};
  CHECK(collectives(plan_of(scenario)).back() == "all_gather(fsdp) 4->16");
}

TEST_CASE("a dim without a role that splits the data is reduced last in each unit") {
  Scenario scenario = fsdp_scenario(modules_model({linear("l0", 4, 4), linear("l1", 4, 4)}), 2);
  scenario.mesh = Mesh({2, 2}, {"fsdp", "x"});
  scenario.data.data_dims = {0, 1};
  scenario.training.global_batch = 0;
  finish_scenario(scenario);
  const Plan plan = plan_of(scenario);
  const Texts all = collectives(plan);
  const Texts backward(all.end() - 6, all.end());
  CHECK(backward == Texts{"all_gather(fsdp) 10->20", "reduce_scatter(fsdp) 20->10",
                          "all_reduce(x) 10->10", "all_gather(fsdp) 10->20",
                          "reduce_scatter(fsdp) 20->10", "all_reduce(x) 10->10"});
  CHECK(plan.parameters[0].partial_group.size == 2);
}

TEST_CASE("a mesh without any role keeps copies on all ranks") {
  Scenario scenario = fsdp_scenario(elementwise_model({{"w", {3}}}), 4);
  scenario.roles = {};
  scenario.fully_shard.shards_parameters = false;
  const Plan plan = plan_of(scenario);
  CHECK(plan.parameters[0].unsharded_group.size == 4);
  CHECK(collectives(plan) == Texts{"all_reduce(fsdp) 3->3"});
}

TEST_CASE("plans of all kinds are verified, and every check looked at something") {
  std::vector<Scenario> scenarios = {
      fsdp_scenario(elementwise_model({{"a", {7, 8}}, {"b", {5, 3}}}), 4),
      hsdp_scenario(modules_model({linear("l0", 6, 5), linear("l1", 5, 3)}), 2, 2),
      fsdp_scenario(elementwise_model({{"w", {1}}}), 1)};
  for (Scenario& scenario : scenarios) {
    const VerifiedPlan plan = verify_plan(plan_of(scenario));
    CHECK(plan.checks().results.size() == 4);
    for (const CheckResult& result : plan.checks().results) {
      CHECK(result.passed);
      CHECK(result.compared > 0);
    }
  }
}

/// The codes of the findings that `plant` causes in a plan that was right before.
std::vector<FindingCode> codes_after(Scenario scenario, const std::function<void(Plan&)>& plant) {
  Plan plan = plan_of(std::move(scenario));
  plant(plan);
  try {
    (void)verify_plan(std::move(plan));
  } catch (const PlanRejected& rejected) {
    std::vector<FindingCode> codes;
    for (const Finding& finding : rejected.findings())
      codes.push_back(finding.code);
    CHECK(std::any_of(rejected.checks().results.begin(), rejected.checks().results.end(),
                      [](const CheckResult& result) { return !result.passed; }));
    return codes;
  }
  return {};
}

void erase(Plan& plan, StepKind kind) {
  const auto it = std::find_if(plan.steps.begin(), plan.steps.end(),
                               [&](const Step& step) { return step.kind == kind; });
  REQUIRE(it != plan.steps.end());
  plan.steps.erase(it);
}

Step& first(Plan& plan, StepKind kind) {
  const auto it = std::find_if(plan.steps.begin(), plan.steps.end(),
                               [&](const Step& step) { return step.kind == kind; });
  REQUIRE(it != plan.steps.end());
  return *it;
}

bool has(const std::vector<FindingCode>& codes, FindingCode code) {
  return std::find(codes.begin(), codes.end(), code) != codes.end();
}

TEST_CASE("planted faults: each is refused with its own finding") {
  const Scenario hsdp = hsdp_scenario(elementwise_model({{"a", {7, 8}}, {"b", {5, 3}}}), 2, 4);
  using Codes = std::vector<FindingCode>;
  const auto after = [&](const std::function<void(Plan&)>& plant) {
    return codes_after(hsdp, plant);
  };
  CHECK(after([](Plan&) {}).empty());

  // Both parameters of the bucket lack their replica sum, and the scale that it carried.
  CHECK(after([](Plan& p) { erase(p, StepKind::AllReduce); }) ==
        Codes{FindingCode::UnreducedPartial, FindingCode::GradScale, FindingCode::UnreducedPartial,
              FindingCode::GradScale});
  CHECK(has(after([](Plan& p) { erase(p, StepKind::ReduceScatter); }),
            FindingCode::UnreducedPartial));
  CHECK(has(after([](Plan& p) {
              const auto step = first(p, StepKind::AllReduce);
              const auto at = std::find_if(p.steps.begin(), p.steps.end(), [](const Step& s) {
                return s.kind == StepKind::AllReduce;
              });
              p.steps.insert(at, step);
            }),
            FindingCode::DoubleReduced));
  CHECK(has(after([](Plan& p) {
              std::iter_swap(
                  std::find_if(p.steps.begin(), p.steps.end(),
                               [](const Step& s) { return s.kind == StepKind::AllReduce; }),
                  std::find_if(p.steps.begin(), p.steps.end(),
                               [](const Step& s) { return s.kind == StepKind::ReduceScatter; }));
            }),
            FindingCode::CommOrder));
  CHECK(after([](Plan& p) { first(p, StepKind::ReduceScatter).collective->scale = 0.125; }) ==
        Codes{FindingCode::GradScale, FindingCode::GradScale});
  CHECK(has(after([](Plan& p) { first(p, StepKind::AllReduce).collective->dims = {1}; }),
            FindingCode::CommGroup));
  CHECK(has(after([](Plan& p) { first(p, StepKind::Unshard).collective->elems_in = 1; }),
            FindingCode::CommShape));
  CHECK(has(after([](Plan& p) { first(p, StepKind::Unshard).collective->dtype = DType::Float64; }),
            FindingCode::CommDtype));
  CHECK(has(after([](Plan& p) { erase(p, StepKind::Unshard); }), FindingCode::CommOrder));
  CHECK(has(after([](Plan& p) { erase(p, StepKind::Reshard); }), FindingCode::CommOrder));
  CHECK(has(after([](Plan& p) { erase(p, StepKind::StoreGradient); }), FindingCode::CommCount));
  CHECK(has(after([](Plan& p) { first(p, StepKind::Unshard).collective.reset(); }),
            FindingCode::CommCount));
  CHECK(after([](Plan& p) { p.parameters[1].offset_elems = 14; }) ==
        Codes{FindingCode::OffsetWrong, FindingCode::OffsetWrong});
  CHECK(has(after([](Plan& p) {
              p.parameters[0].sharded[1] = RaggedShard{{0}, {2, 2, 1, 2}};
            }),
            FindingCode::OffsetWrong));
  CHECK(has(after([](Plan& p) { p.parameters[0].unsharded[1] = Shard{0}; }),
            FindingCode::OffsetWrong));
  CHECK(has(after([](Plan& p) { p.parameters[0].unsharded[0] = Shard{0}; }),
            FindingCode::OffsetWrong));
  CHECK(has(after([](Plan& p) { std::swap(p.steps.front(), p.steps.at(1)); }),
            FindingCode::CommOrder));
}

}  // namespace
}  // namespace hpsim
