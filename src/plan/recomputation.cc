#include "plan/recomputation.h"

#include <algorithm>

namespace hpsim {

bool runs_forward(const Step& step) {
  return step.phase == Phase::Forward || step.is_recomputed;
}

int recomputed_part_of(const Scenario& scenario, int module) {
  const std::vector<RecomputedSpec>& parts = scenario.training.recomputed;
  const auto next =
      std::upper_bound(parts.begin(), parts.end(), module,
                       [](int m, const RecomputedSpec& part) { return m < part.first; });
  if (next == parts.begin() || module >= std::prev(next)->end) return -1;
  return static_cast<int>(next - parts.begin()) - 1;
}

bool is_computed_again(const Plan& plan, const RecomputedSpec& part) {
  return std::any_of(plan.modules.begin() + part.first, plan.modules.begin() + part.end,
                     [](const ModulePlan& module) { return module.output_gradient >= 0; });
}

bool keeps_for_backward(const Plan& plan, const Step& step) {
  if (plan.modules.at(static_cast<std::size_t>(step.module)).output_gradient < 0) return false;
  return step.is_recomputed || recomputed_part_of(plan.scenario, step.module) < 0;
}

const std::vector<int>& freed_after(const Plan& plan, const Step& step) {
  if (step.kind == StepKind::Loss) return plan.loss.freed;
  if (step.kind == StepKind::Redistribute) {
    const Redistribution& change =
        plan.redistributions.at(static_cast<std::size_t>(step.redistribution));
    return step.is_recomputed ? change.freed_when_recomputed : change.freed;
  }
  const ModulePlan& module = plan.modules.at(static_cast<std::size_t>(step.module));
  const bool is_backward = step.kind == StepKind::Backward || !runs_forward(step);
  if (is_backward) return module.freed_after_backward;
  return step.is_recomputed ? module.freed_after_recomputation : module.freed_after_forward;
}

std::string_view phase_text(const Step& step) {
  return step.is_recomputed ? "recomputation" : name_of(step.phase);
}

}  // namespace hpsim
