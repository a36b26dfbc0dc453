#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "tensor/shape.h"
#include "trace/run_result.h"
#include "verify/error_bound.h"

namespace hpsim {

/// What a shard should hold: its part of a tensor of the reference. `spread` may be empty: zeros.
struct ExpectedShard {
  std::span<const double> value;
  std::span<const double> spread;
  ErrorBound bound;

  [[nodiscard]] double bound_at(std::size_t i) const {
    return bound.at(value[i], spread.empty() ? 0.0 : spread[i]);
  }
};

/// The boxes of a tensor in storage order: a view where they are one contiguous run, else a copy.
class GatheredBoxes {
 public:
  /// \pre `tensor` has the elements of `shape`; it outlives this
  GatheredBoxes(std::span<const double> tensor, const Shape& shape, const std::vector<Box>& boxes);
  [[nodiscard]] std::span<const double> values() const { return values_; }

 private:
  std::vector<double> copy_;
  std::span<const double> values_;
};

/// How a shard compares with what it should hold.
struct ShardComparison {
  std::int64_t compared = 0;
  std::int64_t failed = 0;       ///< elements with not (|got - expected| <= bound)
  std::int64_t worst_index = 0;  ///< position in the shard; the first of equals
  double worst_ratio = 0;        ///< |got - expected| / bound; 0 if equal, inf if bound is 0
};

/// Compares every element. NaN and infinities fail whatever the bound is; -0 equals +0.
///
///   got      expected   bound   failed   ratio
///   1.5      1          0.5     0        1
///   1.5      1          0       1        inf
///   -0       +0         0       0        0
///   NaN      any        any     1        inf
///   inf      inf        inf     1        inf
///
/// \pre got.elems == expected.value.size(), got is float32 or float64
[[nodiscard]] ShardComparison compare_shard(const TensorView& got, const ExpectedShard& expected);

/// got / expected where it is one number for all elements of a shard.
struct ConstantRatio {
  double value = 1;
  double uncertainty = 0;  ///< 0 if it is one of the candidates
};

/// The ratio c with |got - c expected| <= max(1, |c|) bound on every element, or nothing. Tried are
/// the candidates in order, then the ratio r at the largest |expected|; that one is itself
/// uncertain by delta = max(1, |r|) bound / |expected|, so |expected| delta is allowed too, and
/// needs two elements that deviate by more than their bounds. Ratios 0 and 1 are none. Rounding in
/// here adds 4 2^-53 |got|.
///
///   got        expected   bound   candidates   ratio
///   2, 4       1, 2       0       {2, 0.5}     2
///   3, 6       1, 2       0       {2, 0.5}     3
///   3          1          0       {2, 0.5}     none: one element shows no constant
///   2          1          0       {2, 0.5}     2
///   2, 5       1, 2       0       {2, 0.5}     none
///   0, 0       1, 2       0       {}           none
[[nodiscard]] std::optional<ConstantRatio> constant_ratio(const TensorView& got,
                                                          const ExpectedShard& expected,
                                                          const std::vector<double>& candidates);

/// The first element whose bits differ, or nothing. \pre same dtype and size
[[nodiscard]] std::optional<std::int64_t> first_difference(const TensorView& a,
                                                           const TensorView& b);

}  // namespace hpsim
