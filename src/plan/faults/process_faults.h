#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/ids.h"
#include "plan/plan.h"

namespace hpsim {

/// A fault of the stage Process and its place in the plan.
struct PlacedFault {
  std::string name;  ///< kill, throw or stall
  std::vector<Rank> ranks;
  std::int64_t plan_step = 0;  ///< they do it before this step
};

/// Where the faults of the stage Process in the plan's scenario strike. With 3 collectives per
/// optimizer step, 0..5 in two steps:
///
///   {}                      before collective 0
///   {"step": 1}             before collective 3, the first of optimizer step 1
///   {"seq": 5}              before collective 5
///   {"step": 1, "seq": 5}   the same
///   {"step": 0, "seq": 5}   refused: collective 5 is of optimizer step 1
///   {"seq": 6}              refused: outside 0..5
///
/// An optimizer step without collectives, as a mesh of one rank has it, is struck at its begin.
/// \throws Error (InvalidScenario) with every seq that is refused
[[nodiscard]] std::vector<PlacedFault> place_faults(const Plan& plan);

}  // namespace hpsim
