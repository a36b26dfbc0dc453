#include "plan/overlap.h"

#include <fmt/format.h>

#include <vector>

#include "base/check.h"

namespace hpsim {
namespace {

bool is_compute(const Step& step) {
  return step.kind == StepKind::Forward || step.kind == StepKind::Loss ||
         step.kind == StepKind::Backward;
}

}  // namespace

std::map<std::int64_t, Overlap> overlaps_of(const Plan& plan) {
  std::map<std::int64_t, Overlap> overlaps;
  std::map<int, Overlap*> pending;  // by bucket
  std::vector<Overlap*> beginning;  // since the last compute
  std::vector<Overlap*> completed;
  for (std::size_t i = 0; i < plan.steps.size(); ++i) {
    const Step& step = plan.steps[i];
    const auto index = static_cast<std::int64_t>(i);
    if (step.is_async) {
      pending[step.bucket] = &overlaps[index];
      beginning.push_back(&overlaps[index]);
    }
    const auto awaited = pending.find(step.bucket);
    if (step.kind == StepKind::WaitUnshard && awaited != pending.end()) {
      awaited->second->completed_in = index;
      completed.push_back(awaited->second);
      pending.erase(awaited);
    }
    if (!is_compute(step)) continue;
    for (Overlap* const overlap : beginning) {
      if (overlap->completed_in < 0) overlap->first = index;
    }
    beginning.clear();
    for (const auto& [bucket, overlap] : pending)
      overlap->last = index;
    for (Overlap* const overlap : completed)
      overlap->before = index;
    completed.clear();
  }
  return overlaps;
}

std::string compute_text(const Plan& plan, std::int64_t plan_step) {
  const Step& step = plan.steps.at(static_cast<std::size_t>(plan_step));
  HPSIM_CHECK(is_compute(step), "step {} computes nothing", plan_step);
  if (step.kind == StepKind::Loss) return std::string(name_of(step.kind));
  return fmt::format("{}{} of {}", name_of(step.kind), step.is_recomputed ? " again" : "",
                     module_name(plan.scenario.model, step.module));
}

}  // namespace hpsim
