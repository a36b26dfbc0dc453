#include "plan/faults/plan_edits.h"

#include <algorithm>
#include <utility>

#include "plan/passes/passes.h"

namespace hpsim {

bool is_aimed(const Plan& plan, const FaultSpec& fault, int parameter) {
  return fault.is_about(parameter) &&
         fault.is_in_unit(plan.bucket(plan.parameter(parameter).bucket).unit);
}

bool is_aimed(const Plan& plan, const FaultSpec& fault, const Step& step) {
  if (!fault.is_in(step.step)) return false;
  if (fault.params.empty() && !fault.unit) return true;
  if (step.bucket < 0) return false;
  const std::vector<int> parameters = parameters_of(plan, step);
  return std::any_of(parameters.begin(), parameters.end(),
                     [&](int p) { return is_aimed(plan, fault, p); });
}

std::vector<int> parameters_of(const Plan& plan, const Step& step) {
  if (step.row < 0) return plan.bucket(step.bucket).parameters;
  const GradientRow& row = plan.gradient_row(step.row);
  if (step.partial < 0) return row.parameters;
  const Interval members = row.partials.at(static_cast<std::size_t>(step.partial)).members;
  return {row.parameters.begin() + members.begin, row.parameters.begin() + members.end};
}

bool is_reduction(const Step& step) {
  return step.kind == StepKind::ReduceScatter || step.kind == StepKind::AllReduce ||
         step.kind == StepKind::ScaleGradient;
}

void move_steps(Plan& plan, const std::vector<std::size_t>& erased, std::vector<MovedStep> moved) {
  std::stable_sort(moved.begin(), moved.end(),
                   [](const MovedStep& a, const MovedStep& b) { return a.before < b.before; });
  std::vector<Step> steps;
  steps.reserve(plan.steps.size() + moved.size());
  auto next_moved = moved.begin();
  auto next_erased = erased.begin();
  for (std::size_t i = 0; i <= plan.steps.size(); ++i) {
    for (; next_moved != moved.end() && next_moved->before == i; ++next_moved)
      steps.push_back(std::move(next_moved->step));
    if (i == plan.steps.size()) break;
    if (next_erased != erased.end() && *next_erased == i) {
      ++next_erased;
    } else {
      steps.push_back(std::move(plan.steps[i]));
    }
  }
  plan.steps = std::move(steps);
}

void plan_anew(Plan& plan) {
  Plan anew = std::move(plan);
  anew.buckets.clear();
  anew.gradient_rows.clear();
  anew.steps.clear();
  anew = insert_reductions(schedule_compute(form_buckets(std::move(anew))));
  if (needs_weight_sync(anew)) anew = insert_weight_sync(std::move(anew));
  plan = std::move(anew);
}

}  // namespace hpsim
