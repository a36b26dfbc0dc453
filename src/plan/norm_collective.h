#pragma once

#include <cstdint>
#include <vector>

#include "plan/plan.h"
#include "plan/spec_difference.h"

namespace hpsim {

/// How many facts norm_collective_differences looks at.
inline constexpr std::int64_t kFactsOfNormCollective = 4;

/// In what the collective of a ClipGradients step is not the one that a norm asks for: an
/// all_reduce of one float64 over all ranks, unscaled, of the sum or, where norm_type is infinite,
/// of the largest (NORM_VALUE).
/// \pre the step has a collective
[[nodiscard]] std::vector<SpecDifference> norm_collective_differences(const Plan& plan,
                                                                      const Step& step);

}  // namespace hpsim
