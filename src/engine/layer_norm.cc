#include "engine/layer_norm.h"

#include <cmath>
#include <vector>

#include "engine/lanes.h"
#include "engine/row_pieces.h"

namespace hpsim {
namespace {

template <class T>
struct RowMoments {
  T mean = 0;
  T inverse_deviation = 0;  ///< 1 / sqrt(var + eps)
};

template <class T>
RowMoments<T> moments_of(const T* x, std::int64_t dim, double eps) {
  const T mean = lane_sum(dim, x) / static_cast<T>(dim);
  const auto square = [mean](const Lanes<T>& v) -> Lanes<T> { return (v - mean).square(); };
  const T variance = lane_sum(dim, square, x) / static_cast<T>(dim);
  return {mean, 1 / std::sqrt(variance + static_cast<T>(eps))};
}

/// From g = dy w in dx.
template <class T>
void finish_input_gradient(const T* x, std::int64_t dim, const RowMoments<T>& moments, T* dx) {
  const T mean = moments.mean;
  const T factor = moments.inverse_deviation;
  const auto product = [mean](const Lanes<T>& g, const Lanes<T>& v) -> Lanes<T> {
    return g * (v - mean);
  };
  const T g_mean = lane_sum(dim, dx) / static_cast<T>(dim);
  const T slope = lane_sum(dim, product, dx, x) / static_cast<T>(dim) * factor * factor;
  for (std::int64_t i = 0; i < dim; ++i)
    dx[i] = factor * (dx[i] - g_mean - (x[i] - mean) * slope);
}

}  // namespace

template <class T>
void layer_norm_forward(const T* x, std::int64_t rows, const RowBlocks<T>& weight,
                        const RowBlocks<T>& bias, double eps, T* y) {
  const std::int64_t dim = weight.rows;
  const std::vector<RowPiece<T>> weight_pieces = row_pieces(weight);
  const std::vector<RowPiece<T>> bias_pieces = row_pieces(bias);
  for (std::int64_t row = 0; row < rows; ++row, x += dim, y += dim) {
    const RowMoments<T> moments = moments_of(x, dim, eps);
    for (const auto& [w, first, count] : weight_pieces) {
      for (std::int64_t i = 0; i < count; ++i)
        y[first + i] = (x[first + i] - moments.mean) * moments.inverse_deviation * w[i];
    }
    for (const auto& [b, first, count] : bias_pieces) {
      for (std::int64_t i = 0; i < count; ++i)
        y[first + i] += b[i];
    }
  }
}

template <class T>
void layer_norm_backward(const T* x, const T* dy, std::int64_t rows, const RowBlocks<T>& weight,
                         double eps, T* dx, const RowBlocks<T>& weight_gradient,
                         const RowBlocks<T>& bias_gradient) {
  const std::int64_t dim = weight.rows;
  const std::vector<RowPiece<T>> weight_pieces = row_pieces(weight);
  const std::vector<RowPiece<T>> dw_pieces = row_pieces(weight_gradient);
  const std::vector<RowPiece<T>> db_pieces = row_pieces(bias_gradient);
  set_zero(weight_gradient);
  set_zero(bias_gradient);
  for (std::int64_t row = 0; row < rows; ++row, x += dim, dy += dim) {
    const RowMoments<T> moments = moments_of(x, dim, eps);
    for (const auto& [dw, first, count] : dw_pieces) {
      for (std::int64_t i = 0; i < count; ++i)
        dw[i] += dy[first + i] * ((x[first + i] - moments.mean) * moments.inverse_deviation);
    }
    for (const auto& [db, first, count] : db_pieces) {
      for (std::int64_t i = 0; i < count; ++i)
        db[i] += dy[first + i];
    }
    if (dx == nullptr) continue;
    for (const auto& [w, first, count] : weight_pieces) {
      for (std::int64_t i = 0; i < count; ++i)
        dx[first + i] = dy[first + i] * w[i];
    }
    finish_input_gradient(x, dim, moments, dx);
    dx += dim;
  }
}

#define HPSIM_INSTANTIATE(T)                                                                  \
  template void layer_norm_forward<T>(const T*, std::int64_t, const RowBlocks<T>&,            \
                                      const RowBlocks<T>&, double, T*);                       \
  template void layer_norm_backward<T>(const T*, const T*, std::int64_t, const RowBlocks<T>&, \
                                       double, T*, const RowBlocks<T>&, const RowBlocks<T>&);
HPSIM_INSTANTIATE(float)
HPSIM_INSTANTIATE(double)
#undef HPSIM_INSTANTIATE

}  // namespace hpsim
