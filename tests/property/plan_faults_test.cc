// Faults of plans in scenarios that nobody thought of: alone they are found by a check of their
// own, and verify_plan never fails otherwise. Two that it does not find make up for one another:
// the plan computes what one process computes.

#include <iostream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "baseline/eigen_baseline.h"
#include "exec/local.h"
#include "narrow_runs.h"
#include "plan/build_plan.h"
#include "plan/faults/plan_faults.h"
#include "plan/verify_plan.h"
#include "random_experts.h"
#include "random_scenario.h"
#include "random_transformer.h"
#include "saved_if_failing.h"
#include "scenario/parse.h"
#include "support/catch.h"
#include "support/planted_plans.h"
#include "verify/compare_runs.h"

namespace hpsim::test {
namespace {

constexpr int kScenarioCount = 200;
/// Pairs of faults per scenario.
constexpr int kPairs = 60;

/// Whether a plan that verify_plan accepts computes what the baseline does. Runs in dtypes of 16
/// bits may say that bounds are too wide to tell, and the baseline that it refuses a scenario.
bool is_as_one_process(Plan plan, const std::vector<FaultSpec>& faults) {
  plan.scenario.faults = faults;
  const VerifiedPlan verified = verify_plan(plant_plan_faults(std::move(plan)));
  const RunResult run = LocalExecutor().run(verified, {});
  ReferenceRun reference;
  try {
    reference = run_baseline(verified->scenario, states_before_steps(*verified, run));
  } catch (const Error& refused) {
    return refused.kind() == ErrorKind::InvalidScenario;
  }
  return NarrowRuns().accepts(verified, compare_runs(verified, run, reference));
}

/// Plants faults in one plan after the other, and counts places.
class Trials {
 public:
  bool take(const Plan& plan, Dice& dice) {
    bool is_right = true;
    for (const std::string& name : faults_)
      is_right = take_alone(plan, name) && is_right;
    for (int i = 0; i < kPairs; ++i)
      is_right = take_pair(plan, pick(dice), pick(dice)) && is_right;
    return is_right;
  }

  void check(int least) const {
    for (const std::string& name : faults_) {
      CAPTURE(name);
      const auto found = places_.find(name);
      CHECK(found != places_.end());
      if (found != places_.end()) CHECK(found->second >= least);
    }
    std::cout << num_pairs_ << " pairs planted, of which " << num_accepted_
              << " make up for one another\n";
    CHECK(num_accepted_ * 20 < num_pairs_);
  }

 private:
  [[nodiscard]] const std::string& pick(Dice& dice) const {
    return faults_[static_cast<std::size_t>(dice.below(static_cast<std::int64_t>(faults_.size())))];
  }

  bool take_alone(const Plan& plan, const std::string& name) {
    const Planted planted = plant(plan, {unaimed(name)});
    CAPTURE(name);
    INFO(planted.told());
    const bool is_right =
        planted.failure.empty() && (!planted.has_place || !planted.of(name).empty());
    CHECK(is_right);
    places_[name] += planted.has_place ? 1 : 0;
    return is_right;
  }

  bool take_pair(const Plan& plan, const std::string& a, const std::string& b) {
    if (a == b) return true;
    const std::vector<FaultSpec> faults = {unaimed(a), unaimed(b, 1)};
    const Planted planted = plant(plan, faults);
    CAPTURE(a, b);
    INFO(planted.told());
    const bool is_accepted = planted.has_place && !planted.is_rejected;
    const bool is_right =
        planted.failure.empty() && (!is_accepted || is_as_one_process(plan, faults));
    CHECK(is_right);
    num_pairs_ += planted.has_place ? 1 : 0;
    num_accepted_ += is_accepted ? 1 : 0;
    return is_right;
  }

  std::vector<std::string> faults_ = plan_faults();
  std::map<std::string, int> places_;
  int num_pairs_ = 0;
  int num_accepted_ = 0;
};

TEST_CASE("faults of plans are found in random scenarios, alone and two at a time") {
  const std::uint64_t seed = property_seed() + 7;
  const int count = property_count(kScenarioCount);
  Dice dice(seed);
  Trials trials;
  for (int i = 0; i < count; ++i) {
    SavedIfFailing text(i % 3 == 0   ? random_scenario(dice)
                        : i % 3 == 1 ? random_transformer(dice)
                                     : random_experts(dice),
                        i, seed);
    INFO("scenario " << i << " of seed " << seed << ", saved as " << text.file());
    text.expect(trials.take(build_plan(parse_scenario(text.json(), text.file())), dice));
  }
  if (count >= kScenarioCount) trials.check(1);
}

}  // namespace
}  // namespace hpsim::test
