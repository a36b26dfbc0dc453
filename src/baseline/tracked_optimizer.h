#pragma once

#include <cstdint>
#include <vector>

#include "baseline/tracked_arithmetic.h"
#include "scenario/scenario.h"

namespace hpsim {

/// One parameter and its optimizer state.
struct TrackedUpdate {
  TrackedTensor parameter;
  std::vector<TrackedTensor> state;  ///< OptimizerSpec::num_state_tensors of them
};

/// One update by torch.optim's rules, with variances:
///   sgd    g += wd w; b = g at step 0, else mu b + g; g += mu b if nesterov; w -= lr (b or g)
///   adam   g += wd w; m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g²;
///          w -= lr / (1 - b1^t) m / (sqrt(v) / sqrt(1 - b2^t) + eps), t = step + 1
///   adamw  the same, but w *= 1 - lr wd first instead of g += wd w
/// Numbers of the rule (1 - b2, lr / (1 - b1^t), ...) are taken to be made in float64 and rounded
/// once to the run's dtype. Adam's update is no smooth function of g where v is small: its spread
/// is the largest change over the interval g ± k sigma (and m, v likewise), found at the ends, at
/// 0 and at the update's stationary points.
[[nodiscard]] TrackedUpdate update_tracked(const OptimizerSpec& spec, std::int64_t step,
                                           const Rounding& rounding, const TrackedTensor& parameter,
                                           const std::vector<TrackedTensor>& state,
                                           const TrackedTensor& gradient);

}  // namespace hpsim
