#pragma once

#include <cstdint>

namespace hpsim {

/// y = a + b; the gradients of both are that of y.
template <class T>
void add_forward(const T* a, const T* b, std::int64_t elems, T* y);

/// sum += x
template <class T>
void accumulate(const T* x, std::int64_t elems, T* sum);

}  // namespace hpsim
