#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/finding.h"
#include "base/ids.h"
#include "layout/shard_cut.h"
#include "layout/tensor_layout.h"
#include "mesh/mesh.h"
#include "mesh/per_coordinate.h"
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
/// derived from its coordinate, see rank_layout.h.
struct PlannedParameter {
  std::string name;
  Shape shape;                       ///< global
  std::vector<Placement> sharded;    ///< outside compute, one per mesh dim
  std::vector<Placement> unsharded;  ///< inside compute: what TP and EP leave to a rank
  ShardCut cut;                      ///< how fully_shard cuts that, whatever `sharded` says
  GroupInfo sharded_group;           ///< reduce-scatter: ranks that hold different shards
  GroupInfo unsharded_group;         ///< all-reduce: copies inside the fully_shard domain
  GroupInfo partial_group;           ///< other mesh dims on which the gradient is Partial
  int bucket = -1;
  PerCoordinate offset_elems;  ///< of its slot in the bucket's row
  PerCoordinate padded_elems;  ///< of its slot

  [[nodiscard]] std::int64_t shard_size() const { return sharded_group.size; }
  [[nodiscard]] std::int64_t dp_size() const { return unsharded_group.size; }
  [[nodiscard]] std::int64_t rank_size() const { return shard_size() * dp_size(); }
  /// Mesh dims along which ranks hold different parts, ascending: those that `unsharded` cuts along
  /// and the sharded group.
  [[nodiscard]] MeshDims cut_dims() const {
    return union_of(cutting_dims(unsharded), sharded_group.dims);
  }
};

/// Neighbouring slots of a bucket whose gradients are Partial along the same further mesh dims:
/// they are all-reduced together.
struct PartialRange {
  MeshDims dims;
  Interval members;  ///< positions in Bucket::parameters
  bool operator==(const PartialRange&) const = default;
};

/// Parameters of one unit that share groups and dtype: they are gathered by one all_gather and
/// reduced by one reduce_scatter. Each rank holds one row of `row_elems` elements, the padded slots
/// of its parameters end to end; all rows, rank-major, are the gathered bucket.
struct Bucket {
  int unit = -1;                ///< into Scenario::units
  std::vector<int> parameters;  ///< into Plan::parameters: by partial dims, then ascending
  PerCoordinate row_elems;      ///< sum of padded_elems
  GroupInfo sharded_group;
  GroupInfo unsharded_group;
  MeshDims scatter_dims;     ///< reduce-scattered over; empty: gradients are complete or not cut
  MeshDims all_reduce_dims;  ///< all-reduced over, within unsharded_group
  MeshDims average_dims;  ///< instead of that, weights are averaged over them: sync_object "weight"
  std::vector<PartialRange> partials;  ///< all-reduced after the last unit
  bool is_ignored = false;  ///< fully_shard leaves it alone: reduced in the optimizer phase

  /// Elements of the gathered bucket: shard_size rows.
  [[nodiscard]] PerCoordinate gathered_elems() const { return row_elems.times(sharded_group.size); }
};

/// The SPMD plan: what every executor runs, the memory ledger counts and reports print. It speaks
/// in mesh dims, never in ranks.
struct Plan {
  Scenario scenario;
  std::vector<PlannedParameter> parameters;  ///< like Scenario::parameters
  std::vector<Bucket> buckets;               ///< by unit, in the order of first use
  std::vector<Step> steps;                   ///< all optimizer steps, in order

  [[nodiscard]] const Mesh& mesh() const { return scenario.mesh; }
  [[nodiscard]] const PlannedParameter& parameter(int p) const {
    return parameters.at(static_cast<std::size_t>(p));
  }
  [[nodiscard]] const Bucket& bucket(int b) const {
    return buckets.at(static_cast<std::size_t>(b));
  }
  /// Mesh dims along which ranks update parameter `p` by gradients of their own, and hold optimizer
  /// state of their own; the mean over them is what the training makes.
  [[nodiscard]] const MeshDims& averaged_dims(int p) const {
    return bucket(parameter(p).bucket).average_dims;
  }
  [[nodiscard]] const std::string& unit_name(const Bucket& bucket) const {
    return scenario.units.at(static_cast<std::size_t>(bucket.unit)).name;
  }
};

/// Elements of the slots of a range.
[[nodiscard]] PerCoordinate partial_elems(const Plan& plan, const Bucket& bucket,
                                          const PartialRange& range);

/// What verify_plan checked and how much of it.
struct PlanChecks {
  std::vector<CheckResult> results;
  std::vector<Finding> warnings;
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
