#pragma once

#include <cstdint>

#include "engine/row_blocks.h"

namespace hpsim {

// The linear module on one rank, for its local batch: y = x Wᵀ + b (torch.nn.functional.linear).
// x: [batch, in], y: [batch, out], row-major; weight: out rows of `in` elements; bias: out rows of
// one element, or data == nullptr.

/// y = x Wᵀ + b
template <class T>
void linear_forward(const T* x, std::int64_t batch, const RowBlocks<T>& weight,
                    const RowBlocks<T>& bias, T* y);

/// dx = dy W; \pre dx has room for [batch, in]
template <class T>
void linear_input_gradient(const T* dy, std::int64_t batch, const RowBlocks<T>& weight, T* dx);

/// dx += dy W
template <class T>
void linear_add_input_gradient(const T* dy, std::int64_t batch, const RowBlocks<T>& weight, T* dx);

/// dW = dyᵀ x and db = sum of dy over the batch, overwriting; padding is left alone.
template <class T>
void linear_parameter_gradients(const T* x, const T* dy, std::int64_t batch,
                                const RowBlocks<T>& weight_gradient,
                                const RowBlocks<T>& bias_gradient);

}  // namespace hpsim
