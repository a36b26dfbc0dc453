#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/finding.h"
#include "base/ids.h"
#include "mesh/mesh.h"
#include "plan/plan.h"
#include "trace/run_result.h"

namespace hpsim {

/// The plan steps that have a collective, in order.
[[nodiscard]] std::vector<std::int64_t> collective_steps(const Plan& plan);

// A set of mesh dims as ExecutedCollective::dims has it.
[[nodiscard]] std::uint64_t dims_mask(const MeshDims& dims);
[[nodiscard]] MeshDims dims_of_mask(std::uint64_t mask);

/// What is wrong with a collective that a rank entered where the plan has that of `plan_step`:
///
///   that of another step, another op, max for sum    COMM_ORDER
///   among other members                              COMM_GROUP
///   sent as another dtype                            COMM_DTYPE
///   other numbers of elements                        COMM_SHAPE, unless they follow from routing
///
/// The first of these that holds.
[[nodiscard]] std::optional<FindingCode> difference_from_plan(const Plan& plan,
                                                              std::int64_t plan_step, Rank rank,
                                                              const ExecutedCollective& entered);

/// Where a rank left the plan.
struct PlanDifference {
  FindingCode code = FindingCode::CommOrder;
  std::int64_t planned = -1;  ///< plan step whose collective was next; -1: none
  std::int64_t entered = -1;  ///< the one that the rank entered instead; -1: none
};

/// Follows a rank along the plan, from one collective that it enters to the next. `plan` and
/// `steps`, its collective_steps, must outlive the object.
class PlannedOrder {
 public:
  PlannedOrder(const Plan& plan, const std::vector<std::int64_t>& steps, Rank rank)
      : plan_(plan), steps_(steps), rank_(rank) {}

  void enter(const ExecutedCollective& entered);
  /// The rank is done with all steps: what it has not entered is missing.
  void end();

  /// The first difference from the plan: see difference_from_plan; COMM_COUNT for a collective more
  /// than the plan has, or less.
  [[nodiscard]] const std::optional<PlanDifference>& difference() const { return difference_; }

 private:
  const Plan& plan_;
  const std::vector<std::int64_t>& steps_;
  Rank rank_;
  std::size_t num_entered_ = 0;
  std::optional<PlanDifference> difference_;
};

}  // namespace hpsim
