#pragma once

#include "verify/evidence.h"
#include "verify/verdict.h"

namespace hpsim {

/// Every rank routed its positions to the experts that the baseline chooses, as many to each.
/// Nothing to check where no module has experts.
void check_routing(const Evidence& evidence, Verdict& verdict);

}  // namespace hpsim
