#pragma once

#include <functional>
#include <vector>

#include "plan/plan.h"
#include "trace/run_result.h"

namespace hpsim {

/// A view of float64 numbers, which must outlive it.
[[nodiscard]] TensorView as_view(const std::vector<double>& values);

/// The mean of what several ranks recorded of one tensor, element by element, and how far they are
/// from it.
struct RankMean {
  std::vector<double> mean;
  std::vector<double> scatter;  ///< mean of squared distances from the mean; empty for one rank
};

/// Sums are compensated: the mean is off by little more than the rounding of a float64, whatever
/// cancels.
///
///   ranks            mean   scatter
///   1, 3             2      1
///   1e30, 1, -1e30   1/3    6.7e59
///   5                5      none
/// \pre at least one view, all of one size
[[nodiscard]] RankMean mean_of(const std::vector<TensorView>& views);

/// The mean over the ranks that vary along the averaged dims of parameter `p`, `rank` among them.
/// \pre run.has_numbers()
[[nodiscard]] RankMean own_mean(const Plan& plan, int p, Rank rank,
                                const std::function<TensorView(Rank)>& view_of);

}  // namespace hpsim
