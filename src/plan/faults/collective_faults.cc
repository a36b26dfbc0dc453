#include <algorithm>

#include "plan/faults/plan_edits.h"
#include "plan/faults/planning_tables.h"

namespace hpsim {
namespace {

bool skip_all_gather(Plan& plan, const FaultSpec& fault) {
  return change_steps(plan, fault, [](Step& step) {
    if (step.kind != StepKind::Unshard || !step.collective) return false;
    step.collective.reset();
    return true;
  });
}

bool skip_reduce_scatter(Plan& plan, const FaultSpec& fault) {
  return erase_steps(plan, fault, [](const Step& step) {
    return step.kind == StepKind::ReduceScatter && step.collective.has_value();
  });
}

bool skip_all_reduce(Plan& plan, const FaultSpec& fault) {
  return erase_steps(plan, fault, [](const Step& step) {
    return step.kind == StepKind::AllReduce && step.collective.has_value();
  });
}

bool skip_average(Plan& plan, const FaultSpec& fault) {
  return erase_steps(plan, fault, [](const Step& step) {
    return step.kind == StepKind::AverageWeights && step.collective.has_value();
  });
}

bool gather_twice(Plan& plan, const FaultSpec& fault) {
  std::vector<MovedStep> again;
  for (std::size_t i = 0; i < plan.steps.size(); ++i) {
    const Step& step = plan.steps[i];
    if (step.kind != StepKind::Unshard || !step.collective || !is_aimed(plan, fault, step))
      continue;
    again.push_back({step, i + 1});
  }
  const bool is_changed = !again.empty();
  move_steps(plan, {}, std::move(again));
  return is_changed;
}

/// All-reduces for what else is sent, and all-gathers for all-reduces.
bool take_another_op(Plan& plan, const FaultSpec& fault) {
  return change_steps(plan, fault, [](Step& step) {
    if (!step.collective) return false;
    CollectiveOp& op = step.collective->op;
    op = op == CollectiveOp::AllReduce ? CollectiveOp::AllGather : CollectiveOp::AllReduce;
    return true;
  });
}

/// The largest of the gradients, not their sum.
bool take_largest(Plan& plan, const FaultSpec& fault) {
  return change_steps(plan, fault, [](Step& step) {
    if (step.bucket < 0 || !step.collective || !is_reduction(step.collective->op)) return false;
    step.collective->takes_max = true;
    return true;
  });
}

bool take_another_dtype(Plan& plan, const FaultSpec& fault) {
  return change_steps(plan, fault, [](Step& step) {
    if (!step.collective) return false;
    DType& dtype = step.collective->dtype;
    dtype = dtype == DType::Float32 ? DType::BFloat16 : DType::Float32;
    return true;
  });
}

/// One element more is sent.
bool take_one_more_element(Plan& plan, const FaultSpec& fault) {
  const Mesh& mesh = plan.scenario.mesh;
  return change_steps(plan, fault, [&](Step& step) {
    if (!step.collective) return false;
    step.collective->elems_in = step.collective->elems_in.plus(mesh, 1);
    return true;
  });
}

/// What is sent is taken for what another bucket holds: the first one.
bool take_another_bucket(Plan& plan, const FaultSpec& fault) {
  return change_steps(plan, fault, [](Step& step) {
    if (step.bucket <= 0 || !step.collective) return false;
    step.bucket = 0;
    return true;
  });
}

}  // namespace

std::vector<NamedPlanFault> collective_operators() {
  return {{"plan_skip_all_gather", skip_all_gather},
          {"plan_skip_reduce_scatter", skip_reduce_scatter},
          {"plan_skip_all_reduce", skip_all_reduce},
          {"plan_skip_average", skip_average},
          {"plan_all_gather_twice", gather_twice},
          {"plan_wrong_op", take_another_op},
          {"plan_max_for_sum", take_largest},
          {"plan_wrong_dtype", take_another_dtype},
          {"plan_wrong_elems", take_one_more_element},
          {"plan_wrong_bucket", take_another_bucket}};
}

}  // namespace hpsim
