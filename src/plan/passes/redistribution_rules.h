#pragma once

#include <string_view>

#include "plan/plan.h"

namespace hpsim {

/// Why an activation, or its gradient, changes its layout or dtype: for Why::rule.
[[nodiscard]] std::string_view redistribution_rule(const Plan& plan,
                                                   const Redistribution& redistribution);

}  // namespace hpsim
