#pragma once

#include <string>
#include <vector>

#include "plan/plan.h"

namespace hpsim {

/// What a wrong factor of the gradient of a parameter may be: texts of the numbers of the scenario,
/// and their inverses, that are `ratio`; where there are none, of products of two of them.
///
///   W  ranks          S  shards of the parameter         tp, ep  ranks along these mesh dims
///   D  data ranks     R  its replicas                    M       micro-batches
///                     S*R  both                          F, k    gradient divisor, scaling factor
///
///   mesh (rep 2, fsdp 4), avg    8 -> W=8, D=8, S*R=8, F=8    0.5 -> 1/R=1/2    0.125 -> 1/W=1/8,
///   ...
[[nodiscard]] std::vector<std::string> scale_names(const Plan& plan, int parameter, double ratio);

}  // namespace hpsim
