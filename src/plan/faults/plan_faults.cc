#include "plan/faults/plan_faults.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "base/error.h"
#include "plan/faults/operators.h"
#include "scenario/fault_catalog.h"

namespace hpsim {

PlanFault find_plan_fault(std::string_view name) {
  for (const auto& operators : {planning_operators(), executed_operators(), storage_operators()}) {
    const auto found =
        std::find_if(operators.begin(), operators.end(),
                     [&](const NamedPlanFault& named) { return named.name == name; });
    if (found != operators.end()) return found->apply;
  }
  return nullptr;
}

Diagnostic no_place_for(const FaultSpec& fault, const Scenario& scenario) {
  const FaultKind& kind = fault_kind(fault.name);
  return {.file = scenario.file,
          .pointer = fault.pointer,
          .message = fmt::format("fault \"{}\" has no place in this scenario", fault.name),
          .help = kind.needs.empty() ? std::string("aim it at more, or leave it out")
                                     : fmt::format("it needs {}", kind.needs)};
}

Plan plant_plan_faults(Plan plan) {
  std::vector<Diagnostic> refused;
  const std::vector<FaultSpec> faults = plan.scenario.faults;
  for (const NamedPlanFault& named : planning_operators()) {
    for (const FaultSpec& fault : faults) {
      if (fault.name == named.name && !named.apply(plan, fault))
        refused.push_back(no_place_for(fault, plan.scenario));
    }
  }
  if (!refused.empty()) throw Error(ErrorKind::InvalidScenario, std::move(refused));
  return plan;
}

}  // namespace hpsim
