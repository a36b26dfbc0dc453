#pragma once

#include <cstdint>

#include "engine/row_blocks.h"

namespace hpsim {

// y = (x - mean) / sqrt(var + eps) w + b, mean and biased variance over each row of x: [rows, dim].
// Weight, bias and their gradients: dim rows of one element.

template <class T>
void layer_norm_forward(const T* x, std::int64_t rows, const RowBlocks<T>& weight,
                        const RowBlocks<T>& bias, double eps, T* y);

/// dx unless it is null, and the sums over rows that are dw and db, overwriting; padding is left
/// alone. Mean and variance are worked out again from x.
/// \pre dx is null, or has room for [rows, dim] and overlaps neither x nor dy
template <class T>
void layer_norm_backward(const T* x, const T* dy, std::int64_t rows, const RowBlocks<T>& weight,
                         double eps, T* dx, const RowBlocks<T>& weight_gradient,
                         const RowBlocks<T>& bias_gradient);

}  // namespace hpsim
