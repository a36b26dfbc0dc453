#pragma once

#include <cstdint>
#include <vector>

#include "base/finding.h"
#include "plan/plan.h"

namespace hpsim {

/// What one check of verify_plan found, and how many facts it looked at.
struct PlanCheckOutcome {
  CheckId id = CheckId::Coverage;
  std::int64_t compared = 0;
  std::vector<Finding> findings;
};

/// Shards tile dim 0 of every parameter; slots lie end to end in their bucket's row, and every
/// shard fits into its slot.
[[nodiscard]] PlanCheckOutcome check_coverage(const Plan& plan);

/// Per parameter, optimizer step and mesh dim of more than one rank: Partial (the batch is split
/// along it) must be reduced once, complete never; and the factors of all steps multiply to k/F.
[[nodiscard]] PlanCheckOutcome check_sync_set(const Plan& plan);

/// Replays the steps: every collective fits its bucket and comes when its operands exist, every
/// compute step sees gathered parameters, every bucket is stored once before the optimizer.
[[nodiscard]] PlanCheckOutcome check_agreement(const Plan& plan);

/// The rows that placements imply are those that the cut gives; unsharded placements differ from
/// sharded ones along the sharded group only, and there they replicate.
[[nodiscard]] PlanCheckOutcome check_placements(const Plan& plan);

}  // namespace hpsim
