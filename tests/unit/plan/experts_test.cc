// Experts: where their positions go, and what is sent for it.

#include <algorithm>
#include <string>

#include "plan/build_plan.h"
#include "plan/passes/passes.h"
#include "plan/token_exchange.h"
#include "plan/verify_plan.h"
#include "support/catch.h"
#include "unit/plan/activation_scenarios.h"

namespace hpsim {
namespace {

using test::scenario_of;
using test::told_steps;
using Counts = std::vector<std::int64_t>;
using Texts = std::vector<std::string>;
using Codes = std::vector<FindingCode>;

/// Four experts, two per position; samples of 3 positions, two on each data rank. A norm before
/// them, so that their input has a gradient.
test::ActivationCase experts_case(const std::string& shape, const std::string& names,
                                  const std::string& more) {
  return {shape,
          names,
          {R"({"name": "norm", "type": "rms_norm", "dim": 8})",
           R"({"name": "moe", "type": "moe", "dim": 8, "hidden": 6, "experts": 4, "top_k": 2})"},
          R"("fully_shard": {"units": []}, )" + more};
}

Plan plan_of(const std::string& shape, const std::string& names, const std::string& more) {
  return build_plan(scenario_of(experts_case(shape, names, more)));
}

const char* const kExpert = R"("data": {"sample_shape": [3, 8]}, "parallelize": {"moe": "expert"})";

/// Number of the experts module.
constexpr int kExperts = 2;

Plan split_over_ep() {
  return plan_of("2, 2", R"("fsdp", "ep")", kExpert);
}

TEST_CASE("balanced routing: what does not divide goes round") {
  CHECK(balanced_counts(10, 4, 0) == Counts{3, 3, 2, 2});
  CHECK(balanced_counts(10, 4, 1) == Counts{2, 2, 3, 3});
  CHECK(balanced_counts(10, 4, 2) == Counts{3, 3, 2, 2});
  CHECK(balanced_counts(1, 3, 0) == Counts{1, 0, 0});
  CHECK(balanced_counts(1, 3, 2) == Counts{0, 0, 1});
  CHECK(balanced_counts(8, 4, 5) == Counts{2, 2, 2, 2});
  CHECK(balanced_counts(0, 3, 1) == Counts{0, 0, 0});
  CHECK(balanced_counts(1, 1, 7) == Counts{1});
  // All members together are balanced, too.
  for (std::int64_t routed = 0; routed < 12; ++routed) {
    Counts sums(5, 0);
    for (std::int64_t member = 0; member < 4; ++member) {
      const RoutedCounts counts = balanced_counts(routed, 5, member);
      for (std::size_t expert = 0; expert < 5; ++expert)
        sums[expert] += counts[expert];
    }
    const auto [least, most] = std::minmax_element(sums.begin(), sums.end());
    CHECK(*most - *least <= 1);
  }
}

TEST_CASE("experts cut over a dim that splits the batch exchange positions") {
  const Plan plan = split_over_ep();
  CHECK(exchange_dims(plan, kExperts) == MeshDims{1});
  CHECK(experts_at(plan, kExperts, {0, 0}) == Interval{0, 2});
  CHECK(experts_at(plan, kExperts, {1, 1}) == Interval{2, 4});
  CHECK(reached_experts(plan, kExperts, {1, 0}) == std::vector<Interval>{{0, 2}, {2, 4}});
  CHECK(num_routed_rows(plan, kExperts, {0, 1}) == 2 * 3);
  const auto& layout = plan.modules[kExperts].layout;
  CHECK(to_string(layout.output) == "[Shard(0), Shard(0)]");
  CHECK(to_string(layout.input_gradients[0]) == "[Shard(0), Shard(0)]");
  CHECK_NOTHROW(verify_plan(plan));
}

TEST_CASE("the steps of an exchange, and its transposed in backward") {
  const Plan plan = split_over_ep();
  CHECK(told_steps(plan) == Texts{"unshard (root)",
                                  "forward norm",
                                  "forward moe.router",
                                  "route moe.experts",
                                  "dispatch moe.experts",
                                  "forward moe.experts",
                                  "combine moe.experts",
                                  "reshard (root)",
                                  "loss",
                                  "unshard (root)",
                                  "dispatch moe.experts",
                                  "backward moe.experts",
                                  "combine moe.experts",
                                  "backward moe.router",
                                  "backward norm",
                                  "reshard (root)",
                                  "reduce_scatter (root)",
                                  "all_reduce (root)",
                                  "store_gradient (root)",
                                  "optimizer"});
}

TEST_CASE("gradients that only serve the model's input are not sent back") {
  test::ActivationCase test = experts_case("2", R"("ep")", kExpert);
  test.modules.erase(test.modules.begin());
  const Plan plan = build_plan(scenario_of(test));
  const Texts steps = told_steps(plan);
  CHECK(std::count(steps.begin(), steps.end(), "dispatch moe.experts") == 2);
  CHECK(std::count(steps.begin(), steps.end(), "combine moe.experts") == 1);
  CHECK_NOTHROW(verify_plan(plan));
}

TEST_CASE("what is sent: counts for the experts of each member, then positions of 8 features") {
  const Plan plan = split_over_ep();
  const auto counts = token_collective(plan, kExperts, StepKind::Route);
  REQUIRE(counts);
  CHECK(counts->op == CollectiveOp::AllToAll);
  CHECK(counts->dims == MeshDims{1});
  CHECK(counts->dtype == DType::Int64);
  CHECK(counts->elems_in == PerCoordinate(2 * 2));
  CHECK_FALSE(counts->is_routed);
  // 6 positions go to two experts each: three to each of four experts, from each of two ranks.
  for (const StepKind kind : {StepKind::Dispatch, StepKind::Combine}) {
    const auto tokens = token_collective(plan, kExperts, kind);
    REQUIRE(tokens);
    CHECK(tokens->is_routed);
    CHECK(tokens->dtype == DType::Float32);
    for (const Coordinate& coordinate : {Coordinate{0, 0}, Coordinate{1, 1}}) {
      CHECK(tokens->elems_in.at(plan.mesh(), coordinate) == 12 * 8);
      CHECK(tokens->elems_out.at(plan.mesh(), coordinate) == 12 * 8);
    }
  }
}

TEST_CASE("uneven counts: what a rank sends to each member, and gets from each") {
  const Plan plan = split_over_ep();
  // Ranks of ep 0 route to experts 0, 1, 2, 3, those of ep 1 never to expert 0.
  const Routing routing = [](const Coordinate& at, std::int64_t step, int index) {
    CHECK(step == 5);
    CHECK(index == 0);
    return at[1] == 0 ? RoutedCounts{5, 1, 0, 6} : RoutedCounts{0, 2, 10, 0};
  };
  const TokenCounts first = token_counts(plan, kExperts, 5, {1, 0}, routing);
  CHECK(first.sent == Counts{6, 6});
  CHECK(first.received == Counts{6, 2});
  CHECK(first.num_received() == 8);
  const TokenCounts second = token_counts(plan, kExperts, 5, {1, 1}, routing);
  CHECK(second.sent == Counts{2, 10});
  CHECK(second.received == Counts{6, 10});
  Step step;
  step.step = 5;
  step.module = kExperts;
  step.kind = StepKind::Dispatch;
  CHECK(routed_elems(plan, step, {0, 1}, routing).in == 12 * 8);
  CHECK(routed_elems(plan, step, {0, 1}, routing).out == 16 * 8);
  step.kind = StepKind::Combine;
  CHECK(routed_elems(plan, step, {0, 1}, routing).in == 16 * 8);
}

TEST_CASE("ranks with the same samples compute terms, each of its own experts") {
  const Plan plan = plan_of("2, 2", R"("fsdp", "ep")",
                            R"("data": {"sample_shape": [3, 8], "data_dims": ["fsdp"]},
                 "parallelize": {"moe": "expert"})");
  CHECK(exchange_dims(plan, kExperts).empty());
  CHECK(reached_experts(plan, kExperts, {0, 1}) == std::vector<Interval>{{2, 4}});
  const auto& layout = plan.modules[kExperts].layout;
  CHECK(to_string(layout.output) == "[Shard(0), Partial(sum)]");
  CHECK(to_string(layout.input_gradients[1]) == "[Shard(0), Partial(sum)]");
  CHECK_FALSE(token_collective(plan, kExperts, StepKind::Route));
  const Routing routing = balanced_routing(plan);
  CHECK(token_counts(plan, kExperts, 0, {0, 1}, routing).sent == Counts{6});
  CHECK(token_counts(plan, kExperts, 0, {0, 1}, routing).received == Counts{6});
  CHECK_NOTHROW(verify_plan(plan));
}

TEST_CASE("experts cut inside compute terms, next to an exchange over another dim") {
  const Plan plan = plan_of("2, 2", R"("ep", "tp")", std::string(kExpert) + R"x(, "placements": {
                              "moe.experts.w1": {"tp": "Shard(1)"},
                              "moe.experts.w3": {"tp": "Shard(1)"},
                              "moe.experts.w2": {"tp": "Shard(2)"}})x");
  CHECK(exchange_dims(plan, kExperts) == MeshDims{0});
  CHECK(to_string(plan.modules[kExperts].layout.output) == "[Shard(0), Partial(sum)]");
  CHECK(experts_at(plan, kExperts, {1, 1}) == Interval{2, 4});
  CHECK_NOTHROW(verify_plan(plan));
}

TEST_CASE("experts over two dims, one of which splits the batch: members hold runs of their own") {
  const Plan plan = plan_of("2, 2", R"("ep", "tp")", std::string(kExpert) + R"x(, "placements": {
                              "moe.experts.*": {"tp": "Shard(0)"}})x");
  // ep is the outer cut.
  CHECK(exchange_dims(plan, kExperts) == MeshDims{0});
  CHECK(reached_experts(plan, kExperts, {1, 0}) == std::vector<Interval>{{0, 1}, {2, 3}});
  CHECK(reached_experts(plan, kExperts, {1, 1}) == std::vector<Interval>{{1, 2}, {3, 4}});
  CHECK(to_string(plan.modules[kExperts].layout.output) == "[Shard(0), Partial(sum)]");
  CHECK_NOTHROW(verify_plan(plan));
}

