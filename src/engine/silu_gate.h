#pragma once

#include <cstdint>

namespace hpsim {

// y = a sigmoid(a) b, element by element over `elems` elements.

template <class T>
void silu_gate_forward(const T* a, const T* b, std::int64_t elems, T* y);

/// Both, but one that is null. \pre da overlaps nothing that is read; db may be dy
template <class T>
void silu_gate_backward(const T* a, const T* b, const T* dy, std::int64_t elems, T* da, T* db);

}  // namespace hpsim
