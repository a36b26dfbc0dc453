#pragma once

#include "plan/plan.h"
#include "plan/rank_layout.h"
#include "trace/reference_run.h"
#include "trace/run_result.h"
#include "verify/cause_sources.h"
#include "verify/rank_table.h"

namespace hpsim {

/// What a check looks at.
struct Evidence {
  const Plan& plan;
  const RunResult& run;
  const ReferenceRun& reference;
  RankTable& ranks;
  const std::vector<Finding>& plan_warnings;  ///< of verify_plan
  const CauseSources& sources;

  [[nodiscard]] std::int64_t num_ranks() const { return plan.mesh().num_ranks(); }
  [[nodiscard]] std::int64_t num_steps() const { return plan.scenario.training.steps; }
  [[nodiscard]] int num_parameters() const { return static_cast<int>(plan.parameters.size()); }
  [[nodiscard]] const PlannedParameter& parameter(int p) const {
    return plan.parameters.at(static_cast<std::size_t>(p));
  }
  /// Per rank: which of the parts of the parameter it holds, TP, EP and fully_shard together; ranks
  /// with the same index hold copies.
  [[nodiscard]] const std::vector<std::int64_t>& part_index(int p) const {
    return ranks.index_along(parameter(p).cut_dims());
  }
  [[nodiscard]] std::int64_t num_parts(int p) const {
    return plan.mesh().size(parameter(p).cut_dims());
  }
  /// What a rank with part number `part` of the parameter holds.
  [[nodiscard]] HeldShard held(int p, std::int64_t part) const {
    return held_shard(plan.mesh(), parameter(p),
                      plan.mesh().coordinate_along(parameter(p).cut_dims(), part));
  }
};

using RankGroups = std::vector<std::vector<Rank>>;

/// Ranks per part of a parameter, ascending, in the order of parts.
[[nodiscard]] RankGroups holders_of(const Evidence& evidence, int p);

/// Ranks that hold one part of a parameter, by where they are along the averaged dims: their
/// gradients and optimizer state are of the same samples. All together where nothing is averaged.
///
///   mesh (rep 2, tp 2), averaged over tp, holders 0 1 2 3    {0 2} {1 3}
[[nodiscard]] RankGroups alike_of(const Evidence& evidence, int p,
                                  const std::vector<Rank>& holders);

/// The same ranks, by where they are along the other dims: the mean over each group is what the
/// training makes. Each alone where nothing is averaged.
///
///   mesh (rep 2, tp 2), averaged over tp, holders 0 1 2 3    {0 1} {2 3}
[[nodiscard]] RankGroups averaged_of(const Evidence& evidence, int p,
                                     const std::vector<Rank>& holders);

}  // namespace hpsim
