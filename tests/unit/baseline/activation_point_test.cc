#include "baseline/activation_point.h"

#include <cmath>
#include <vector>

#include "support/catch.h"
#include "support/scenarios.h"

namespace hpsim {
namespace {

using test::activation;

TEST_CASE("activations at 0") {
  const double phi0 = 1 / std::sqrt(2 * 3.14159265358979323846);
  struct Row {
    ModuleType type;
    bool tanh_approximation;
    double slope, curvature;
  };
  // gelu's tanh form: curvature sqrt(2 / pi), the same number.
  for (const Row& row : std::vector<Row>{{ModuleType::Tanh, false, 1, 0},
                                         {ModuleType::Silu, false, 0.5, 0.5},
                                         {ModuleType::Gelu, false, 0.5, 2 * phi0},
                                         {ModuleType::Gelu, true, 0.5, 2 * phi0}}) {
    const ActivationPoint point =
        activation_at(activation("a", row.type, row.tanh_approximation), 0);
    CHECK(point.value == 0);
    CHECK(point.slope == Approx(row.slope).epsilon(1e-14));
    CHECK(point.curvature == Approx(row.curvature).epsilon(1e-14));
  }
}

TEST_CASE("slope and curvature are derivatives") {
  for (const ModuleSpec& spec :
       {activation("a", ModuleType::Tanh), activation("a", ModuleType::Silu),
        activation("a", ModuleType::Gelu), activation("a", ModuleType::Gelu, true)}) {
    for (double x = -6; x <= 6; x += 0.37) {
      INFO(name_of(spec.type) << " at " << x);
      // Fourth order: truncation h⁴/30 f⁽⁵⁾ with |f⁽⁵⁾| < 100 for these functions and their slopes,
      // rounding 2u / h of values below 8 (and of t and erf, which are near 1).
      constexpr double kWidth = 0x1p-10;
      const double tolerance = 100.0 / 30 * std::pow(kWidth, 4) + 16 * 0x1p-53 / kWidth;
      const auto difference = [&](auto member) {
        const auto at = [&](double d) { return activation_at(spec, x + d).*member; };
        return (8 * (at(kWidth) - at(-kWidth)) - (at(2 * kWidth) - at(-2 * kWidth))) /
               (12 * kWidth);
      };
      const ActivationPoint point = activation_at(spec, x);
      CHECK(std::abs(difference(&ActivationPoint::value) - point.slope) <= tolerance);
      CHECK(std::abs(difference(&ActivationPoint::slope) - point.curvature) <= tolerance);
    }
  }
}

/// Slopes as PyTorch writes them, in float.
float slope_in_float(const ModuleSpec& spec, float x) {
  if (spec.type == ModuleType::Tanh) return 1 - std::tanh(x) * std::tanh(x);
  if (spec.type == ModuleType::Silu) {
    const float s = 1 / (1 + std::exp(-x));
    return s * (1 + x * (1 - s));
  }
  if (!spec.tanh_approximation) {
    return 0.5F * (1 + std::erf(x * 0.70710678F)) + x * std::exp(-0.5F * x * x) * 0.39894228F;
  }
  const float t = std::tanh(0.79788456F * (x + 0.044715F * x * x * x));
  return 0.5F * (1 + t) + 0.5F * x * (1 - t * t) * 0.79788456F * (1 + 3 * 0.044715F * x * x);
}

float value_in_float(const ModuleSpec& spec, float x) {
  if (spec.type == ModuleType::Tanh) return std::tanh(x);
  // Through tanh, as vector libraries do: its error is relative to 1, not to the value.
  if (spec.type == ModuleType::Silu) return x * (0.5F + 0.5F * std::tanh(0.5F * x));
  if (!spec.tanh_approximation) return 0.5F * x * (1 + std::erf(x * 0.70710678F));
  return 0.5F * x * (1 + std::tanh(0.79788456F * (x + 0.044715F * x * x * x)));
}

TEST_CASE("roundings cover evaluation in float32, and not by much") {
  constexpr double kUnit = 0x1p-24;
  for (const ModuleSpec& spec :
       {activation("a", ModuleType::Tanh), activation("a", ModuleType::Silu),
        activation("a", ModuleType::Gelu), activation("a", ModuleType::Gelu, true)}) {
    double worst_value = 0;
    double worst_slope = 0;
    for (float x = -8; x <= 8; x += 0.00137F) {
      const ActivationPoint point = activation_at(spec, static_cast<double>(x));
      const auto deviations = [&](float got, double expected, double rounding) {
        const double error = std::abs(static_cast<double>(got) - expected);
        return error == 0 ? 0 : error / (kUnit * std::sqrt(rounding / 3));
      };
      worst_value = std::max(
          worst_value, deviations(value_in_float(spec, x), point.value, point.value_rounding));
      worst_slope = std::max(
          worst_slope, deviations(slope_in_float(spec, x), point.slope, point.slope_rounding));
    }
    INFO(name_of(spec.type) << " worst " << worst_value << " and " << worst_slope
                            << " standard deviations");
    // The smallest k is 6.5; a bound of which a tenth is never used would be loose.
    CHECK(worst_value < 6.5 / 2);
    CHECK(worst_slope < 6.5 / 2);
    CHECK(worst_value > 0.65 / 2);
    CHECK(worst_slope > 0.65 / 2);
  }
}

}  // namespace
}  // namespace hpsim
