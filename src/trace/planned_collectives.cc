#include "trace/planned_collectives.h"

#include "mesh/group.h"

namespace hpsim {
namespace {

bool has_planned_members(const Plan& plan, const CollectiveSpec& spec, Rank rank,
                         const ExecutedCollective& entered) {
  if (entered.dims == dims_mask(spec.dims) && entered.consecutive == spec.consecutive) return true;
  const auto members = [&](const MeshDims& dims, std::int64_t consecutive) {
    return group_along(plan.mesh(), dims, consecutive, rank).members;
  };
  return members(dims_of_mask(entered.dims), entered.consecutive) ==
         members(spec.dims, spec.consecutive);
}

}  // namespace

std::vector<std::int64_t> collective_steps(const Plan& plan) {
  std::vector<std::int64_t> steps;
  for (std::size_t i = 0; i < plan.steps.size(); ++i) {
    if (plan.steps[i].collective) steps.push_back(static_cast<std::int64_t>(i));
  }
  return steps;
}

std::uint64_t dims_mask(const MeshDims& dims) {
  std::uint64_t mask = 0;
  for (const int dim : dims)
    mask |= std::uint64_t{1} << dim;
  return mask;
}

MeshDims dims_of_mask(std::uint64_t mask) {
  MeshDims dims;
  for (int dim = 0; mask != 0; ++dim, mask >>= 1) {
    if ((mask & 1) != 0) dims.push_back(dim);
  }
  return dims;
}

std::optional<FindingCode> difference_from_plan(const Plan& plan, std::int64_t plan_step, Rank rank,
                                                const ExecutedCollective& entered) {
  const CollectiveSpec& spec =
      plan.steps.at(static_cast<std::size_t>(plan_step)).collective.value();
  if (entered.plan_step != plan_step || entered.op != spec.op ||
      entered.takes_max != spec.takes_max)
    return FindingCode::CommOrder;
  if (!has_planned_members(plan, spec, rank, entered)) return FindingCode::CommGroup;
  if (entered.dtype != spec.dtype) return FindingCode::CommDtype;
  const Coordinate coordinate = plan.mesh().coordinate_of(rank);
  const bool has_planned_elems = entered.elems_in == spec.elems_in.at(plan.mesh(), coordinate) &&
                                 entered.elems_out == spec.elems_out.at(plan.mesh(), coordinate);
  if (!spec.is_routed && !has_planned_elems) return FindingCode::CommShape;
  return std::nullopt;
}

void PlannedOrder::enter(const ExecutedCollective& entered) {
  const std::size_t number = num_entered_++;
  if (difference_) return;
  if (number >= steps_.size()) {
    difference_ = {.code = FindingCode::CommCount, .entered = entered.plan_step};
    return;
  }
  const std::int64_t planned = steps_[number];
  if (const auto code = difference_from_plan(plan_, planned, rank_, entered))
    difference_ = {*code, planned, entered.plan_step};
}

void PlannedOrder::end() {
  if (difference_ || num_entered_ >= steps_.size()) return;
  difference_ = {.code = FindingCode::CommCount, .planned = steps_[num_entered_]};
}

}  // namespace hpsim
