#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/finding.h"
#include "base/ids.h"
#include "layout/tensor_layout.h"
#include "mesh/mesh.h"
#include "plan/step.h"
#include "scenario/scenario.h"

namespace hpsim {

/// Mesh dims of a group and the number of ranks in each such group (multi-dim RFC 2.2.1).
struct GroupInfo {
  MeshDims dims;
  std::int64_t size = 1;
  bool operator==(const GroupInfo&) const = default;
};

/// A parameter with its layout. All ranks hold the same record (SPMD); what one rank holds is
/// derived from its coordinate.
struct PlannedParameter {
  std::string name;
  Shape shape;                       ///< global
  std::vector<Placement> sharded;    ///< outside compute, one per mesh dim
  std::vector<Placement> unsharded;  ///< inside compute
  GroupInfo sharded_group;           ///< reduce-scatter: ranks that hold different rows
  GroupInfo unsharded_group;         ///< all-reduce: copies inside the fully_shard domain
  GroupInfo partial_group;           ///< other mesh dims on which the gradient is Partial
  int bucket = -1;
  std::int64_t offset_elems = 0;  ///< of its slot in the bucket's row

  [[nodiscard]] std::int64_t shard_size() const { return sharded_group.size; }
  [[nodiscard]] std::int64_t dp_size() const { return unsharded_group.size; }
  [[nodiscard]] std::int64_t rank_size() const { return shard_size() * dp_size(); }
  /// Shape of a slot in communication: dim 0 padded to ceil(rows / shard_size), equal on all ranks.
  [[nodiscard]] Shape padded_shape() const;
  /// Elements of a slot.
  [[nodiscard]] std::int64_t padded_elems() const { return num_elems(padded_shape()); }
  /// Rows that shard number `shard_index` holds (the cut itself, not what placements say).
  [[nodiscard]] Interval rows_of(std::int64_t shard_index) const;
  /// Elements of these rows.
  [[nodiscard]] std::int64_t shard_elems(std::int64_t shard_index) const;
};

/// Parameters of one unit that share groups and dtype: they are gathered by one all_gather and
/// reduced by one reduce_scatter. Each rank holds one row of `row_elems` elements, the padded slots
/// of its parameters end to end; all rows, rank-major, are the gathered bucket.
struct Bucket {
  int unit = -1;                ///< into Scenario::units
  std::vector<int> parameters;  ///< into Plan::parameters, ascending
  std::int64_t row_elems = 0;   ///< sum of padded_elems
  GroupInfo sharded_group;
  GroupInfo unsharded_group;
  MeshDims scatter_dims;     ///< reduce-scattered over; empty: gradients are complete or not cut
  MeshDims all_reduce_dims;  ///< all-reduced over, within unsharded_group
  MeshDims partial_dims;     ///< all-reduced over after the last unit

  /// Elements of the gathered bucket: shard_size rows.
  [[nodiscard]] std::int64_t gathered_elems() const { return row_elems * sharded_group.size; }
};

/// The SPMD plan: what every executor runs, the memory ledger counts and reports print. It speaks
/// in mesh dims, never in ranks.
struct Plan {
  Scenario scenario;
  std::vector<PlannedParameter> parameters;  ///< like Scenario::parameters
  std::vector<Bucket> buckets;               ///< by unit, in the order of first use
  std::vector<Step> steps;                   ///< all optimizer steps, in order

  [[nodiscard]] const Mesh& mesh() const { return scenario.mesh; }
};

/// What verify_plan checked and how much of it.
struct PlanChecks {
  std::vector<CheckResult> results;
};

/// A plan that can be run. Only verify_plan makes one.
class VerifiedPlan {
 public:
  [[nodiscard]] const Plan& operator*() const { return plan_; }
  [[nodiscard]] const Plan* operator->() const { return &plan_; }
  [[nodiscard]] const PlanChecks& checks() const { return checks_; }

 private:
  friend VerifiedPlan verify_plan(Plan plan);
  VerifiedPlan(Plan plan, PlanChecks checks) : plan_(std::move(plan)), checks_(std::move(checks)) {}

  Plan plan_;
  PlanChecks checks_;
};

}  // namespace hpsim
