#include "verify/compare_shard.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/check.h"

namespace hpsim {
namespace {

/// Calls `f` with a typed pointer to the elements.
template <class F>
auto with_elements(const TensorView& view, F&& f) {
  if (view.dtype == DType::Float64) return f(reinterpret_cast<const double*>(view.data));
  HPSIM_CHECK(view.dtype == DType::Float32, "no recorded tensor is {}", name_of(view.dtype));
  return f(reinterpret_cast<const float*>(view.data));
}

/// `bound(i, value)`: inlined, so that the loop has no branch on the mode.
template <class T, class Bound>
ShardComparison compare_elements(const T* got, std::span<const double> value, Bound bound) {
  constexpr double kLargest = std::numeric_limits<double>::max();
  ShardComparison result;
  result.compared = static_cast<std::int64_t>(value.size());
  for (std::size_t i = 0; i < value.size(); ++i) {
    const double error = std::abs(static_cast<double>(got[i]) - value[i]);
    const double limit = std::min(bound(i, value[i]), kLargest);
    result.failed += !(error <= limit);
    const double ratio = error == 0 ? 0 : error / limit;
    if (!(ratio <= result.worst_ratio) && !std::isinf(result.worst_ratio)) {
      result.worst_ratio = std::isnan(ratio) ? std::numeric_limits<double>::infinity() : ratio;
      result.worst_index = static_cast<std::int64_t>(i);
    }
  }
  return result;
}

template <class T>
class RatioTest {
 public:
  RatioTest(const T* got, const ExpectedShard& expected) : got_(got), expected_(expected) {}

  /// Whether got = ratio * expected on every element within bounds.
  [[nodiscard]] bool holds(double ratio, double uncertainty) const {
    const double widening = std::max(1.0, std::abs(ratio));
    for (std::size_t i = 0; i < size(); ++i) {
      const auto got = static_cast<double>(got_[i]);
      const double value = expected_.value[i];
      const double allowed = widening * expected_.bound_at(i) + std::abs(value) * uncertainty +
                             4 * std::ldexp(std::abs(got), -53);
      if (!std::isfinite(got) || !(std::abs(got - ratio * value) <= allowed)) return false;
    }
    return true;
  }

  [[nodiscard]] std::optional<ConstantRatio> measured() const {
    const auto& value = expected_.value;
    const auto largest = static_cast<std::size_t>(
        std::max_element(value.begin(), value.end(),
                         [](double a, double b) { return std::abs(a) < std::abs(b); }) -
        value.begin());
    const double size_of_largest = std::abs(value[largest]);
    const double ratio = static_cast<double>(got_[largest]) / value[largest];
    if (!std::isfinite(ratio) || ratio == 0) return std::nullopt;
    const double uncertainty =
        std::max(1.0, std::abs(ratio)) * expected_.bound_at(largest) / size_of_largest;
    std::int64_t num_deviating = 0;
    for (std::size_t i = 0; i < size(); ++i) {
      num_deviating += std::abs((ratio - 1) * value[i]) > expected_.bound_at(i);
    }
    if (num_deviating < 2 || !holds(ratio, uncertainty)) return std::nullopt;
    return ConstantRatio{ratio, uncertainty};
  }

 private:
  [[nodiscard]] std::size_t size() const { return expected_.value.size(); }

  const T* got_;
  const ExpectedShard& expected_;
};

}  // namespace

GatheredBoxes::GatheredBoxes(std::span<const double> tensor, const Shape& shape,
                             const std::vector<Box>& boxes) {
  HPSIM_CHECK(static_cast<std::int64_t>(tensor.size()) == num_elems(shape),
              "{} elements for shape {}", tensor.size(), to_string(shape));
  std::vector<Interval> runs;
  std::int64_t elems = 0;
  for (const Box& box : boxes) {
    each_run(shape, box, [&](std::int64_t first, std::int64_t count) {
      elems += count;
      if (!runs.empty() && runs.back().end == first) {
        runs.back().end += count;
      } else {
        runs.push_back({first, first + count});
      }
    });
  }
  const auto part = [&](const Interval& run) {
    return tensor.subspan(static_cast<std::size_t>(run.begin),
                          static_cast<std::size_t>(run.length()));
  };
  if (runs.size() == 1) {
    values_ = part(runs[0]);
    return;
  }
  copy_.reserve(static_cast<std::size_t>(elems));
  for (const Interval& run : runs)
    copy_.insert(copy_.end(), part(run).begin(), part(run).end());
  values_ = copy_;
}

ShardComparison compare_shard(const TensorView& got, const ExpectedShard& expected) {
  HPSIM_CHECK(got.elems == static_cast<std::int64_t>(expected.value.size()),
              "{} elements recorded, {} expected", got.elems, expected.value.size());
  return with_elements(got, [&](const auto* elements) {
    if (expected.bound.exact) {
      return compare_elements(elements, expected.value, [](std::size_t, double) { return 0.0; });
    }
    if (expected.spread.empty()) {
      return compare_elements(elements, expected.value, [&](std::size_t, double value) {
        return expected.bound.at(value, 0);
      });
    }
    const double relative = 4 * expected.bound.unit_roundoff;
    const double* spread = expected.spread.data();
    return compare_elements(elements, expected.value, [=](std::size_t i, double value) {
      return spread[i] + relative * std::abs(value);
    });
  });
}

std::optional<ConstantRatio> constant_ratio(const TensorView& got, const ExpectedShard& expected,
                                            const std::vector<double>& candidates) {
  if (expected.value.empty()) return std::nullopt;
  return with_elements(got, [&](const auto* elements) -> std::optional<ConstantRatio> {
    const RatioTest test(elements, expected);
    for (const double candidate : candidates) {
      if (test.holds(candidate, 0)) return ConstantRatio{candidate, 0};
    }
    return test.measured();
  });
}

std::optional<std::int64_t> first_difference(const TensorView& a, const TensorView& b) {
  HPSIM_CHECK(a.elems == b.elems && a.dtype == b.dtype, "{} elements against {}", a.elems, b.elems);
  const std::int64_t width = size_bytes(a.dtype);
  if (std::memcmp(a.data, b.data, static_cast<std::size_t>(a.elems * width)) == 0) {
    return std::nullopt;
  }
  std::int64_t i = 0;
  while (std::memcmp(a.data + i * width, b.data + i * width, static_cast<std::size_t>(width)) ==
         0) {
    ++i;
  }
  return i;
}

}  // namespace hpsim
