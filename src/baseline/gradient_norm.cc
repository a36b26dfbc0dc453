#include "baseline/gradient_norm.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace hpsim {
namespace {

constexpr double kUnit = 0x1p-53 * 0x1p-53 * 2 / 3;  // the run's sum and the baseline's
constexpr double kFunctionRounding = 16;             // within 4u

double square(double x) {
  return x * x;
}

TrackedScalar two_norm(const std::vector<TrackedTensor>& gradients) {
  TrackedSum squares;
  double inherited = 0;
  for (const TrackedTensor& gradient : gradients) {
    const auto values = gradient.value.map().array().square();
    squares.sum += values.sum();
    squares.sum_of_squares += values.square().sum();
    squares.count += static_cast<double>(gradient.value.elems());
    if (!gradient.is_exact()) inherited += gradient.variance_map().sum();
  }
  const double of_sum =
      kUnit * squares.count * (squares.sum_of_squares + squares.sum * squares.sum);
  const double norm = std::sqrt(squares.sum);
  // d norm = d sum / (2 norm).
  return {norm, inherited + (squares.sum == 0 ? 0 : of_sum / (4 * squares.sum))};
}

TrackedScalar largest_of(const std::vector<TrackedTensor>& gradients) {
  TrackedScalar norm;
  for (const TrackedTensor& gradient : gradients) {
    for (const double value : gradient.value.data)
      norm.value = std::max(norm.value, std::abs(value));
    for (const double variance : gradient.variance)
      norm.variance = std::max(norm.variance, variance);
  }
  return norm;
}

/// Of numbers over a power of two near the largest: powers of small ones would underflow.
TrackedScalar power_norm(const std::vector<TrackedTensor>& gradients, double p) {
  TrackedSum powers;
  double of_deviations = 0;
  const double largest = largest_of(gradients).value;
  const double unit = largest == 0 ? 1 : std::exp2(std::ilogb(largest));
  for (const TrackedTensor& gradient : gradients) {
    for (const double value : gradient.value.data) {
      const double power = std::pow(std::abs(value) / unit, p);
      powers.sum += power;
      powers.sum_of_squares += square(power);
    }
    powers.count += static_cast<double>(gradient.value.elems());
    for (const double variance : gradient.variance)
      of_deviations += std::pow(variance / square(unit), p / 2);
  }
  const double norm = unit * std::pow(powers.sum, 1 / p);
  const double inherited = square(unit) * std::pow(of_deviations, 2 / p);
  if (powers.sum == 0) return {norm, inherited};
  const double of_sum = kUnit * (powers.count * (powers.sum_of_squares + square(powers.sum)) +
                                 kFunctionRounding * powers.sum_of_squares);
  // d norm = norm / (p sum) d sum.
  return {norm, inherited + square(norm / (p * powers.sum)) * of_sum +
                    kUnit * kFunctionRounding * square(norm)};
}

}  // namespace

TrackedScalar norm_of(const std::vector<TrackedTensor>& gradients, double p) {
  HPSIM_CHECK(p >= 1, "a {}-norm", p);
  if (p == 2) return two_norm(gradients);
  return std::isinf(p) ? largest_of(gradients) : power_norm(gradients, p);
}

ClipFactor clip_factor(const ClipSpec& spec, const TrackedScalar& norm, double confidence) {
  const auto factor = [&](double of_norm) {
    return std::min(1.0, spec.max_norm / (std::max(0.0, of_norm) + 1e-6));
  };
  const double reach = confidence * std::sqrt(norm.variance);
  ClipFactor result;
  result.factor.value = factor(norm.value);
  const double low = factor(norm.value + reach);
  const double high = factor(norm.value - reach);
  const double furthest = std::max(result.factor.value - low, high - result.factor.value);
  result.factor.variance = square(furthest / confidence);
  result.may_clip = low < 1;
  return result;
}

TrackedTensor clipped(const TrackedTensor& gradient, const ClipFactor& clip,
                      const Rounding& rounding) {
  if (!clip.may_clip) return gradient;
  TrackedTensor result = tracked_zeros(gradient.value.rows, gradient.value.cols);
  const double factor = clip.factor.value;
  const double factor_deviation = std::sqrt(clip.factor.variance);
  for (std::size_t i = 0; i < result.variance.size(); ++i) {
    const double value = gradient.value.data[i];
    const double deviation = gradient.is_exact() ? 0 : std::sqrt(gradient.variance[i]);
    result.value.data[i] = factor * value;
    result.variance[i] = square(factor * deviation + std::abs(value) * factor_deviation) +
                         2 * rounding.variance() * square(factor * value);
  }
  return result;
}

}  // namespace hpsim
