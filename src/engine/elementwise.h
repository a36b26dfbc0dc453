#pragma once

#include <cstdint>

#include "engine/row_blocks.h"
#include "scenario/precision.h"

namespace hpsim {

// An elementwise parameter w on one rank, for its local batch of inputs x and targets t, each of
// w's shape: x, t are [batch, numel]. A sample's loss is the mean over elements of (w x - t)² / 2.

/// Sum over samples and elements of (w x - t)² / 2.
template <class T>
[[nodiscard]] T elementwise_loss_sum(const RowBlocks<T>& w, const T* x, const T* t,
                                     std::int64_t batch);

/// g = sum over samples of x (w x - t), divided by `divisor`; overwrites, leaves padding alone.
/// \pre `g` has the rows of `w`, in blocks of its own
template <class T>
void elementwise_gradient(const RowBlocks<T>& w, const T* x, const T* t, std::int64_t batch,
                          T divisor, const RowBlocks<T>& g);

/// The same where products w x, and what is handed on of them, are rounded to dtypes narrower than
/// T: the loss sees rounded products, and its gradient is rounded on the way back.
template <class T>
[[nodiscard]] T elementwise_loss_sum(const RowBlocks<T>& w, const T* x, const T* t,
                                     std::int64_t batch, const ElementwiseDTypes& dtypes);
template <class T>
void elementwise_gradient(const RowBlocks<T>& w, const T* x, const T* t, std::int64_t batch,
                          T divisor, const RowBlocks<T>& g, const ElementwiseDTypes& dtypes);

}  // namespace hpsim
