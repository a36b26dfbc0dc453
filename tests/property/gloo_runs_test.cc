#include <algorithm>
#include <iostream>
#include <optional>

#include "base/error.h"
#include "baseline/eigen_baseline.h"
#include "exec/executor.h"
#include "exec/local.h"
#include "narrow_runs.h"
#include "plan/build_plan.h"
#include "plan/verify_plan.h"
#include "random_scenario.h"
#include "saved_if_failing.h"
#include "scenario/parse.h"
#include "support/catch.h"
#include "verify/compare_runs.h"

namespace hpsim::test {
namespace {

/// Whether every recorded tensor of two runs has the same bits.
bool have_equal_tensors(const VerifiedPlan& plan, const RunResult& a, const RunResult& b) {
  const auto equal = [](const TensorView& x, const TensorView& y) {
    for (std::int64_t i = 0; i < x.elems; ++i) {
      if (x.at(i) != y.at(i)) return false;
    }
    return x.elems == y.elems;
  };
  for (const Rank rank : a.layout().recording()) {
    for (int p = 0; p < static_cast<int>(plan->parameters.size()); ++p) {
      for (std::int64_t t = 0; t < plan->scenario.training.steps; ++t) {
        if (!equal(a.gradient(rank, t, p), b.gradient(rank, t, p))) return false;
        if (!equal(a.parameter(rank, t + 1, p), b.parameter(rank, t + 1, p))) return false;
      }
    }
  }
  return true;
}

TEST_CASE("random scenarios pass on gloo, bit for bit as on local") {
  const std::uint64_t seed = property_seed() + 1;
  const int count = property_count(20);
  std::cout << "seed " << seed << ", " << count << " scenarios\n";
  Dice dice(seed);
  int num_compared = 0;
  NarrowRuns narrow;
  for (int i = 0; i < count; ++i) {
    SavedIfFailing text(random_scenario(dice), i, seed);
    INFO("scenario " << i << " of seed " << seed << ", saved as " << text.file());
    const VerifiedPlan plan = verify_plan(build_plan(parse_scenario(text.json(), text.file())));
    const RunResult gloo = make_executor(Backend::Gloo)->run(plan, {});
    text.expect(have_equal_tensors(plan, gloo, LocalExecutor().run(plan, {})));
    ReferenceRun reference;
    try {
      reference = run_baseline(plan->scenario, states_before_steps(*plan, gloo));
    } catch (const Error&) {
      // Exact mode refuses numbers that grow out of the dtype.
      if (!plan->scenario.is_exact()) throw;
      continue;
    }
    ++num_compared;
    const Verdict verdict = compare_runs(plan, gloo, reference);
    std::string messages;
    for (const Finding& finding : verdict.findings)
      messages += std::string(name_of(finding.code)) + " " + finding.message + "\n";
    INFO(messages);
    text.expect(narrow.accepts(plan, verdict));
  }
  narrow.check(0);
  CHECK(num_compared * 2 > count);
}

TEST_CASE("units that gloo gathers ahead give the bits that local gives without") {
  const std::uint64_t seed = property_seed() + 15;
  Dice dice(seed);
  int num_ahead = 0;
  for (int i = 0; i < property_count(8); ++i) {
    const SavedIfFailing text(random_scenario(dice), i, seed);
    INFO("scenario " << i << " of seed " << seed << ", saved as " << text.file());
    Scenario scenario = parse_scenario(text.json(), text.file());
    scenario.fully_shard.forward_prefetch = scenario.fully_shard.backward_prefetch = 0;
    const VerifiedPlan without = verify_plan(build_plan(scenario));
    const RunResult expected = LocalExecutor().run(without, {});
    scenario.fully_shard.forward_prefetch = 1 + dice.below(3);
    scenario.fully_shard.backward_prefetch = 1 + dice.below(3);
    const VerifiedPlan plan = verify_plan(build_plan(scenario));
    num_ahead += std::any_of(plan->steps.begin(), plan->steps.end(),
                             [](const Step& step) { return step.is_async; });
    REQUIRE(have_equal_tensors(plan, make_executor(Backend::Gloo)->run(plan, {}), expected));
  }
  CHECK(num_ahead > 0);
}

}  // namespace
}  // namespace hpsim::test
