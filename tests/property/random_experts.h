#pragma once

#include <string>

#include "random_scenario.h"

namespace hpsim::test {

/// The JSON text of a small model with a mixture of experts that is valid: alone, behind a norm or
/// a linear, in a residual or not, with an output layer or not; one to twelve experts over ep,
/// inside over tp, or both; vectors or sequences; on 1 to 8 ranks of up to 4 mesh dims in any
/// order, any data dims, both losses, normalizations and reduce_ops, and policies as draw_policies
/// adds them.
[[nodiscard]] std::string random_experts(Dice& dice);

}  // namespace hpsim::test
