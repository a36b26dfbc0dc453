#pragma once

#include "verify/evidence.h"
#include "verify/verdict.h"

namespace hpsim {

/// precision: where numbers are held in a wider dtype than they have (scenario/precision.h), every
/// number that was sent, and every parameter, gradient and optimizer state that was recorded, is
/// one of its dtype. A cast that is missing leaves numbers that are none. Nothing is checked where
/// all numbers are held in their own dtype.
///
///   bfloat16 on the wire, sent as it was in float32     COMM_DTYPE
///   a float16 parameter, stored as float32              PARAM_VALUE
///   a gradient, likewise                                GRAD_VALUE
void check_precision(const Evidence& evidence, Verdict& verdict);

}  // namespace hpsim
