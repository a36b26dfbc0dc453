#include "plan/faults/executed_plan.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "plan/faults/plan_faults.h"
#include "scenario/fault_catalog.h"

namespace hpsim {
namespace {

/// Those of stage Run that are another plan.
std::vector<FaultSpec> other_plans(const Scenario& scenario) {
  std::vector<FaultSpec> faults;
  for (const FaultSpec& fault : scenario.faults) {
    if (fault_kind(fault.name).stage == FaultStage::Run && find_plan_fault(fault.name) != nullptr)
      faults.push_back(fault);
  }
  return faults;
}

}  // namespace

ExecutedPlan::ExecutedPlan(const VerifiedPlan& plan) : verified_(*plan) {
  const std::vector<FaultSpec> faults = other_plans(verified_.scenario);
  if (faults.empty()) return;
  std::vector<Diagnostic> refused;
  for (const FaultSpec& fault : faults) {
    Plan alone = verified_;
    if (!find_plan_fault(fault.name)(alone, fault))
      refused.push_back(no_place_for(fault, verified_.scenario));
  }
  if (!refused.empty()) throw Error(ErrorKind::InvalidScenario, std::move(refused));
  for (std::int64_t rank = 0; rank < verified_.mesh().num_ranks(); ++rank)
    of_rank_.push_back(&with_faults_of(faults, Rank{rank}));
}

const Plan& ExecutedPlan::with_faults_of(const std::vector<FaultSpec>& faults, Rank rank) {
  std::vector<bool> has;
  for (const FaultSpec& fault : faults)
    has.push_back(fault.is_of(rank));
  if (std::find(has.begin(), has.end(), true) == has.end()) return verified_;
  const auto [other, is_new] = others_.try_emplace(has);
  if (is_new) {
    other->second = verified_;
    for (std::size_t i = 0; i < faults.size(); ++i) {
      if (has[i]) static_cast<void>(find_plan_fault(faults[i].name)(other->second, faults[i]));
    }
    HPSIM_CHECK(other->second.steps.size() == verified_.steps.size(), "{} steps of {} are executed",
                other->second.steps.size(), verified_.steps.size());
  }
  return other->second;
}

const Plan& ExecutedPlan::of(Rank rank) const {
  return of_rank_.empty() ? verified_ : *of_rank_.at(static_cast<std::size_t>(rank.value));
}

}  // namespace hpsim
