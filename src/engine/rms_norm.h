#pragma once

#include <cstdint>

#include "engine/row_blocks.h"

namespace hpsim {

// y = x / sqrt(mean(x²) + eps) w, the mean over each row of x: [rows, dim]. Weight and its
// gradient: dim rows of one element.

template <class T>
void rms_norm_forward(const T* x, std::int64_t rows, const RowBlocks<T>& weight, double eps, T* y);

/// dx unless it is null, and the sum over rows that is dw, overwriting; padding is left alone.
/// \pre dx is null, or has room for [rows, dim] and overlaps neither x nor dy
template <class T>
void rms_norm_backward(const T* x, const T* dy, std::int64_t rows, const RowBlocks<T>& weight,
                       double eps, T* dx, const RowBlocks<T>& weight_gradient);

}  // namespace hpsim
