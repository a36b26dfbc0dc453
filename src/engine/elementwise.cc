#include "engine/elementwise.h"

#include <Eigen/Core>
#include <algorithm>
#include <vector>

#include "engine/row_pieces.h"

namespace hpsim {
namespace {

template <class T>
using ConstArray = Eigen::Map<const Eigen::Array<T, Eigen::Dynamic, 1>>;

/// Calls visit(weight, gradient, first row, number of rows) for runs of rows that are contiguous in
/// both: their blocks may differ.
template <class T, class Visit>
void each_common_run(const RowBlocks<T>& w, const RowBlocks<T>& g, const Visit& visit) {
  const std::vector<RowPiece<T>> w_pieces = row_pieces(w);
  auto w_piece = w_pieces.begin();
  for (const RowPiece<T>& g_piece : row_pieces(g)) {
    std::int64_t row = g_piece.first;
    while (row < g_piece.first + g_piece.rows) {
      while (row >= w_piece->first + w_piece->rows)
        ++w_piece;
      const std::int64_t end =
          std::min(g_piece.first + g_piece.rows, w_piece->first + w_piece->rows);
      visit(w_piece->data + (row - w_piece->first) * w.row_elems,
            g_piece.data + (row - g_piece.first) * g.row_elems, row, end - row);
      row = end;
    }
  }
}

/// Calls visit(errors w x - t, their number, sample, first element) for every sample and block.
template <class T, class Visit>
void each_error(const RowBlocks<T>& w, const T* x, const T* t, std::int64_t batch,
                const ElementwiseDTypes& dtypes, const Visit& visit) {
  const std::int64_t numel = w.rows * w.row_elems;
  std::vector<T> errors;
  for (std::int64_t b = 0; b < batch; ++b) {
    w.each_block([&](const T* block, std::int64_t first_row, std::int64_t rows) {
      const std::int64_t elems = rows * w.row_elems;
      const std::int64_t first = first_row * w.row_elems;
      const T* const of_sample = x + b * numel + first;
      errors.resize(static_cast<std::size_t>(elems));
      for (std::int64_t i = 0; i < elems; ++i)
        errors[static_cast<std::size_t>(i)] = block[i] * of_sample[i];
      round_to(dtypes.product, errors.data(), elems);
      round_to(dtypes.given, errors.data(), elems);
      for (std::int64_t i = 0; i < elems; ++i)
        errors[static_cast<std::size_t>(i)] -= t[b * numel + first + i];
      visit(errors.data(), elems, b, first);
    });
  }
}

}  // namespace

template <class T>
T elementwise_loss_sum(const RowBlocks<T>& w, const T* x, const T* t, std::int64_t batch) {
  const std::int64_t numel = w.rows * w.row_elems;
  T sum = 0;
  for (std::int64_t b = 0; b < batch; ++b) {
    w.each_block([&](const T* block, std::int64_t first, std::int64_t rows) {
      const std::int64_t elems = rows * w.row_elems;
      const std::int64_t offset = b * numel + first * w.row_elems;
      const ConstArray<T> w_part(block, elems);
      const ConstArray<T> x_part(x + offset, elems);
      const ConstArray<T> t_part(t + offset, elems);
      sum += (w_part * x_part - t_part).square().sum() / 2;
    });
  }
  return sum;
}

template <class T>
void elementwise_gradient(const RowBlocks<T>& w, const T* x, const T* t, std::int64_t batch,
                          T divisor, const RowBlocks<T>& g) {
  const std::int64_t numel = w.rows * w.row_elems;
  each_common_run(w, g, [&](const T* w_run, T* g_run, std::int64_t first, std::int64_t rows) {
    const std::int64_t elems = rows * w.row_elems;
    const ConstArray<T> w_part(w_run, elems);
    Eigen::Map<Eigen::Array<T, Eigen::Dynamic, 1>> g_part(g_run, elems);
    g_part.setZero();
    for (std::int64_t b = 0; b < batch; ++b) {
      const std::int64_t offset = b * numel + first * w.row_elems;
      const ConstArray<T> x_part(x + offset, elems);
      const ConstArray<T> t_part(t + offset, elems);
      g_part += x_part * (w_part * x_part - t_part);
    }
    g_part /= divisor;
  });
}

template <class T>
T elementwise_loss_sum(const RowBlocks<T>& w, const T* x, const T* t, std::int64_t batch,
                       const ElementwiseDTypes& dtypes) {
  T sum = 0;
  each_error(w, x, t, batch, dtypes,
             [&](T* errors, std::int64_t elems, std::int64_t, std::int64_t) {
               for (std::int64_t i = 0; i < elems; ++i)
                 sum += errors[i] * errors[i] / 2;
             });
  return sum;
}

template <class T>
void elementwise_gradient(const RowBlocks<T>& w, const T* x, const T* t, std::int64_t batch,
                          T divisor, const RowBlocks<T>& g, const ElementwiseDTypes& dtypes) {
  const std::int64_t numel = w.rows * w.row_elems;
  std::vector<T> sums(static_cast<std::size_t>(numel), T(0));
  each_error(w, x, t, batch, dtypes,
             [&](T* errors, std::int64_t elems, std::int64_t sample, std::int64_t first) {
               for (std::int64_t i = 0; i < elems; ++i)
                 errors[i] /= divisor;
               round_to(dtypes.given, errors, elems);
               round_to(dtypes.product, errors, elems);
               const T* const of_sample = x + sample * numel + first;
               for (std::int64_t i = 0; i < elems; ++i)
                 sums[static_cast<std::size_t>(first + i)] += of_sample[i] * errors[i];
             });
  g.each_block([&](T* block, std::int64_t first, std::int64_t rows) {
    std::copy_n(sums.data() + first * g.row_elems, rows * g.row_elems, block);
  });
}

#define HPSIM_INSTANTIATE(T)                                                                      \
  template T elementwise_loss_sum<T>(const RowBlocks<T>&, const T*, const T*, std::int64_t);      \
  template T elementwise_loss_sum<T>(const RowBlocks<T>&, const T*, const T*, std::int64_t,       \
                                     const ElementwiseDTypes&);                                   \
  template void elementwise_gradient<T>(const RowBlocks<T>&, const T*, const T*, std::int64_t, T, \
                                        const RowBlocks<T>&);                                     \
  template void elementwise_gradient<T>(const RowBlocks<T>&, const T*, const T*, std::int64_t, T, \
                                        const RowBlocks<T>&, const ElementwiseDTypes&);
HPSIM_INSTANTIATE(float)
HPSIM_INSTANTIATE(double)
#undef HPSIM_INSTANTIATE

}  // namespace hpsim
