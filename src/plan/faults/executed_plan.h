#pragma once

#include <map>
#include <vector>

#include "plan/plan.h"

namespace hpsim {

/// What ranks carry out: the verified plan, or what the scenario's faults of stage Run that are
/// another plan (find_plan_fault) make of it, for the ranks at which they are aimed. Everything
/// else, from what is recorded to what is judged, goes by the verified plan.
class ExecutedPlan {
 public:
  /// `plan` must outlive this. \throws Error (InvalidScenario) with every fault that has no place
  explicit ExecutedPlan(const VerifiedPlan& plan);
  ExecutedPlan(const ExecutedPlan&) = delete;

  [[nodiscard]] const Plan& verified() const { return verified_; }
  /// As many steps as the verified plan, each in the same place.
  [[nodiscard]] const Plan& of(Rank rank) const;
  /// Whether that is the verified plan.
  [[nodiscard]] bool is_verified(Rank rank) const { return &of(rank) == &verified_; }

 private:
  const Plan& with_faults_of(const std::vector<FaultSpec>& faults, Rank rank);

  const Plan& verified_;
  std::map<std::vector<bool>, Plan> others_;  ///< by which of the faults they have
  std::vector<const Plan*> of_rank_;          ///< empty: the verified plan for all
};

}  // namespace hpsim
