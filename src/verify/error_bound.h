#pragma once

#include <cstdint>
#include <vector>

#include "trace/reference_run.h"

namespace hpsim {

/// How far a correct run may be from the reference: spread + 4u|value|, or nothing in exact mode
/// (README, "Bounds"). u is the unit roundoff of the run's dtype.
///
///   mode       value   spread   u        bound
///   exact      any     any      any      0
///   derived    0       0        2^-24    0
///   derived    -1      2^-30    2^-24    2^-30 + 2^-22
struct ErrorBound {
  bool exact = false;
  double unit_roundoff = 0;

  [[nodiscard]] double at(double value, double spread) const {
    return exact ? 0.0 : spread + 4 * unit_roundoff * (value < 0 ? -value : value);
  }
};

[[nodiscard]] ErrorBound bound_of(const ReferenceRun& reference);

/// What is typical of a tensor of the reference. Above 4096 elements the medians are those of 4096
/// elements spread evenly over it.
struct Medians {
  double expected = 0;  ///< of |value| over the elements that count; 0 only if all are 0
  double bound = 0;     ///< over the same elements
};

/// Medians over all elements, unless the median value itself is 0 (relu, integer data): then only
/// over those that are not 0, or the zeros would say that the tensor has no size. A tensor of zeros
/// only has expected = 0 and the median of its bounds.
///
///   values          bounds             medians
///   3, 1, 2         .3, .1, .2         2, .2
///   0, 0, 0, 8      9, 9, 9, 1         8, 1
///   0, 0            .1, .1             0, .1
[[nodiscard]] Medians medians_of(const ReferenceTensor& tensor, const ErrorBound& bound);

/// Whether the bounds of a tensor are so wide that being inside them says nothing: the median bound
/// exceeds 1/8 of the median |expected|. A tensor of zeros has no size of its own and is judged by
/// `largest_expected`, the largest median of the tensors of its kind and step; where all of them
/// are zero, any finite bound will do.
///
///   medians (expected, bound)   largest_expected   vacuous
///   8, 1                        8                  no
///   8, 1.001                    8                  yes
///   0, 1e-9                     2                  no
///   0, 1                        2                  yes
///   0, 1                        0                  no
///   0, NaN or inf               any                yes
[[nodiscard]] bool is_vacuous(const Medians& medians, double largest_expected);

}  // namespace hpsim
