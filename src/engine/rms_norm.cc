#include "engine/rms_norm.h"

#include <cmath>
#include <vector>

#include "engine/lanes.h"
#include "engine/row_pieces.h"

namespace hpsim {
namespace {

template <class T>
T mean_product(const T* a, const T* b, std::int64_t dim) {
  const auto product = [](const Lanes<T>& u, const Lanes<T>& v) -> Lanes<T> { return u * v; };
  return lane_sum(dim, product, a, b) / static_cast<T>(dim);
}

/// 1 / sqrt(mean(x²) + eps)
template <class T>
T inverse_root(const T* x, std::int64_t dim, double eps) {
  return 1 / std::sqrt(mean_product(x, x, dim) + static_cast<T>(eps));
}

}  // namespace

template <class T>
void rms_norm_forward(const T* x, std::int64_t rows, const RowBlocks<T>& weight, double eps, T* y) {
  const std::int64_t dim = weight.rows;
  const std::vector<RowPiece<T>> pieces = row_pieces(weight);
  for (std::int64_t row = 0; row < rows; ++row, x += dim, y += dim) {
    const T factor = inverse_root(x, dim, eps);
    for (const auto& [w, first, count] : pieces) {
      for (std::int64_t i = 0; i < count; ++i)
        y[first + i] = x[first + i] * factor * w[i];
    }
  }
}

template <class T>
void rms_norm_backward(const T* x, const T* dy, std::int64_t rows, const RowBlocks<T>& weight,
                       double eps, T* dx, const RowBlocks<T>& weight_gradient) {
  const std::int64_t dim = weight.rows;
  const std::vector<RowPiece<T>> weight_pieces = row_pieces(weight);
  const std::vector<RowPiece<T>> dw_pieces = row_pieces(weight_gradient);
  set_zero(weight_gradient);
  for (std::int64_t row = 0; row < rows; ++row, x += dim, dy += dim) {
    const T factor = inverse_root(x, dim, eps);
    for (const auto& [dw, first, count] : dw_pieces) {
      for (std::int64_t i = 0; i < count; ++i)
        dw[i] += dy[first + i] * (x[first + i] * factor);
    }
    if (dx == nullptr) continue;
    for (const auto& [w, first, count] : weight_pieces) {
      for (std::int64_t i = 0; i < count; ++i)
        dx[first + i] = dy[first + i] * w[i];
    }
    const T slope = mean_product(dx, x, dim) * factor * factor;
    for (std::int64_t i = 0; i < dim; ++i)
      dx[i] = factor * (dx[i] - x[i] * slope);
    dx += dim;
  }
}

#define HPSIM_INSTANTIATE(T)                                                                  \
  template void rms_norm_forward<T>(const T*, std::int64_t, const RowBlocks<T>&, double, T*); \
  template void rms_norm_backward<T>(const T*, const T*, std::int64_t, const RowBlocks<T>&,   \
                                     double, T*, const RowBlocks<T>&);
HPSIM_INSTANTIATE(float)
HPSIM_INSTANTIATE(double)
#undef HPSIM_INSTANTIATE

}  // namespace hpsim
