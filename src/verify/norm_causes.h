#pragma once

#include <string>
#include <vector>

#include "verify/evidence.h"

namespace hpsim {

/// Which gradients a wrong norm is the norm of: candidates are computed from the gradients that
/// ranks recorded, and `got`, the norm that `rank` used, or that all of them together have, must be
/// one of them to 2 (n + 8) 2^-53 of itself, n gradients: both are sums of the same n powers.
///
///   the right norm of them: the gradients are off
///   replicated gradients counted once per rank of some mesh dims (all, then one dim)
///   those of the rank itself, or of the ranks of its group along some mesh dims, alone
///   the mean, or the sum, of the norms of ranks
///   another p-norm, or the sum of squares without its root
///   without one parameter
///
/// "is the norm of the gradients as recorded",
/// "counts copies along tp: gradients that all its ranks hold count tp=2 times",
/// "is the norm of what rank 3 holds alone", "is the norm of what ep=1 holds alone",
/// "is the mean of the norms of ranks", "is the 1-norm", "is without "norm.weight""
[[nodiscard]] std::vector<std::string> norm_causes(const Evidence& evidence, std::int64_t step,
                                                   double got, Rank rank);

}  // namespace hpsim
