#include "plan/overlap.h"

#include <fmt/format.h>

#include "base/check.h"

namespace hpsim {
namespace {

bool is_compute(const Step& step) {
  return step.kind == StepKind::Forward || step.kind == StepKind::Loss ||
         step.kind == StepKind::Backward;
}

}  // namespace

Overlap overlap_of(const Plan& plan, std::int64_t plan_step) {
  const auto begin = static_cast<std::size_t>(plan_step);
  const Step& begun = plan.steps.at(begin);
  HPSIM_CHECK(begun.collective.has_value(), "step {} has no collective", plan_step);
  Overlap overlap;
  if (!begun.is_async) overlap.completed_in = plan_step;
  for (std::size_t i = begin + 1; i < plan.steps.size() && overlap.before < 0; ++i) {
    const Step& step = plan.steps[i];
    const auto index = static_cast<std::int64_t>(i);
    const bool is_pending = overlap.completed_in < 0;
    if (is_pending && step.kind == StepKind::WaitUnshard && step.bucket == begun.bucket)
      overlap.completed_in = index;
    if (!is_compute(step)) continue;
    if (!is_pending) {
      overlap.before = index;
      continue;
    }
    if (overlap.first < 0) overlap.first = index;
    overlap.last = index;
  }
  return overlap;
}

std::string compute_text(const Plan& plan, std::int64_t plan_step) {
  const Step& step = plan.steps.at(static_cast<std::size_t>(plan_step));
  HPSIM_CHECK(is_compute(step), "step {} computes nothing", plan_step);
  if (step.kind == StepKind::Loss) return std::string(name_of(step.kind));
  return fmt::format("{} of {}", name_of(step.kind), module_name(plan.scenario.model, step.module));
}

}  // namespace hpsim
