#include "verify/drift.h"

#include <cmath>
#include <limits>

#include "baseline/eigen_baseline.h"
#include "exec/local.h"
#include "plan/build_plan.h"
#include "plan/verify_plan.h"
#include "planted_run.h"
#include "support/catch.h"
#include "support/scenarios.h"
#include "verify/compare_runs.h"

namespace hpsim::test {
namespace {

TEST_CASE("drift is a distance over a length") {
  // Off by 1 in one of three numbers, whose squares sum to 9 + 25 + 4 = 38.
  const StepDrift one = drift_between({{3, 4}, {2}}, {{3, 5}, {2}});
  CHECK(one.relative == std::sqrt(1.0 / 38));
  CHECK(one.largest == 1);
  CHECK(one.parameter == 0);
  // Off by 1/2 and -3/4, 1/4 + 9/16 = 13/16 over 4 + 16 + 1 = 21.
  const StepDrift two = drift_between({{2.5, 4}, {0.25}}, {{2, 4}, {1}});
  CHECK(two.relative == std::sqrt(13.0 / 16 / 21));
  CHECK(two.largest == 0.75);
  CHECK(two.parameter == 1);
  const StepDrift none = drift_between({{3, 4}, {0}}, {{3, 4}, {0}});
  CHECK(none.relative == 0);
  CHECK(none.largest == 0);
}

TEST_CASE("what is no number, or far from nothing, is infinitely far") {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  CHECK(drift_between({{0.5}}, {{0}}).relative == kInfinity);
  CHECK(drift_between({{0}}, {{0}}).relative == 0);
  const StepDrift lost = drift_between({{1, std::nan("")}, {9}}, {{1, 2}, {3}});
  CHECK(lost.relative == kInfinity);
  CHECK(lost.largest == kInfinity);
  CHECK(lost.parameter == 0);
  // Of two that are lost, whichever way, the first is named.
  CHECK(drift_between({{1}, {kInfinity}, {std::nan("")}}, {{1}, {2}, {3}}).parameter == 1);
  CHECK(drift_between({{1}, {std::nan("")}, {kInfinity}}, {{1}, {2}, {3}}).parameter == 1);
}

TEST_CASE("the drift of a run is that of its parameters after every step") {
  Scenario scenario = hsdp_scenario(
      modules_model({linear("l0", 5, 7), activation("a", ModuleType::Gelu), linear("l1", 7, 3)}), 2,
      3);
  scenario.training.steps = 4;
  scenario.training.optimizer = {.kind = OptimizerSpec::Kind::AdamW, .lr = 0.01};
  const VerifiedPlan plan = verify_plan(build_plan(scenario));
  RunResult run = LocalExecutor().run(plan, {});
  const ReferenceRun reference = run_baseline(scenario, states_before_steps(*plan, run));
  REQUIRE(reference.free_parameters.size() == 4);
  // The free training of a run that holds nothing is the one that steps are judged by.
  CHECK(reference.free_parameters == run_baseline(scenario).free_parameters);

  const Verdict verdict = compare_runs(plan, run, reference);
  CHECK(verdict.passed());
  REQUIRE(verdict.drift.size() == 4);
  for (const StepDrift& drift : verdict.drift) {
    // A float32 cannot hold most of these numbers, so that there is some; four steps of 1e-2 whose
    // gradients are off by some 1e-6 of themselves leave no more than that.
    CHECK(drift.relative > 0);
    CHECK(drift.relative < 1e-5);
  }

  // One element of one step moved by 1/2: that step drifts by it, the others as before.
  auto* const moved = reinterpret_cast<float*>(run.bytes(run.layout().parameter(Rank{0}, 3, 2)));
  moved[0] += 0.5F;
  const std::vector<StepDrift> spoiled = measure_drift(*plan, run, reference);
  CHECK_THAT(spoiled[2].largest, Catch::Matchers::WithinAbs(0.5, 1e-5));
  CHECK(spoiled[2].parameter == 2);
  for (const std::size_t other : {std::size_t{0}, std::size_t{1}, std::size_t{3}})
    CHECK(spoiled[other].relative == verdict.drift[other].relative);
}

TEST_CASE("float64 drifts by as much less as it is finer") {
  Scenario scenario = fsdp_scenario(elementwise_model({{"weight", {7, 8}}}), 4);
  scenario.training.steps = 8;
  const auto drift_in = [&](DType dtype) {
    scenario.numerics.dtype = dtype;
    const VerifiedPlan plan = verify_plan(build_plan(scenario));
    const RunResult run = LocalExecutor().run(plan, {});
    return measure_drift(*plan, run, run_baseline(scenario)).back().relative;
  };
  CHECK(drift_in(DType::Float32) > 1e-9);
  CHECK(drift_in(DType::Float64) < 1e-15);
}

TEST_CASE("exact runs have no drift, nor have references without a free training") {
  Scenario exact = fsdp_scenario(elementwise_model({{"weight", {7, 8}}}), 4);
  make_exact(exact);
  exact.training.steps = 3;
  const VerifiedPlan plan = verify_plan(build_plan(exact));
  const RunResult run = LocalExecutor().run(plan, {});
  ReferenceRun reference = run_baseline(exact);
  CHECK(compare_runs(plan, run, reference).drift.empty());
  for (const StepDrift& drift : measure_drift(*plan, run, reference))
    CHECK(drift.largest == 0);
  reference.free_parameters.clear();
  CHECK(measure_drift(*plan, run, reference).empty());
}

}  // namespace
}  // namespace hpsim::test
