#pragma once

#include <vector>

#include "baseline/tracked_arithmetic.h"
#include "scenario/scenario.h"

namespace hpsim {

/// The p-norm of all gradients together, p infinity: the largest magnitude; tensors may be empty.
/// Errors of elements are joined as if all pulled the same way, |delta norm| <= |delta G| in the
/// same norm. The sum itself is made in float64, whatever the dtype: of n powers t, each within 4u,
/// it is off by u² / 3 (n (sum t² + S²) + 16 sum t²), and the root S^(1/p) by 4u again.
///
///   3, -4    p 1: 7    p 2: 5    infinity: 4
/// \pre p >= 1
[[nodiscard]] TrackedScalar norm_of(const std::vector<TrackedTensor>& gradients, double p);

/// What gradients of such a norm are multiplied by, min(1, max_norm / (norm + 1e-6)). The error is
/// the largest that the norm's interval allows, whichever of the two it takes.
struct ClipFactor {
  TrackedScalar factor{1, 0};
  bool may_clip = false;  ///< else it is 1, and rounds nothing
};
[[nodiscard]] ClipFactor clip_factor(const ClipSpec& spec, const TrackedScalar& norm,
                                     double confidence);

/// The gradient times the factor, of whose norm it is part: deviations add up. The factor as a
/// number of the carrier, and the product, are rounded.
[[nodiscard]] TrackedTensor clipped(const TrackedTensor& gradient, const ClipFactor& clip,
                                    const Rounding& rounding);

}  // namespace hpsim
