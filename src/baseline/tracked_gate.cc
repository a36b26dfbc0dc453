// silu(a) b and its gradients, element by element. a and b are made of one activation by weights of
// their own, so their errors are taken as independent (tracked_arithmetic.h), except where samples
// share errors.

#include "baseline/activation_point.h"
#include "baseline/tracked_arithmetic.h"

namespace hpsim {
namespace {

double square(double x) {
  return x * x;
}

struct Element {
  double value = 0;
  double variance = 0;
};

Element element_of(const TrackedTensor& tensor, std::size_t i) {
  return {tensor.value.data[i], tensor.is_exact() ? 0 : tensor.variance[i]};
}

void store(const Element& element, TrackedTensor& tensor, std::size_t i) {
  tensor.value.data[i] = element.value;
  tensor.variance[i] = element.variance;
}

/// Var(x y) = x² Vy + y² Vx + Vx Vy + c (x y)².
Element times(const Rounding& rounding, const Element& x, const Element& y) {
  const double value = x.value * y.value;
  return {value,
          rounding.join(square(x.value) * y.variance, (square(y.value) + y.variance) * x.variance) +
              rounding.variance() * square(value)};
}

/// silu and its slope, with what they inherit from a: f'² Va and f''² Va.
Element value_at(const Rounding& rounding, const ActivationPoint& point, double variance) {
  return {point.value, square(point.slope) * variance + rounding.variance() * point.value_rounding};
}

Element slope_at(const Rounding& rounding, const ActivationPoint& point, double variance) {
  return {point.slope,
          square(point.curvature) * variance + rounding.variance() * point.slope_rounding};
}

}  // namespace

TrackedTensor TrackedArithmetic::silu_gate(const TrackedTensor& a, const TrackedTensor& b) {
  TrackedTensor y = tracked_zeros(a.value.rows, a.value.cols);
  for (std::size_t i = 0; i < y.value.data.size(); ++i) {
    const Element gate = element_of(a, i);
    const ActivationPoint point = silu_at(gate.value);
    store(times(rounding_, value_at(rounding_, point, gate.variance), element_of(b, i)), y, i);
  }
  return y;
}

/// da = dy b silu'(a), db = dy silu(a).
std::array<TrackedTensor, 2> TrackedArithmetic::silu_gate_gradients(const TrackedTensor& a,
                                                                    const TrackedTensor& b,
                                                                    const TrackedTensor& dy) {
  TrackedTensor da = tracked_zeros(a.value.rows, a.value.cols);
  TrackedTensor db = tracked_zeros(a.value.rows, a.value.cols);
  for (std::size_t i = 0; i < dy.value.data.size(); ++i) {
    const Element gate = element_of(a, i);
    const ActivationPoint point = silu_at(gate.value);
    const Element of_y = element_of(dy, i);
    const Element passed = times(rounding_, of_y, element_of(b, i));
    store(times(rounding_, passed, slope_at(rounding_, point, gate.variance)), da, i);
    store(times(rounding_, of_y, value_at(rounding_, point, gate.variance)), db, i);
  }
  return {std::move(da), std::move(db)};
}

}  // namespace hpsim
