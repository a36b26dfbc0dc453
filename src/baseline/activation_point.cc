#include "baseline/activation_point.h"

#include <cmath>
#include <numbers>

#include "base/check.h"

namespace hpsim {
namespace {

/// Variance of an error within 4u, in units of u²/3.
constexpr double kFunctionRounding = 16;

double square(double x) {
  return x * x;
}

ActivationPoint tanh_at(double x) {
  const double y = std::tanh(x);
  const double slope = 1 - y * y;
  const double y_rounding = kFunctionRounding * y * y;
  return {.value = y,
          .slope = slope,
          .curvature = -2 * y * slope,
          .value_rounding = y_rounding,
          // The run forms 1 - y * y from its own y: the error of y, then the square, then the
          // difference.
          .slope_rounding = square(2 * y) * y_rounding + square(y * y) + square(slope)};
}

ActivationPoint gelu_at(double x) {
  const double erf_value = std::erf(x / std::numbers::sqrt2);
  const double cdf = 0.5 * std::erfc(-x / std::numbers::sqrt2);
  const double density = std::exp(-0.5 * x * x) * std::numbers::inv_sqrtpi / std::numbers::sqrt2;
  // Phi is (1 + erf(x / sqrt 2)) / 2: the error of erf stays absolute where Phi is tiny; the
  // argument is rounded twice, and moves Phi by x phi times that.
  const double cdf_rounding =
      kFunctionRounding * square(erf_value / 2) + square(cdf) + 2 * square(x * density);
  // The exponent -x²/2 is rounded twice, which exp turns into a relative error of x²/2 times that.
  const double density_rounding =
      square(density) * (kFunctionRounding + 2 * square(0.5 * x * x) + 2);
  const double slope = cdf + x * density;
  return {.value = x * cdf,
          .slope = slope,
          .curvature = density * (2 - x * x),
          .value_rounding = x * x * cdf_rounding + 2 * square(x * cdf),
          .slope_rounding =
              cdf_rounding + x * x * density_rounding + square(x * density) + square(slope)};
}

/// x/2 (1 + tanh(c (x + a x³))), c = sqrt(2 / pi), a = 0.044715.
ActivationPoint gelu_tanh_at(double x) {
  constexpr double kCubic = 0.044715;
  const double factor = std::numbers::sqrt2 * std::numbers::inv_sqrtpi;
  const double inner = factor * (x + kCubic * x * x * x);
  const double inner_slope = factor * (1 + 3 * kCubic * x * x);
  const double t = std::tanh(inner);
  const double t_slope = 1 - t * t;
  const double half_gate = 1 / (1 + std::exp(-2 * inner));  // (1 + t) / 2, no cancellation
  // The cubic takes six roundings, all relative (its terms have one sign).
  const double t_rounding = kFunctionRounding * t * t + 6 * square(t_slope * inner);
  const double gate_rounding = 0.25 * t_rounding + square(half_gate);
  const double slope = half_gate + 0.5 * x * t_slope * inner_slope;
  return {.value = x * half_gate,
          .slope = slope,
          .curvature = t_slope * inner_slope + 0.5 * x * t_slope * 6 * kCubic * factor * x -
                       x * t * t_slope * square(inner_slope),
          .value_rounding = x * x * gate_rounding + 2 * square(x * half_gate),
          // d slope / dt = 1/2 - x t inner'; then 1 + t, t * t, six factors, the last sum.
          .slope_rounding = square(0.5 - x * t * inner_slope) * t_rounding + square(half_gate) +
                            square(0.5 * x * inner_slope * t * t) +
                            6 * square(0.5 * x * t_slope * inner_slope) + square(slope)};
}

}  // namespace

ActivationPoint silu_at(double x) {
  const double s = 1 / (1 + std::exp(-x));
  const double slope = s * (1 + x * (1 - s));
  // exp, sum, quotient are relative; a run that forms s as (1 + tanh(x / 2)) / 2 is off by u/2 of
  // 1/2 also where s is tiny.
  const double s_rounding = (kFunctionRounding + 2) * s * s + 1;
  const double y = x * s;
  return {.value = y,
          .slope = slope,
          .curvature = s * (1 - s) * (2 + x * (1 - 2 * s)),
          .value_rounding = x * x * s_rounding + y * y,
          // d slope / ds = 1 + x - 2xs; then 1 - s and its product with x, the sum, the product.
          .slope_rounding = square(1 + x - 2 * x * s) * s_rounding + 2 * square(x * s * (1 - s)) +
                            2 * square(slope)};
}

ActivationPoint activation_at(const ModuleSpec& spec, double x) {
  switch (spec.type) {
    case ModuleType::Tanh:
      return tanh_at(x);
    case ModuleType::Silu:
      return silu_at(x);
    case ModuleType::Gelu:
      return spec.tanh_approximation ? gelu_tanh_at(x) : gelu_at(x);
    case ModuleType::Relu:
    case ModuleType::Linear:
    case ModuleType::LayerNorm:
    case ModuleType::RmsNorm:
    case ModuleType::Embedding:
    case ModuleType::AttentionCore:
    case ModuleType::SiluGate:
    case ModuleType::Add:
    case ModuleType::Experts:
      break;
  }
  HPSIM_CHECK(false, "no smooth activation: {}", name_of(spec.type));
  return {};
}

}  // namespace hpsim
