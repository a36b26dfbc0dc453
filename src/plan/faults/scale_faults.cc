#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <tuple>

#include "plan/faults/plan_edits.h"
#include "plan/faults/planning_tables.h"

namespace hpsim {
namespace {

double factor_of(const Step& step) {
  if (step.kind == StepKind::ScaleGradient) return step.local_scale;
  return step.collective ? step.collective->prescale * step.collective->scale : 1;
}

void multiply(Step& step, double factor) {
  (step.kind == StepKind::ScaleGradient ? step.local_scale : step.collective->scale) *= factor;
}

/// What the steps of the gradient of `p` make of it, all together; the mean of weights, where there
/// is one, makes the rest.
double planned_factor(const Plan& plan, int p) {
  return gradient_factor(plan.scenario, p) / gradient_divisor(plan.scenario) *
         static_cast<double>(plan.mesh().size(plan.averaged_dims(p)));
}

/// Calls `change(step)` for every reduction at which the fault is aimed whose gradients have a
/// factor other than 1, and whose own factor is.
template <class F>
bool change_factors(Plan& plan, const FaultSpec& fault, const F& change) {
  return change_steps(plan, fault, [&](Step& step) {
    if (!is_reduction(step) || factor_of(step) == 1) return false;
    const double whole = planned_factor(plan, parameters_of(plan, step).at(0));
    if (std::abs(whole - 1) < 0x1p-40) return false;
    change(step);
    return true;
  });
}

bool scale_twice(Plan& plan, const FaultSpec& fault) {
  return change_factors(plan, fault, [](Step& step) { multiply(step, factor_of(step)); });
}

bool leave_out_scale(Plan& plan, const FaultSpec& fault) {
  return change_factors(plan, fault, [](Step& step) {
    step.local_scale = 1;
    if (step.collective) step.collective->prescale = step.collective->scale = 1;
  });
}

/// Gradients of experts are divided by the number of ranks that hold them, not by that of all data
/// ranks.
bool divide_by_expert_ranks(Plan& plan, const FaultSpec& fault) {
  const std::optional<int> ep = plan.scenario.roles.ep_dim;
  if (!ep || plan.mesh().size(*ep) == 1 || !contains(plan.scenario.data.data_dims, *ep))
    return false;
  const auto is_expert = [&](int p) {
    return is_cut(plan.parameter(p).unsharded.at(static_cast<std::size_t>(*ep)));
  };
  std::set<std::tuple<std::int64_t, std::int64_t, int>> divided;  // step, micro-batch, row
  return change_steps(plan, fault, [&](Step& step) {
    if (!is_reduction(step)) return false;
    const std::vector<int> parameters = parameters_of(plan, step);
    if (!std::all_of(parameters.begin(), parameters.end(), is_expert)) return false;
    if (!divided.emplace(step.step, step.micro_batch, step.row).second) return false;
    multiply(step, static_cast<double>(plan.mesh().size(*ep)));
    return true;
  });
}

/// The sum over replicas is divided by their number, which F has in it.
bool divide_by_replicas(Plan& plan, const FaultSpec& fault) {
  const Mesh& mesh = plan.scenario.mesh;
  return change_steps(plan, fault, [&](Step& step) {
    if (step.kind != StepKind::AllReduce || !step.collective) return false;
    step.collective->scale /= static_cast<double>(mesh.size(step.collective->dims));
    return true;
  });
}

}  // namespace

std::vector<NamedPlanFault> scale_operators() {
  return {{"plan_scale_twice", scale_twice},
          {"plan_scale_missing", leave_out_scale},
          {"plan_expert_divisor", divide_by_expert_ranks},
          {"plan_scale_all_reduce_again", divide_by_replicas}};
}

}  // namespace hpsim
