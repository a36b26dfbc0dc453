#include "engine/activations.h"

#include <cmath>
#include <numbers>

#include "base/check.h"

namespace hpsim {
namespace {

template <class T>
T sigmoid(T x) {
  return 1 / (1 + std::exp(-x));
}

/// Distribution function of the standard normal.
template <class T>
T normal_cdf(T x) {
  return T(0.5) * (1 + std::erf(x * (T(1) / std::numbers::sqrt2_v<T>)));
}

template <class T>
T normal_density(T x) {
  return std::exp(T(-0.5) * x * x) * (std::numbers::inv_sqrtpi_v<T> / std::numbers::sqrt2_v<T>);
}

// The tanh approximation of gelu: x/2 (1 + tanh(u)), u = sqrt(2/pi) (x + 0.044715 x³).
template <class T>
constexpr T kCubic = T(0.044715);

template <class T>
T gelu_tanh_argument(T x) {
  const T factor = std::numbers::sqrt2_v<T> * std::numbers::inv_sqrtpi_v<T>;
  return factor * (x + kCubic<T> * x * x * x);
}

template <class T>
T gelu_tanh_derivative(T x) {
  const T factor = std::numbers::sqrt2_v<T> * std::numbers::inv_sqrtpi_v<T>;
  const T t = std::tanh(gelu_tanh_argument(x));
  return T(0.5) * (1 + t) + T(0.5) * x * (1 - t * t) * factor * (1 + 3 * kCubic<T> * x * x);
}

template <class T, class Function>
void map_forward(const T* x, std::int64_t elems, T* y, const Function& f) {
  for (std::int64_t i = 0; i < elems; ++i)
    y[i] = f(x[i]);
}

template <class T, class Derivative>
void map_backward(const T* x, const T* dy, std::int64_t elems, T* dx, const Derivative& df) {
  for (std::int64_t i = 0; i < elems; ++i)
    dx[i] = df(x[i]) * dy[i];
}

}  // namespace

template <class T>
void activation_forward(const ModuleSpec& spec, const T* x, std::int64_t elems, T* y) {
  switch (spec.type) {
    case ModuleType::Relu:
      return map_forward(x, elems, y, [](T v) { return v > 0 ? v : T(0); });
    case ModuleType::Tanh:
      return map_forward(x, elems, y, [](T v) { return std::tanh(v); });
    case ModuleType::Silu:
      return map_forward(x, elems, y, [](T v) { return v * sigmoid(v); });
    case ModuleType::Gelu:
      if (spec.tanh_approximation) {
        return map_forward(x, elems, y,
                           [](T v) { return T(0.5) * v * (1 + std::tanh(gelu_tanh_argument(v))); });
      }
      return map_forward(x, elems, y, [](T v) { return v * normal_cdf(v); });
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
  HPSIM_CHECK(false, "{} is no activation", name_of(spec.type));
}

template <class T>
void activation_backward(const ModuleSpec& spec, const T* x, const T* dy, std::int64_t elems,
                         T* dx) {
  switch (spec.type) {
    case ModuleType::Relu:
      return map_backward(x, dy, elems, dx, [](T v) { return v > 0 ? T(1) : T(0); });
    case ModuleType::Tanh:
      return map_backward(x, dy, elems, dx, [](T v) {
        const T y = std::tanh(v);
        return 1 - y * y;
      });
    case ModuleType::Silu:
      return map_backward(x, dy, elems, dx, [](T v) {
        const T s = sigmoid(v);
        return s * (1 + v * (1 - s));
      });
    case ModuleType::Gelu:
      if (spec.tanh_approximation) {
        return map_backward(x, dy, elems, dx, [](T v) { return gelu_tanh_derivative(v); });
      }
      return map_backward(x, dy, elems, dx,
                          [](T v) { return normal_cdf(v) + v * normal_density(v); });
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
  HPSIM_CHECK(false, "{} is no activation", name_of(spec.type));
}

template void activation_forward<float>(const ModuleSpec&, const float*, std::int64_t, float*);
template void activation_forward<double>(const ModuleSpec&, const double*, std::int64_t, double*);
template void activation_backward<float>(const ModuleSpec&, const float*, const float*,
                                         std::int64_t, float*);
template void activation_backward<double>(const ModuleSpec&, const double*, const double*,
                                          std::int64_t, double*);

}  // namespace hpsim
