#pragma once

#include <cstdint>
#include <string>

#include "plan/plan.h"

namespace hpsim {

/// What a step of the plan is about, for people: "all_gather of unit l0 (forward, step 0)",
/// "forward of l0 (step 0)", "optimizer (step 0)"; steps are counted from 0 as in reports.
[[nodiscard]] std::string describe_step(const Plan& plan, std::int64_t plan_step);

}  // namespace hpsim
