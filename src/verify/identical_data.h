#pragma once

#include "verify/evidence.h"
#include "verify/verdict.h"

namespace hpsim {

/// Warns (LOSS_VALUE of loss-parity) where ranks that differ along replicate dims alone should see
/// different samples, but all computed the same losses, bit for bit, in all steps: replicas that
/// are fed identical data agree, and train no faster than one. \pre evidence.run.has_numbers()
void warn_of_identical_data(const Evidence& evidence, Verdict& verdict);

}  // namespace hpsim
