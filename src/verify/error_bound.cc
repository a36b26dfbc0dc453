#include "verify/error_bound.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "base/check.h"

namespace hpsim {
namespace {

constexpr std::size_t kSampleSize = 4096;

/// `count` items chosen out of `size`: all of them, or multiples of the golden ratio modulo 1,
/// which fall evenly whatever the tensor's row length is.
std::vector<std::size_t> sample_positions(std::size_t size) {
  std::vector<std::size_t> positions;
  const std::size_t count = std::min(size, kSampleSize);
  positions.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    if (size <= kSampleSize) {
      positions.push_back(i);
    } else {
      const std::uint64_t fraction = (i * 0x9E3779B97F4A7C15) >> 32;  // of 2^32
      positions.push_back(static_cast<std::size_t>((fraction * size) >> 32));
    }
  }
  return positions;
}

/// The middle element, the upper one of two. A NaN counts as infinite.
double median(std::vector<double>& values) {
  if (values.empty()) return 0;
  for (double& value : values)
    value = std::isnan(value) ? INFINITY : value;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

Medians medians_at(const ReferenceTensor& tensor, const ErrorBound& bound,
                   const std::vector<std::size_t>& positions) {
  std::vector<double> expected;
  std::vector<double> bounds;
  for (const std::size_t i : positions) {
    expected.push_back(std::abs(tensor.value[i]));
    bounds.push_back(bound.at(tensor.value[i], tensor.spread[i]));
  }
  return {median(expected), median(bounds)};
}

}  // namespace

ErrorBound bound_of(const ReferenceRun& reference) {
  return {reference.exact, reference.unit_roundoff};
}

Medians medians_of(const ReferenceTensor& tensor, const ErrorBound& bound) {
  HPSIM_CHECK(tensor.value.size() == tensor.spread.size(), "{} values, {} spreads",
              tensor.value.size(), tensor.spread.size());
  const std::size_t size = tensor.value.size();
  HPSIM_CHECK(size < (std::size_t{1} << 32), "a tensor of {} elements", size);
  const Medians of_all = medians_at(tensor, bound, sample_positions(size));
  if (of_all.expected != 0) return of_all;
  std::vector<std::size_t> nonzero;
  for (std::size_t i = 0; i < size; ++i) {
    if (tensor.value[i] != 0) nonzero.push_back(i);
  }
  if (nonzero.empty()) return of_all;
  std::vector<std::size_t> chosen;
  for (const std::size_t i : sample_positions(nonzero.size()))
    chosen.push_back(nonzero[i]);
  return medians_at(tensor, bound, chosen);
}

bool is_vacuous(const Medians& medians, double largest_expected) {
  if (!std::isfinite(medians.bound) || !std::isfinite(medians.expected)) return true;
  const double size = medians.expected != 0 ? medians.expected : largest_expected;
  return size != 0 && medians.bound > size / 8;
}

}  // namespace hpsim
