#include "exec/describe_step.h"

#include <fmt/format.h>

#include "plan/recomputation.h"

namespace hpsim {
namespace {

std::string subject_of(const Plan& plan, const Step& step) {
  const Scenario& scenario = plan.scenario;
  if (step.redistribution >= 0) {
    return " of the " + activation_text(plan, plan.redistributions.at(
                                                  static_cast<std::size_t>(step.redistribution)));
  }
  if (step.kind == StepKind::Loss && step.collective) return " of the loss";
  if (step.kind == StepKind::ClipGradients) return " of the norm";
  if (step.bucket >= 0) {
    const Bucket& bucket = plan.buckets.at(static_cast<std::size_t>(step.bucket));
    return " of unit " + scenario.units.at(static_cast<std::size_t>(bucket.unit)).name;
  }
  if (step.module >= 0) {
    const auto module = static_cast<std::size_t>(step.module);
    return " of " + (scenario.model.is_elementwise() ? scenario.model.elementwise.at(module).name
                                                     : scenario.model.modules.at(module).name);
  }
  return {};
}

}  // namespace

std::string describe_step(const Plan& plan, std::int64_t plan_step) {
  if (plan_step < 0 || plan_step >= static_cast<std::int64_t>(plan.steps.size())) {
    return "no step of the plan";
  }
  const Step& step = plan.steps[static_cast<std::size_t>(plan_step)];
  if (step.collective) {
    const std::string micro_batch = plan.scenario.training.micro_batches > 1
                                        ? fmt::format(", micro-batch {}", step.micro_batch)
                                        : std::string();
    return fmt::format("{}{} ({}, step {}{})", name_of(step.collective->op), subject_of(plan, step),
                       phase_text(step), step.step, micro_batch);
  }
  return fmt::format("{}{} (step {})", name_of(step.kind), subject_of(plan, step), step.step);
}

}  // namespace hpsim
