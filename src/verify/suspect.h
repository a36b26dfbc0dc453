#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "verify/evidence.h"

namespace hpsim {

/// What a check of shards compares.
enum class TensorKind { Gradient, Parameter, State };

/// Which tensor of which step: `state` counts the optimizer's; no step: before step 0.
struct TensorPlace {
  TensorKind kind = TensorKind::Gradient;
  int state = 0;
  int parameter = 0;
  std::optional<std::int64_t> step;
};

/// Numbers and how far a right run may be from them.
struct BoundedValues {
  std::vector<double> value;
  std::vector<double> bound;

  [[nodiscard]] bool empty() const { return value.empty(); }
};

/// Boxes of a tensor of the reference; empty where it has none.
[[nodiscard]] BoundedValues reference_values(const Evidence& evidence, const TensorPlace& place,
                                             const std::vector<Box>& boxes);

/// What a rank recorded of a tensor; where ranks hold their own, the mean over them.
[[nodiscard]] std::vector<double> recorded_values(const Evidence& evidence,
                                                  const TensorPlace& place, Rank rank);

/// A shard that failed, with all that explanations of it are tried on.
struct Suspect {
  Suspect(const Evidence& all, const TensorPlace& at, Rank of);

  const Evidence& evidence;
  TensorPlace place;
  Rank rank;
  std::vector<Box> boxes;  ///< of the shard
  std::vector<double> got;
  BoundedValues expected;

  [[nodiscard]] std::size_t size() const { return got.size(); }
  [[nodiscard]] const PlannedParameter& parameter() const {
    return evidence.parameter(place.parameter);
  }
  /// Whether an element is outside its bound.
  [[nodiscard]] bool is_off(std::size_t i) const {
    return !(std::abs(got[i] - expected.value[i]) <= expected.bound[i]);
  }
  /// Whether all elements are value(i) within bound(i).
  template <class Value, class Bound>
  [[nodiscard]] bool agrees(const Value& value, const Bound& bound) const {
    for (std::size_t i = 0; i < size(); ++i) {
      if (!(std::abs(got[i] - value(i)) <= bound(i))) return false;
    }
    return true;
  }
  [[nodiscard]] bool agrees(const BoundedValues& values) const {
    return values.value.size() == size() && agrees([&](std::size_t i) { return values.value[i]; },
                                                   [&](std::size_t i) { return values.bound[i]; });
  }
};

/// "the gradient", "the parameter", "the momentum buffer", "exp_avg", "exp_avg_sq"
[[nodiscard]] std::string noun_of(const Evidence& evidence, const TensorPlace& place);

/// What the run held before an optimizer step: whole parameters.
[[nodiscard]] std::vector<std::vector<double>> parameters_before(const Evidence& evidence,
                                                                 std::int64_t step);

}  // namespace hpsim
