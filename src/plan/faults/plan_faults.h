#pragma once

#include <string_view>

#include "plan/plan.h"

namespace hpsim {

/// Does to a plan what a fault says, as far as its keys aim it (FaultSpec::is_about, is_in, ...;
/// not at ranks, which is for whoever runs the plan). False: it has no place in this plan, which is
/// then as it was. A place is one where the fault makes a difference: what a fault would do in vain
/// does not count, so that whoever planted it may ask for its finding.
using PlanFault = bool (*)(Plan& plan, const FaultSpec& fault);

/// What a fault of stage Plan does, or one of stage Run that is another plan; null for the others.
/// Those of stage Run change no number of steps, and no step's place.
[[nodiscard]] PlanFault find_plan_fault(std::string_view name);

/// The plan with the faults of stage Plan of its scenario in it, as if a pass had made them: in the
/// order of planning_operators, however the scenario lists them.
/// \throws Error (InvalidScenario) with every one of them that has no place in it
[[nodiscard]] Plan plant_plan_faults(Plan plan);

/// A fault without a place, in words for a user, at its pointer.
[[nodiscard]] Diagnostic no_place_for(const FaultSpec& fault, const Scenario& scenario);

}  // namespace hpsim
