#include "plan/passes/passes.h"
#include "scenario/module_layouts.h"

namespace hpsim {

Plan lay_out_activations(Plan plan) {
  plan.modules = module_layouts(plan.scenario);
  plan.output = plan.modules.empty() ? input_layout(plan.scenario) : plan.modules.back().given;
  for (Placement& placement : plan.output) {
    if (std::holds_alternative<Partial>(placement)) placement = Replicate{};
  }
  return plan;
}

bool has_activations(const Plan& plan) {
  return plan.modules.size() == plan.scenario.model.modules.size() &&
         static_cast<int>(plan.output.size()) == plan.mesh().num_dims();
}

}  // namespace hpsim
