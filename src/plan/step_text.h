#pragma once

#include <string>

#include "plan/plan.h"

namespace hpsim {

/// What a step does, and to what; neither when nor with whom.
///
///   unshard of unit "l0"      reduce_scatter of unit "l0"     optimizer
///   backward of "l0"          backward of "l0", once more     loss
///   all_reduce of the output of "down"                        dispatch of tokens to "moe.experts"
[[nodiscard]] std::string step_text(const Plan& plan, const Step& step);

}  // namespace hpsim
