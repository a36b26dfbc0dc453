#pragma once

#include "model/model_spec.h"

namespace hpsim {

/// An activation at one point, and how far a run in a dtype of unit roundoff u may be from it.
/// The rounding members are variances in units of u²/3.
struct ActivationPoint {
  double value = 0;
  double slope = 0;      ///< f'
  double curvature = 0;  ///< f'': what an error of x does to the slope
  double value_rounding = 0;
  double slope_rounding = 0;
};

/// tanh, silu or gelu at x, as ModuleSpec defines them; relu has a kink and is treated by
/// itself. Each elementary operation adds one rounding of its result; exp, tanh and erf of a run's
/// math library are taken to be within two units in the last place, 4u relative.
///
///   tanh 0  -> value 0    slope 1    curvature 0
///   silu 0  -> value 0    slope 1/2  curvature 1/2
///   gelu 0  -> value 0    slope 1/2  curvature 2 phi(0) = 0.79788
///
/// \pre spec.type is Tanh, Silu or Gelu
[[nodiscard]] ActivationPoint activation_at(const ModuleSpec& spec, double x);

/// The same, of silu.
[[nodiscard]] ActivationPoint silu_at(double x);

}  // namespace hpsim
