#include "engine/silu_gate.h"

#include "engine/lanes.h"

namespace hpsim {
namespace {

template <class T>
Lanes<T> sigmoid(const Lanes<T>& x) {
  return (1 + lane_exp<T>(-x)).inverse();
}

}  // namespace

template <class T>
void silu_gate_forward(const T* a, const T* b, std::int64_t elems, T* y) {
  lane_map(
      elems, [](const Lanes<T>& u, const Lanes<T>& v) -> Lanes<T> { return u * sigmoid<T>(u) * v; },
      y, a, b);
}

template <class T>
void silu_gate_backward(const T* a, const T* b, const T* dy, std::int64_t elems, T* da, T* db) {
  const auto a_gradient = [](const Lanes<T>& u, const Lanes<T>& v, const Lanes<T>& d) -> Lanes<T> {
    const Lanes<T> s = sigmoid<T>(u);
    return d * v * (s * (1 + u * (1 - s)));
  };
  const auto b_gradient = [](const Lanes<T>& u, const Lanes<T>& d) -> Lanes<T> {
    return d * (u * sigmoid<T>(u));
  };
  if (da != nullptr) lane_map(elems, a_gradient, da, a, b, dy);
  if (db != nullptr) lane_map(elems, b_gradient, db, a, dy);
}

#define HPSIM_INSTANTIATE(T)                                                \
  template void silu_gate_forward<T>(const T*, const T*, std::int64_t, T*); \
  template void silu_gate_backward<T>(const T*, const T*, const T*, std::int64_t, T*, T*);
HPSIM_INSTANTIATE(float)
HPSIM_INSTANTIATE(double)
#undef HPSIM_INSTANTIATE

}  // namespace hpsim
