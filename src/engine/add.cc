#include "engine/add.h"

namespace hpsim {

template <class T>
void add_forward(const T* a, const T* b, std::int64_t elems, T* y) {
  for (std::int64_t i = 0; i < elems; ++i)
    y[i] = a[i] + b[i];
}

template <class T>
void accumulate(const T* x, std::int64_t elems, T* sum) {
  for (std::int64_t i = 0; i < elems; ++i)
    sum[i] += x[i];
}

#define HPSIM_INSTANTIATE(T)                                          \
  template void add_forward<T>(const T*, const T*, std::int64_t, T*); \
  template void accumulate<T>(const T*, std::int64_t, T*);
HPSIM_INSTANTIATE(float)
HPSIM_INSTANTIATE(double)
#undef HPSIM_INSTANTIATE

}  // namespace hpsim
