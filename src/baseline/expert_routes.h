#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "baseline/tracked_softmax.h"
#include "scenario/scenario.h"

namespace hpsim {

/// A position whose choice of experts rounding may change.
struct NearTie {
  std::int64_t row = 0;
  std::int32_t chosen = 0;
  std::int32_t other = 0;  ///< which a run may choose in its place; -1: p of `chosen` underflows
  double chosen_p = 0;
  double other_p = 0;
};

/// Where the rows of one experts module go.
struct ExpertRoutes {
  std::vector<std::int32_t> experts;  ///< top_k per row, by falling probability
  std::optional<NearTie> near_tie;    ///< of the first row that has one
};

/// The `top_k` largest of p, by falling p, ties to the lower index.
///
///   0.2 0.5 0.3, 2    1 2
///   0.3 0.3 0.4, 2    2 0
///   0.5 0.5 0.0, 1    0
/// \pre 0 <= top_k <= p.size()
[[nodiscard]] std::vector<std::int32_t> largest_first(std::span<const double> p,
                                                      std::int64_t top_k);

/// Routes of every row by the softmax of its logits, whose variances are given.
///
/// A run compares the p that it computed, which rounds nothing. l is common to a row and division
/// by it keeps the order, so of two experts only the exponents' errors and the quotients' count:
/// log(p_i / p_j) = s_i - s_j is off by e_i - e_j, Var(e) = E + 2c (tracked_softmax.h). Both
/// logits are made of one x, so deviations add up. The choice of i before j is certain if
///   s_i - s_j > k (sqrt(E_i + 2c) + sqrt(E_j + 2c)),
/// or if both logits are exact and equal: then their p are equal, too, and the index decides. It
/// is checked for every pair, since one of lower p may have a larger error. Where the p of i
/// underflows, errors are not relative, and nothing is certain: neither which expert comes next nor
/// what the chosen one computes. Rows in `unused`, ascending, are of no matter.
[[nodiscard]] ExpertRoutes route_by(const Rounding& rounding, const TrackedSoftmax& softmax,
                                    const TrackedTensor& logits, std::int64_t top_k,
                                    const std::vector<std::int64_t>& unused = {});

/// \throws Error (InvalidScenario), NEAR_TIE, if one of the routes, which are like experts_modules,
///         is not certain
void require_certain(const Scenario& scenario, std::int64_t step,
                     const std::vector<ExpertRoutes>& routes);

}  // namespace hpsim
