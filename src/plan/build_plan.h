#pragma once

#include "plan/plan.h"

namespace hpsim {

/// Plans a scenario: lays out the parameters, forms buckets, schedules compute with unshard and
/// reshard around it, inserts the reductions that the data flow asks for. Cost does not depend on
/// the number of ranks.
[[nodiscard]] Plan build_plan(Scenario scenario);

}  // namespace hpsim
