#include "engine/elementwise.h"

#include <Eigen/Core>

namespace hpsim {
namespace {

template <class T>
using ConstArray = Eigen::Map<const Eigen::Array<T, Eigen::Dynamic, 1>>;

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
  g.each_block([&](T* g_block, std::int64_t first, std::int64_t rows) {
    const T* w_block = w.data + (g_block - g.data);
    const std::int64_t elems = rows * w.row_elems;
    const ConstArray<T> w_part(w_block, elems);
    Eigen::Map<Eigen::Array<T, Eigen::Dynamic, 1>> g_part(g_block, elems);
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

#define HPSIM_INSTANTIATE(T)                                                                      \
  template T elementwise_loss_sum<T>(const RowBlocks<T>&, const T*, const T*, std::int64_t);      \
  template void elementwise_gradient<T>(const RowBlocks<T>&, const T*, const T*, std::int64_t, T, \
                                        const RowBlocks<T>&);
HPSIM_INSTANTIATE(float)
HPSIM_INSTANTIATE(double)
#undef HPSIM_INSTANTIATE

}  // namespace hpsim