TEST_CASE("gradients of experts need no sum over ep, those of the router and of norms do") {
  const Plan plan = split_over_ep();
  for (const PlannedParameter& parameter : plan.parameters) {
    CAPTURE(parameter.name);
    const bool is_expert = parameter.name.find("experts") != std::string::npos;
    CHECK(parameter.partial_dims == (is_expert ? MeshDims{0} : MeshDims{0, 1}));
    CHECK(parameter.partial_group.size == (is_expert ? 1 : 2));
  }
}

Codes codes_of(const Plan& plan) {
  try {
    static_cast<void>(verify_plan(plan));
  } catch (const PlanRejected& rejected) {
    Codes codes;
    for (const Finding& finding : rejected.findings())
      codes.push_back(finding.code);
    return codes;
  }
  return {};
}

std::ptrdiff_t find(const Plan& plan, StepKind kind, Phase phase) {
  const auto found = std::find_if(plan.steps.begin(), plan.steps.end(), [&](const Step& step) {
    return step.kind == kind && step.phase == phase;
  });
  REQUIRE(found != plan.steps.end());
  return found - plan.steps.begin();
}

TEST_CASE("planted: a step of the exchange is missing, comes twice, or in another order") {
  const std::pair<StepKind, Phase> steps[] = {{StepKind::Route, Phase::Forward},
                                              {StepKind::Dispatch, Phase::Forward},
                                              {StepKind::Combine, Phase::Forward},
                                              {StepKind::Dispatch, Phase::Backward},
                                              {StepKind::Combine, Phase::Backward}};
  for (const auto& [kind, phase] : steps) {
    CAPTURE(name_of(kind), name_of(phase));
    Plan without = split_over_ep();
    without.steps.erase(without.steps.begin() + find(without, kind, phase));
    CHECK_FALSE(codes_of(without).empty());
    Plan twice = split_over_ep();
    const std::ptrdiff_t at = find(twice, kind, phase);
    const Step copy = twice.steps[static_cast<std::size_t>(at)];
    twice.steps.insert(twice.steps.begin() + at, copy);
    CHECK_FALSE(codes_of(twice).empty());
  }
  Plan last_missing = split_over_ep();
  last_missing.steps.erase(last_missing.steps.begin() +
                           find(last_missing, StepKind::Combine, Phase::Backward));
  CHECK(codes_of(last_missing) == Codes{FindingCode::CommCount});
}

