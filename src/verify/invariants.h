#pragma once

#include "verify/evidence.h"
#include "verify/verdict.h"

namespace hpsim {

// What must be true of a run whatever its numbers should be. Each appends its check and findings.

/// replica-agreement: ranks with the same shard of a parameter hold the same bits of its initial
/// values, and of gradient, parameter and optimizer state after every step; of gradient and state
/// only those that see the same samples where ranks hold their own. Left out where no rank
/// holds a copy. Compared: numbers of every rank but the first of its group. Code:
/// REPLICA_DIVERGED, the first rank and element that differ. \pre run.has_numbers()
void check_replicas(const Evidence& evidence, Verdict& verdict);

/// padding: it was zero whenever it was sent (PADDING_NONZERO), no rank holds more rows than its
/// true shard (PADDING_EXPOSED), and padding was allocated and written as often as planned.
/// Compared: padding elements looked at; where the plan has no padding, ranks, on which allocations
/// and writes of padding must be 0. \pre run.has_numbers()
void check_padding(const Evidence& evidence, Verdict& verdict);

}  // namespace hpsim
