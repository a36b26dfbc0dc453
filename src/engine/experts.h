#pragma once

#include <cstdint>
#include <span>

#include "engine/row_blocks.h"

namespace hpsim {

// The experts that one rank holds, on rows sorted by expert; expert e has rows[e] of them:
//   h1 = x w1_eᵀ   h3 = x w3_eᵀ   y = (silu(h1) h3) w2_eᵀ
// x, y: [rows, dim]; h1, h3: [rows, hidden]. Rows of a weight are experts: of w1 and w3 a matrix
// [hidden, dim] each, of w2 one [dim, hidden]. Experts without rows, and no experts, are fine.

struct ExpertsShape {
  std::int64_t dim = 0;
  std::int64_t hidden = 0;
  std::span<const std::int64_t> rows;  ///< per expert

  [[nodiscard]] std::int64_t num_rows() const;
};

template <class T>
struct ExpertWeights {
  RowBlocks<T> w1;
  RowBlocks<T> w2;
  RowBlocks<T> w3;
};

/// Writes h1 and h3, which backward needs, and y. gate: [rows, hidden], scratch
template <class T>
void experts_forward(const ExpertsShape& shape, const ExpertWeights<T>& weights, const T* x, T* h1,
                     T* h3, T* gate, T* y);

/// What backward reads.
template <class T>
struct ExpertsInputs {
  const T* x = nullptr;
  const T* h1 = nullptr;
  const T* h3 = nullptr;
  const T* dy = nullptr;
};

/// Gradients of the weights, overwriting, zero for experts without rows; padding is left alone. dx
/// too, unless it is null. scratch: [2, rows, hidden]
template <class T>
void experts_backward(const ExpertsShape& shape, const ExpertWeights<T>& weights,
                      const ExpertsInputs<T>& inputs, const ExpertWeights<T>& gradients, T* dx,
                      T* scratch);

}  // namespace hpsim
