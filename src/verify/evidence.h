#pragma once

#include "plan/plan.h"
#include "plan/rank_layout.h"
#include "trace/reference_run.h"
#include "trace/run_result.h"
#include "verify/rank_table.h"

namespace hpsim {

/// What a check looks at.
struct Evidence {
  const Plan& plan;
  const RunResult& run;
  const ReferenceRun& reference;
  RankTable& ranks;
  const std::vector<Finding>& plan_warnings;  ///< of verify_plan

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

/// Ranks per part of a parameter, ascending, in the order of parts.
[[nodiscard]] std::vector<std::vector<Rank>> holders_of(const Evidence& evidence, int p);

}  // namespace hpsim
