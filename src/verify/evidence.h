#pragma once

#include "plan/plan.h"
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

  [[nodiscard]] std::int64_t num_ranks() const { return plan.mesh().num_ranks(); }
  [[nodiscard]] std::int64_t num_steps() const { return plan.scenario.training.steps; }
  [[nodiscard]] int num_parameters() const { return static_cast<int>(plan.parameters.size()); }
  [[nodiscard]] const PlannedParameter& parameter(int p) const {
    return plan.parameters.at(static_cast<std::size_t>(p));
  }
  /// Per rank: which shard of the parameter it holds.
  [[nodiscard]] const std::vector<std::int64_t>& shard_index(int p) const {
    return ranks.index_along(parameter(p).sharded_group.dims);
  }
};

}  // namespace hpsim
