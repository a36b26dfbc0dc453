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

/// Along every tensor dim the nested cuts of TP, EP and fully_shard tile the global extent, for
/// every length that they leave (at most three per cut, so the cost does not depend on the number
/// of ranks); slots lie end to end in their bucket's row, and every shard fits into its slot.
[[nodiscard]] PlanCheckOutcome check_coverage(const Plan& plan);

/// Per parameter, optimizer step and mesh dim of more than one rank: Partial (TP and EP do not cut
/// the parameter along it, and ranks along it saw different samples: of elementwise parameters
/// those of data_dims, of modules what an ActivationReplay says) must be reduced once, complete
/// never; and the factors of all steps multiply to k/F, for the terms of every micro-batch. With
/// sync_object "weight" the average of the weights after the optimizer answers instead, and must be
/// a mean. A parameter without gradient has no terms.
[[nodiscard]] PlanCheckOutcome check_sync_set(const Plan& plan);

/// Replays the steps: every collective fits its bucket and comes when its operands exist, every
/// compute step sees gathered parameters and activations in a layout with which it can compute
/// (ActivationReplay), what backward computes again is what forward did (RecomputationReplay),
/// every bucket is stored once before the optimizer.
[[nodiscard]] PlanCheckOutcome check_agreement(const Plan& plan);

/// The boxes that placements imply are those that the cut gives, at coordinates with shards of
/// every size; unsharded placements differ from sharded ones along the sharded group only, and
/// there they replicate; and so they are when the steps are replayed, where gradients end up as
/// their parameters are placed (ParameterReplay). A vocabulary that cannot express the cut is a
/// warning, SPEC_DISAGREES:
///
///   vocabulary   cannot express
///   uneven_flag  balanced chunks (its flag means ceil); RaggedStridedShard of given units; a
///                flag that ranks would set differently where TP cuts unevenly
///   torch        balanced chunks; ragged shards of given units; what is held between forward and
///                backward with reshard_after_forward k, where rows are uneven
[[nodiscard]] PlanCheckOutcome check_placements(const Plan& plan);

}  // namespace hpsim