TEST_CASE("planted: an exchange over other ranks, or of other sizes, than the experts need") {
  Plan plan = split_over_ep();
  plan.steps[static_cast<std::size_t>(find(plan, StepKind::Dispatch, Phase::Forward))]
      .collective->dims = {0};
  CHECK(codes_of(plan) == Codes{FindingCode::CommGroup});
  plan = split_over_ep();
  plan.steps[static_cast<std::size_t>(find(plan, StepKind::Route, Phase::Forward))]
      .collective->elems_in = 3;
  CHECK(codes_of(plan) == Codes{FindingCode::CommShape});
  plan = split_over_ep();
  plan.steps[static_cast<std::size_t>(find(plan, StepKind::Combine, Phase::Backward))]
      .collective.reset();
  CHECK(codes_of(plan) == Codes{FindingCode::CommCount});
}

TEST_CASE("planted: gradients of experts summed over ep, or of the router not") {
  const auto with_partial = [](const std::string& name, const MeshDims& dims, bool is_group) {
    Scenario scenario = scenario_of(experts_case("2, 2", R"("fsdp", "ep")", kExpert));
    Plan plan;
    plan.scenario = std::move(scenario);
    plan = lay_out_parameters(lay_out_activations(std::move(plan)));
    for (PlannedParameter& parameter : plan.parameters) {
      if (parameter.name != name) continue;
      parameter.partial_dims = dims;
      parameter.partial_group = is_group ? GroupInfo{{1}, 2} : GroupInfo{{}, 1};
    }
    return codes_of(
        insert_weight_sync(insert_reductions(schedule_compute(form_buckets(std::move(plan))))));
  };
  // What is cut over ep holds different parts there.
  CHECK(with_partial("moe.experts.w1", {0, 1}, true) ==
        Codes{FindingCode::DoubleReduced, FindingCode::CommGroup});
  CHECK(with_partial("moe.router.weight", {0}, false) == Codes{FindingCode::UnreducedPartial});
}

}  // namespace
}  // namespace hpsim
