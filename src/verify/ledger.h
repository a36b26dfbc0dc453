#pragma once

#include "verify/evidence.h"
#include "verify/verdict.h"

namespace hpsim {

/// ledger: the memory of every rank is that of the plan, byte for byte (MEM_ESTIMATE): peaks by
/// kind and in total, while parameters are made and from then on; live bytes by kind after every
/// optimizer step; and after every step of the plan, with the most that was alive within it. Of
/// these last the first one that differs is told, and how many more do. Compared: all these
/// numbers.
void check_ledger(const Evidence& evidence, Verdict& verdict);

}  // namespace hpsim
