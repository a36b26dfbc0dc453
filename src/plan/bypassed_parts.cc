#include "plan/bypassed_parts.h"

#include "plan/recomputation.h"
#include "scenario/gradients.h"

namespace hpsim {
namespace {

BypassedPart part_of(const Plan& plan, int spec) {
  const InactiveSpec& given = plan.scenario.data.inactive[static_cast<std::size_t>(spec)];
  const ModelSpec& model = plan.scenario.model;
  BypassedPart part{.spec = spec, .first = given.first, .last = given.end - 1};
  const ModulePlan& first = plan.modules.at(static_cast<std::size_t>(part.first));
  const ModulePlan& last = plan.modules.at(static_cast<std::size_t>(part.last));
  part.input = first.inputs.at(0);
  if (!first.input_gradients.empty()) part.input_gradient = first.input_gradients.at(0);
  part.output_gradient = last.output_gradient;
  if (model.modules[static_cast<std::size_t>(part.last)].type != ModuleType::Add) return part;
  const std::vector<int> operands = inputs_of(model, part.last);
  for (std::size_t i = 0; i < operands.size(); ++i) {
    // What was there before the first module of the part.
    if (operands[i] <= part.first) part.kept = static_cast<int>(i);
  }
  return part;
}

/// Whether the step goes through the part from its first to its last module.
bool goes_through(const Plan& plan, const Step& step, const InactiveSpec& part) {
  if (!step.is_recomputed) return true;
  const int around = recomputed_part_of(plan.scenario, step.module);
  return recomputed_part_of(plan.scenario, part.first) == around &&
         recomputed_part_of(plan.scenario, part.end - 1) == around;
}

}  // namespace

std::vector<BypassedPart> bypassed_parts(const Plan& plan, const Step& step) {
  std::vector<BypassedPart> parts;
  if (plan.scenario.model.is_elementwise()) return parts;
  const std::vector<InactiveSpec>& specs = plan.scenario.data.inactive;
  for (std::size_t i = 0; i < specs.size(); ++i) {
    if (specs[i].lists_pass(step.step, step.micro_batch) && goes_through(plan, step, specs[i]))
      parts.push_back(part_of(plan, static_cast<int>(i)));
  }
  return parts;
}

bool is_inactive_at(const Plan& plan, const Step& step, int module, const Coordinate& coordinate) {
  const Scenario& scenario = plan.scenario;
  if (scenario.data.inactive.empty()) return false;
  const std::int64_t data_rank = scenario.mesh.index_along(scenario.data.data_dims, coordinate);
  return !is_active(scenario, module, step.step, step.micro_batch, data_rank);
}

}  // namespace hpsim
