#include <algorithm>
#include <optional>

#include "plan/activation_part.h"
#include "plan/faults/plan_edits.h"
#include "plan/faults/planning_tables.h"

namespace hpsim {
namespace {

/// All-reduces of gradients, and means of weights, leave one mesh dim out. Where no other is left,
/// the factor of the sum is applied all the same.
bool leave_out_dim(Plan& plan, const FaultSpec& fault, std::optional<int> dim) {
  if (!dim || plan.mesh().size(*dim) == 1) return false;
  const Mesh& mesh = plan.scenario.mesh;
  return change_steps(plan, fault, [&](Step& step) {
    const bool adds = step.kind == StepKind::AllReduce || step.kind == StepKind::AverageWeights;
    if (!adds || !step.collective || !contains(step.collective->dims, *dim)) return false;
    CollectiveSpec& spec = *step.collective;
    std::erase(spec.dims, *dim);
    spec.group_size = mesh.size(spec.dims);
    if (spec.group_size > 1) return true;
    if (step.kind == StepKind::AllReduce) {
      step.kind = StepKind::ScaleGradient;
      step.local_scale = spec.prescale * spec.scale;
    }
    step.collective.reset();
    return true;
  });
}

bool leave_out_tp(Plan& plan, const FaultSpec& fault) {
  return leave_out_dim(plan, fault, plan.scenario.roles.tp_dim);
}

bool leave_out_ep(Plan& plan, const FaultSpec& fault) {
  return leave_out_dim(plan, fault, plan.scenario.roles.ep_dim);
}

bool leave_out_replicas(Plan& plan, const FaultSpec& fault) {
  const Roles& roles = plan.scenario.roles;
  const bool is_changed = leave_out_dim(plan, fault, roles.dp_replicate_dim);
  return leave_out_dim(plan, fault, roles.shard_replicate_dim) || is_changed;
}

/// A mesh dim of several ranks along which all hold the same part of the parameters of a step.
std::optional<int> dim_of_copies(const Plan& plan, const Step& step) {
  for (int dim = 0; dim < plan.mesh().num_dims(); ++dim) {
    if (plan.mesh().size(dim) == 1) continue;
    const std::vector<int> parameters = parameters_of(plan, step);
    const bool has_copies = std::none_of(parameters.begin(), parameters.end(), [&](int p) {
      return contains(plan.parameter(p).cut_dims(), dim);
    });
    if (has_copies) return dim;
  }
  return std::nullopt;
}

/// What is reduced, or complete anyway, is added up once more along a mesh dim with copies of it.
bool add_up_again(Plan& plan, const FaultSpec& fault) {
  std::vector<MovedStep> more;
  for (std::size_t i = 0; i < plan.steps.size(); ++i) {
    const Step& store = plan.steps[i];
    if (store.kind != StepKind::StoreGradient || !is_aimed(plan, fault, store)) continue;
    const std::optional<int> dim = dim_of_copies(plan, store);
    if (!dim) continue;
    Step step = store;
    step.kind = StepKind::AllReduce;
    const PerCoordinate elems = plan.gradient_row(store.row).row_elems;
    step.collective = CollectiveSpec{.op = CollectiveOp::AllReduce,
                                     .dims = {*dim},
                                     .group_size = plan.mesh().size(*dim),
                                     .dtype = plan.bucket(store.bucket).reduce_dtype,
                                     .elems_in = elems,
                                     .elems_out = elems};
    more.push_back({std::move(step), i});
  }
  const bool is_changed = !more.empty();
  move_steps(plan, {}, std::move(more));
  return is_changed;
}

bool adds_terms(const Plan& plan, const Step& step, bool is_gradient) {
  if (step.redistribution < 0) return false;
  const Redistribution& change =
      plan.redistributions.at(static_cast<std::size_t>(step.redistribution));
  const RedistributeOp op = change.transition.op;
  return change.is_gradient == is_gradient &&
         (op == RedistributeOp::AllReduce || op == RedistributeOp::ReduceScatter);
}

/// Terms of an activation are read as if they were their sum.
bool leave_terms(Plan& plan, const FaultSpec& fault) {
  return erase_steps(plan, fault, [&](const Step& step) { return adds_terms(plan, step, false); });
}

/// The same of the gradient of what a module takes.
bool leave_gradient_terms(Plan& plan, const FaultSpec& fault) {
  return erase_steps(plan, fault, [&](const Step& step) { return adds_terms(plan, step, true); });
}

/// The placement of an activation, or of its gradient, before a change of layout says Replicate
/// where it is Partial: what is left of the change is a slice, or nothing.
bool replicate_on_partial(Plan& plan, const FaultSpec& /*fault*/) {
  std::vector<char> is_changed(plan.redistributions.size(), 0);
  for (std::size_t r = 0; r < plan.redistributions.size(); ++r) {
    Transition& transition = plan.redistributions[r].transition;
    if (transition.op != RedistributeOp::AllReduce &&
        transition.op != RedistributeOp::ReduceScatter) {
      continue;
    }
    for (const int dim : transition.mesh_dims)
      transition.before.at(static_cast<std::size_t>(dim)) = Replicate{};
    const auto first = static_cast<std::size_t>(transition.mesh_dims.at(0));
    transition.op = redistribute_op(transition.before[first], transition.after.at(first));
    is_changed[r] = 1;
  }
  bool has_place = false;
  for (Step& step : plan.steps) {
    if (step.redistribution < 0 || is_changed[static_cast<std::size_t>(step.redistribution)] == 0)
      continue;
    step.collective.reset();
    step.why.before = to_string(
        plan.redistributions[static_cast<std::size_t>(step.redistribution)].transition.before);
    has_place = true;
  }
  return has_place;
}

}  // namespace

std::vector<NamedPlanFault> sync_operators() {
  return {{"plan_missing_tp_sync", leave_out_tp},
          {"plan_missing_ep_sync", leave_out_ep},
          {"plan_missing_replica_sync", leave_out_replicas},
          {"plan_extra_sync", add_up_again},
          {"plan_activation_not_reduced", leave_terms},
          {"plan_gradient_of_input_not_reduced", leave_gradient_terms},
          {"plan_replicate_on_partial", replicate_on_partial}};
}

}  // namespace hpsim
