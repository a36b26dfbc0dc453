#pragma once

#include "verify/evidence.h"
#include "verify/verdict.h"

namespace hpsim {

// Whether what the ranks computed is what the reference says (README, "Bounds"). Each appends its
// check and findings. \pre evidence.run.has_numbers()

/// loss-parity: losses[t] = (1/D) sum of local losses for local_mean, their sum for sum, over data
/// ranks in order, in float64, against the reference. Ranks that see the same data must hold the
/// same bits first. Fills verdict.losses. Code: LOSS_VALUE.
void check_losses(const Evidence& evidence, Verdict& verdict);

/// gradient-parity: G of every shard on every rank and step; where ranks are updated by gradients
/// of their own (Plan::averaged_dims) the mean over them. Codes: GRAD_SCALE, GRAD_VALUE,
/// VACUOUS_BOUND. In exact mode an operation that rounded on any rank is a GRAD_VALUE too: equal
/// numbers then prove nothing.
void check_gradients(const Evidence& evidence, Verdict& verdict);

/// parameter-parity: initial shards equal the reference's in value, and updated shards after every
/// step; those that have no gradient in a step stay what they were, in every bit. Codes:
/// PARAM_VALUE, VACUOUS_BOUND.
void check_parameters(const Evidence& evidence, Verdict& verdict);

/// optimizer-state-parity, after every step, likewise with means; left out where the optimizer has
/// no state. Codes:
/// PARAM_VALUE, VACUOUS_BOUND.
void check_optimizer_state(const Evidence& evidence, Verdict& verdict);

/// grad-norm-parity: grad_norms[t] = sqrt(sum over ranks of norm_power, and of the squares of
/// means as above). Fills verdict.grad_norms. Code: NORM_VALUE.
///
/// In exact mode the norm is not exact: 2-norms of n numbers, each square in it rounded, divided
/// and added in float64 in any order, differ by at most (n + 4) 2^-53 of themselves on each side.
void check_grad_norms(const Evidence& evidence, Verdict& verdict);

}  // namespace hpsim
