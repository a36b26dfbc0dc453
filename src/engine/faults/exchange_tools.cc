#include "engine/faults/exchange_tools.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "base/check.h"
#include "mesh/group.h"
#include "plan/faults/plan_edits.h"

namespace hpsim {
namespace {

/// Whether a rank at which the fault is aimed sends something.
bool sends(const Plan& plan, const FaultSpec& fault, const CollectiveSpec& spec) {
  if (spec.is_routed) return true;
  for (std::int64_t rank = 0; rank < plan.mesh().num_ranks(); ++rank) {
    if (fault.is_of(Rank{rank}) &&
        spec.elems_in.at(plan.mesh(), plan.mesh().coordinate_of(Rank{rank})) > 0)
      return true;
  }
  return false;
}

}  // namespace

bool is_aimed_at(const Plan& plan, const FaultSpec& fault, const Step& step) {
  return is_aimed(plan, fault, step);
}

bool any_exchange(const Plan& plan, const FaultSpec& fault,
                  const std::function<bool(const Step&)>& is_so) {
  return std::any_of(plan.steps.begin(), plan.steps.end(), [&](const Step& step) {
    return step.collective && is_aimed_at(plan, fault, step) && is_so(step) &&
           sends(plan, fault, *step.collective);
  });
}

bool is_all_gather(const Step& step) {
  return step.kind == StepKind::Unshard && step.collective.has_value();
}

bool is_reduce_scatter(const Step& step) {
  return step.kind == StepKind::ReduceScatter;
}

bool is_all_reduce(const Step& step) {
  return step.kind == StepKind::AllReduce && step.partial < 0;
}

bool is_partial_reduce(const Step& step) {
  return step.kind == StepKind::AllReduce && step.partial >= 0;
}

bool is_of_gradients(const Step& step) {
  return step.kind == StepKind::ReduceScatter || step.kind == StepKind::AllReduce;
}

bool is_of_activation(const Step& step) {
  return step.kind == StepKind::Redistribute && step.collective.has_value();
}

bool is_of_loss(const Step& step) {
  return step.kind == StepKind::Loss && step.collective.has_value();
}

bool is_of_norm(const Step& step) {
  return step.kind == StepKind::ClipGradients && step.collective.has_value();
}

bool is_weight_average(const Step& step) {
  return step.kind == StepKind::AverageWeights;
}

std::int64_t position_in_group(const Plan& plan, const CollectiveSpec& spec, Rank rank) {
  const std::vector<Rank> members =
      group_along(plan.mesh(), spec.dims, spec.consecutive, rank).members;
  return std::find(members.begin(), members.end(), rank) - members.begin();
}

void keep_own(const Plan& plan, Rank rank, const CollectiveCall& call) {
  const CollectiveSpec& spec =
      plan.steps.at(static_cast<std::size_t>(call.plan_step)).collective.value();
  HPSIM_CHECK(call.counts_in.empty(), "slots of an all_to_all that differ");
  const auto position = static_cast<std::size_t>(position_in_group(plan, spec, rank));
  const auto width = static_cast<std::size_t>(size_bytes(call.dtype));
  const auto* const input = static_cast<const std::byte*>(call.input);
  auto* const output = static_cast<std::byte*>(call.output);
  const std::size_t in_bytes = static_cast<std::size_t>(call.elems_in) * width;
  const std::size_t out_bytes = static_cast<std::size_t>(call.elems_out) * width;
  switch (call.op) {
    case CollectiveOp::AllReduce:
      return;  // in place
    case CollectiveOp::ReduceScatter:
      std::memcpy(output, input + position * out_bytes, out_bytes);
      return;
    case CollectiveOp::AllGather:
      std::memset(output, 0, out_bytes);
      std::memcpy(output + position * in_bytes, input, in_bytes);
      return;
    case CollectiveOp::AllToAll: {
      const std::size_t slot = in_bytes / static_cast<std::size_t>(spec.group_size);
      std::memset(output, 0, out_bytes);
      std::memcpy(output + position * slot, input + position * slot, slot);
      return;
    }
  }
}

}  // namespace hpsim
