#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "plan/build_plan.h"
#include "plan/explain.h"
#include "plan/verify_plan.h"
#include "scenario/module_layouts.h"
#include "support/catch.h"
#include "support/scenarios.h"

namespace hpsim {
namespace {

using test::elementwise_model;
using test::finish_scenario;
using test::linear;
using test::modules_model;

using Texts = std::vector<std::string>;

/// tp x ep, the batch split over `data_dims`; a dense parameter and one that ep cuts.
Scenario tp_ep(std::int64_t tp, std::int64_t ep, MeshDims data_dims) {
  Scenario scenario;
  scenario.mesh = Mesh({tp, ep}, {"tp", "ep"});
  scenario.roles.tp_dim = 0;
  scenario.roles.ep_dim = 1;
  scenario.data.data_dims = std::move(data_dims);
  scenario.model = elementwise_model({{"dense", {3, 2}}, {"expert", {4, 3}}});
  scenario.placements = {{Replicate{}, Replicate{}}, {Replicate{}, Shard{0}}};
  scenario.fully_shard.shards_parameters = false;
  scenario.fully_shard.sync_object = SyncObject::Weight;
  finish_scenario(scenario);
  return scenario;
}

/// rep x fsdp without sharding, two linears.
Scenario replicas(std::int64_t rep, std::int64_t fsdp) {
  Scenario scenario =
      test::hsdp_scenario(modules_model({linear("l0", 5, 7), linear("l1", 7, 3)}), rep, fsdp);
  scenario.fully_shard.shards_parameters = false;
  scenario.fully_shard.sync_object = SyncObject::Weight;
  return scenario;
}

/// "average_weights over tp 6 x 0.5" and "scale_gradient x 2" in order.
Texts syncs(const Plan& plan) {
  Texts texts;
  for (const Step& step : plan.steps) {
    std::string text(name_of(step.kind));
    if (step.collective) {
      text += " over " + plan.mesh().names(step.collective->dims) + " " +
              to_string(plan.mesh(), step.collective->elems_in) + " x " +
              std::to_string(step.collective->prescale * step.collective->scale);
      texts.push_back(text);
    } else if (step.kind == StepKind::ScaleGradient) {
      texts.push_back(text + " x " + std::to_string(step.local_scale));
    }
  }
  return texts;
}

Texts kinds(const Plan& plan) {
  Texts texts;
  for (const Step& step : plan.steps)
    texts.emplace_back(name_of(step.kind));
  return texts;
}

TEST_CASE("weights that no step updates are not averaged") {
  // ep cuts the expert: its weights have no copies. The dense one, which has, is never used.
  Scenario scenario = tp_ep(1, 8, {1});
  scenario.data.inactive = {{.first = 0,
                             .end = 1,
                             .data_ranks = {0, 1, 2, 3, 4, 5, 6, 7},
                             .steps = {0},
                             .micro_batches = {0}}};
  const Plan plan = build_plan(scenario);
  const Texts all = kinds(plan);
  CHECK(std::count(all.begin(), all.end(), "average_weights") == 0);
  CHECK_NOTHROW(verify_plan(plan));
}

TEST_CASE("weights are averaged after the optimizer, over the copies that saw other samples") {
  Scenario scenario = tp_ep(1, 8, {1});
  scenario.placements = {};
  scenario.training.steps = 2;
  const Plan plan = build_plan(scenario);
  const Texts one_step = {"forward",        "forward",   "loss",
                          "backward",       "backward",  "scale_gradient",
                          "store_gradient", "optimizer", "average_weights"};
  Texts both = one_step;
  both.insert(both.end(), one_step.begin(), one_step.end());
  CHECK(kinds(plan) == both);
  CHECK(syncs(plan) == Texts{"scale_gradient x 1.000000", "average_weights over ep 18 x 0.125000",
                             "scale_gradient x 1.000000", "average_weights over ep 18 x 0.125000"});
  const Step& average = plan.steps.back();
  CHECK(average.phase == Phase::Optimizer);
  CHECK(average.step == 1);
  CHECK(average.collective->op == CollectiveOp::AllReduce);
  CHECK(average.collective->group_size == 8);
  CHECK(average.why.before == "[Replicate, Partial(avg)]");
  CHECK(average.why.after == "[Replicate, Replicate]");
  CHECK(average.why.rule.find("multi-dim RFC 2.2.4") != std::string::npos);
  (void)verify_plan(plan);
}

TEST_CASE("weights that a step does not update are not averaged in it") {
  // dense has 6 elements, expert 12; dense is frozen in step 0.
  Scenario scenario = tp_ep(1, 8, {1});
  scenario.placements = {};
  scenario.training.steps = 2;
  scenario.training.trained_from = {1, 0};
  const Plan plan = build_plan(scenario);
  CHECK(syncs(plan) == Texts{"scale_gradient x 1.000000", "average_weights over ep 12 x 0.125000",
                             "scale_gradient x 1.000000", "average_weights over ep 18 x 0.125000"});
  (void)verify_plan(plan);
  Plan dropped = plan;
  dropped.steps.pop_back();
  CHECK_THROWS_AS(verify_plan(dropped), PlanRejected);
}

TEST_CASE("what the mean of weights leaves of k/F is applied locally") {
  // 8 data ranks and k = 2: k/F = 1/4. Dense is averaged over all 8, the expert over tp.
  Scenario scenario = tp_ep(2, 4, {0, 1});
  scenario.fully_shard.gradient_scaling_factor = 2;
  const Plan plan = build_plan(scenario);
  CHECK(syncs(plan) == Texts{"scale_gradient x 2.000000", "scale_gradient x 0.500000",
                             "average_weights over tp, ep 6 x 0.125000",
                             "average_weights over tp 3 x 0.500000"});
  (void)verify_plan(plan);

  // In exact mode F is 8 for 6 data ranks. Both are cut over ep, into 1 row of dense and 2, 2 or 0
  // of the expert.
  Scenario exact = tp_ep(2, 3, {0, 1});
  test::make_exact(exact);
  exact.placements[0] = {Replicate{}, Shard{0}};
  const Plan of_exact = build_plan(exact);
  CHECK(syncs(of_exact) ==
        Texts{"scale_gradient x 0.250000", "average_weights over tp (ep: 8, 8, 2) x 0.500000"});
  (void)verify_plan(of_exact);
}

TEST_CASE("along dims with the same samples copies agree by themselves") {
  // Nothing but the gradient's own factor where the batch is split over no dim of the group.
  const Plan same = build_plan(tp_ep(2, 4, {}));
  CHECK(syncs(same) == Texts{"scale_gradient x 1.000000", "scale_gradient x 1.000000"});
  (void)verify_plan(same);
  // The expert is cut along the only dim over which the batch is split.
  const Plan split = build_plan(tp_ep(2, 4, {1}));
  CHECK(syncs(split) == Texts{"scale_gradient x 1.000000", "scale_gradient x 0.250000",
                              "average_weights over ep 6 x 0.250000"});
  (void)verify_plan(split);
  Scenario fsdp_only = replicas(2, 3);
  fsdp_only.data.data_dims = {1};
  const Plan over_fsdp = build_plan(fsdp_only);
  CHECK(syncs(over_fsdp).at(2) == "average_weights over fsdp 42 x 0.333333");
  (void)verify_plan(over_fsdp);
}

TEST_CASE("each unit averages by itself, in the order of the model") {
  const Plan plan = build_plan(replicas(2, 3));
  CHECK(syncs(plan) == Texts{"scale_gradient x 1.000000", "scale_gradient x 1.000000",
                             "average_weights over rep, fsdp 42 x 0.166667",
                             "average_weights over rep, fsdp 24 x 0.166667"});
  CHECK(plan.steps[plan.steps.size() - 2].bucket == 0);
  CHECK(plan.steps.back().bucket == 1);
  (void)verify_plan(plan);
}

TEST_CASE("the local factor is exactly 1 where the mean takes all of F") {
  for (const std::int64_t ranks : {3, 5, 6, 7, 49, 98}) {
    const Plan plan = build_plan(replicas(1, ranks));
    for (const Step& step : plan.steps) {
      if (step.kind == StepKind::ScaleGradient) CHECK(step.local_scale == 1);
    }
  }
}

TEST_CASE("the dims that the scenario tells are those that the plan averages over") {
  Scenario scenario = tp_ep(2, 4, {0, 1});
  CHECK(averaged_dims(scenario).at(0) == MeshDims{0, 1});
  CHECK(averaged_dims(scenario).at(1) == MeshDims{0});
  const Plan plan = build_plan(scenario);
  CHECK(plan.averaged_dims(0) == MeshDims{0, 1});
  CHECK(plan.averaged_dims(1) == MeshDims{0});
  scenario.fully_shard.ignored_params = {1};
  CHECK(averaged_dims(scenario).at(1).empty());
  scenario.fully_shard.sync_object = SyncObject::Grad;
  CHECK(averaged_dims(scenario).at(0).empty());
  CHECK(build_plan(scenario).averaged_dims(0).empty());

  // The domain: dims with a data-parallel role, or all.
  CHECK(fully_shard_domain(scenario) == MeshDims{0, 1});
  scenario.roles.dp_replicate_dim = 1;
  scenario.roles.ep_dim.reset();
  CHECK(fully_shard_domain(scenario) == MeshDims{1});
  CHECK(averaged_dims(tp_ep(1, 1, {0, 1})).at(0).empty());
}

std::vector<FindingCode> codes_after(const std::function<void(Plan&)>& plant) {
  Scenario scenario = replicas(2, 3);
  scenario.training.steps = 2;
  Plan plan = build_plan(scenario);
  plant(plan);
  std::vector<FindingCode> codes;
  try {
    (void)verify_plan(std::move(plan));
  } catch (const PlanRejected& rejected) {
    for (const Finding& finding : rejected.findings())
      codes.push_back(finding.code);
  }
  return codes;
}

/// Position of the first average, of step 0.
std::size_t first_average(const Plan& plan) {
  const auto at = std::find_if(plan.steps.begin(), plan.steps.end(), [](const Step& step) {
    return step.kind == StepKind::AverageWeights;
  });
  return static_cast<std::size_t>(at - plan.steps.begin());
}

Step& average(Plan& plan) {
  return plan.steps.at(first_average(plan));
}

auto begin_at(Plan& plan, std::size_t i) {
  return plan.steps.begin() + static_cast<std::ptrdiff_t>(i);
}

bool has(const std::vector<FindingCode>& codes, FindingCode code) {
  return std::find(codes.begin(), codes.end(), code) != codes.end();
}

TEST_CASE("planted faults of the average: each is refused with its own finding") {
  using Codes = std::vector<FindingCode>;
  constexpr auto kUnreduced = FindingCode::UnreducedPartial;
  CHECK(codes_after([](Plan&) {}).empty());

  // Missing: weight and bias of l0 lack rep and fsdp, and 1/6; then step 1 uses them.
  const Codes missing = codes_after([](Plan& p) { p.steps.erase(begin_at(p, first_average(p))); });
  CHECK(Codes(missing.begin(), missing.begin() + 6) == Codes{kUnreduced, kUnreduced,
                                                             FindingCode::GradScale, kUnreduced,
                                                             kUnreduced, FindingCode::GradScale});
  CHECK(has(missing, FindingCode::CommCount));
  CHECK(has(codes_after([](Plan& p) { p.steps.pop_back(); }), FindingCode::CommCount));

  const Codes doubled = codes_after([](Plan& p) {
    const Step copy = average(p);
    p.steps.insert(begin_at(p, first_average(p)), copy);
  });
  CHECK(has(doubled, FindingCode::DoubleReduced));
  CHECK(has(doubled, FindingCode::CommOrder));

  // Over one of the two dims, with the factor of that group.
  const Codes narrow = codes_after([](Plan& p) {
    average(p).collective->dims = {1};
    average(p).collective->group_size = 3;
    average(p).collective->scale = 1.0 / 3;
  });
  CHECK(std::count(narrow.begin(), narrow.end(), kUnreduced) == 2);
  CHECK(has(narrow, FindingCode::CommGroup));

  // A factor of the average, two parameters: no mean, and not k/F.
  CHECK(codes_after([](Plan& p) { average(p).collective->scale = 1; }) ==
        Codes{FindingCode::ParamValue, FindingCode::ParamValue, FindingCode::GradScale,
              FindingCode::GradScale});
  CHECK(has(codes_after([](Plan& p) { average(p).collective->prescale = 2; }),
            FindingCode::ParamValue));
  // All of k/F locally and nothing in the average: the product is right, the weights six times.
  CHECK(codes_after([](Plan& p) {
          const int bucket = average(p).bucket;
          average(p).collective->scale = 1;
          for (Step& step : p.steps) {
            if (step.kind != StepKind::ScaleGradient || step.bucket != bucket) continue;
            step.local_scale = 1.0 / 6;
            break;
          }
        }) == Codes{FindingCode::ParamValue, FindingCode::ParamValue});
  // k applied twice.
  CHECK(codes_after([](Plan& p) {
          for (Step& step : p.steps) {
            if (step.kind == StepKind::ScaleGradient && step.bucket == 0) step.local_scale = 2;
          }
        }).size() == 4);

  // Before the optimizer, in the first step and in a later one.
  CHECK(codes_after([](Plan& p) {
          const auto at = first_average(p);
          std::swap(p.steps.at(at - 1), p.steps.at(at));
        }).at(0) == FindingCode::CommOrder);
  CHECK(has(codes_after([](Plan& p) {
              const std::size_t at = p.steps.size() - 3;
              REQUIRE(p.steps.at(at).kind == StepKind::Optimizer);
              std::swap(p.steps.at(at), p.steps.at(at + 1));
            }),
            FindingCode::CommOrder));
  // In the next step, after its forward.
  CHECK(has(codes_after([](Plan& p) {
              const auto at = first_average(p);
              std::rotate(begin_at(p, at), begin_at(p, at + 1), begin_at(p, at + 4));
            }),
            FindingCode::CommCount));

  CHECK(has(codes_after([](Plan& p) { average(p).collective->elems_in = 41; }),
            FindingCode::CommShape));
  CHECK(has(codes_after([](Plan& p) { average(p).collective.reset(); }), FindingCode::CommCount));
  // A sum of gradients where the mean of weights should answer, and one besides it.
  const auto reduce_gradients = [](Plan& p) {
    Step step = average(p);
    step.kind = StepKind::AllReduce;
    step.phase = Phase::Backward;
    const auto store = std::find_if(p.steps.begin(), p.steps.end(), [&](const Step& s) {
      return s.kind == StepKind::StoreGradient && s.bucket == step.bucket;
    });
    p.steps.insert(store, step);
  };
  CHECK(has(codes_after([&](Plan& p) {
              reduce_gradients(p);
              p.steps.erase(begin_at(p, first_average(p)));
            }),
            FindingCode::CommGroup));
  CHECK(has(codes_after(reduce_gradients), FindingCode::DoubleReduced));
}

TEST_CASE("explained: what is averaged, what is left of F, and what the weight is in between") {
  Scenario scenario = tp_ep(2, 4, {0, 1});
  const Plan plan = build_plan(scenario);
  const ParameterFacts facts = Explainer(plan).explain(1, {0, 1});
  const auto kind_of = [&](int step) { return plan.steps.at(static_cast<std::size_t>(step)).kind; };

  const GroupFact& unsharded = facts.groups.at(1);
  REQUIRE(unsharded.steps.size() == 1);
  CHECK(kind_of(unsharded.steps[0]) == StepKind::AverageWeights);
  CHECK(unsharded.why.find("sync_object \"weight\"") != std::string::npos);
  CHECK(unsharded.why.find("multi-dim RFC 2.2.4") != std::string::npos);
  CHECK(facts.gradient.at(0).state == GradientState::Partial);
  CHECK(facts.gradient.at(0).steps == unsharded.steps);
  CHECK(facts.gradient.at(1).state == GradientState::Cut);

  CHECK(facts.scale.divisor == 8);
  CHECK(facts.scale.why == "number of data ranks, of which the mean of the weights divides by 2");
  CHECK(kind_of(facts.scale.divisor_step) == StepKind::AverageWeights);
  CHECK(Explainer(plan).explain(0, {0, 0}).scale.why == "number of data ranks");

  // backward, scale, store: Partial throughout; then the weight is, until it is averaged.
  REQUIRE(facts.life.size() == 6);
  const std::vector<Placement> partial_gradient = {Partial{}, Shard{0}};
  const std::vector<Placement> updated = {Partial{ReduceOp::Avg}, Shard{0}};
  const std::vector<Placement> whole = {Replicate{}, Shard{0}};
  CHECK(facts.life[3].is_gradient);
  CHECK(facts.life[3].after == partial_gradient);
  CHECK(facts.life[4].before == whole);
  CHECK(facts.life[4].after == updated);
  CHECK(facts.life[5].before == updated);
  CHECK(facts.life[5].after == whole);
  CHECK(facts.life[5].bytes_before == 12);
  CHECK(facts.life[5].bytes_after == 12);
}

}  // namespace
}  // namespace hpsim
