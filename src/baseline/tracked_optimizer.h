#pragma once

#include <cstdint>
#include <vector>

#include "baseline/tracked_arithmetic.h"
#include "scenario/scenario.h"

namespace hpsim {

/// Ranks that update copies of a parameter by gradients of their own samples, and then take the
/// mean of what they got.
struct RankMeans {
  std::int64_t num_ranks = 1;    ///< 1: the usual way, one update by the gradient of all samples
  std::int64_t num_samples = 1;  ///< of all ranks
  /// Beside the state tensors, which are means: the mean squared distance of the ranks' own state
  /// from them. Null, or tensors empty: none.
  const std::vector<std::vector<double>>* scatter = nullptr;
};

/// One parameter and its optimizer state.
struct TrackedUpdate {
  TrackedTensor parameter;
  std::vector<TrackedTensor> state;          ///< OptimizerSpec::num_state_tensors of them
  std::vector<std::vector<double>> scatter;  ///< like RankMeans::scatter; empty in the usual way
};

/// One update by torch.optim's rules, with variances, of a parameter that had `num_updates` before:
///   sgd    g += wd w; b = g at the first, else mu b + g; g += mu b if nesterov; w -= lr (b or g)
///   adam   g += wd w; m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g²;
///          w -= lr / (1 - b1^t) m / (sqrt(v) / sqrt(1 - b2^t) + eps), t = num_updates + 1
///   adamw  the same, but w *= 1 - lr wd first instead of g += wd w
/// Numbers of the rule (1 - b2, lr / (1 - b1^t), ...) are taken to be made in float64 and rounded
/// once to the run's dtype. Adam's update is no smooth function of g where v is small: its spread
/// is the largest change over the interval g ± k sigma (and m, v likewise), found at the ends, at
/// 0 and at the update's stationary points.
///
/// Where A ranks update by gradients g_d of their own and average (sgd only), values are those of
/// the usual way, since the rule is linear. Errors are larger. With c = u²/3:
///   own numbers  A rank rounds what it holds, y_d. Whatever errors have in common, the variance of
///                their mean is at most the mean of their variances: c (y² + scatter of y), where
///                the usual way adds c y². a x + b y has at most the scatter (|a| sqrt(s_x) +
///                |b| sqrt(s_y))²; the weight has none before the update.
///   gradient     Its scatter is not known here, but its variance V is at least c n (sum x² + g²)
///                for terms x by samples, n of them. g_d is A times the x of a rank added up; in
///                random order the squares of these sums are together at most sum x² + g². So
///                mean(g_d²) <= A V / (c n).
///   its mean     Ranks scale their own sums instead of the total: A more roundings of partial
///                sums, c (sum x² + g²) at most. V counts n roundings where n - 1 additions are.
///   the average  A sum of A terms, and a product with 1/A: exact for a power of two, else two
///                roundings. The rule of sums is for terms with nothing in common, but copies may
///                be equal, and then round alike, partial sum j by up to u j |w|. Such errors add
///                up as deviations, sqrt(c) sum of j |w| / A <= sqrt(c) (A + 1) / 2 |w|. What the
///                scatter s adds to partial sums has nothing in common: c sum of j s / A² <= c s.
[[nodiscard]] TrackedUpdate update_tracked(const OptimizerSpec& spec, std::int64_t num_updates,
                                           const Rounding& rounding, const TrackedTensor& parameter,
                                           const std::vector<TrackedTensor>& state,
                                           const TrackedTensor& gradient,
                                           const RankMeans& ranks = {});

}  // namespace hpsim
