#include "engine/experts.h"

#include <numeric>
#include <vector>

#include "base/check.h"
#include "engine/linear.h"
#include "engine/row_pieces.h"
#include "engine/silu_gate.h"

namespace hpsim {
namespace {

/// The matrices of all `count` experts of a weight, each with `rows` rows; of a gradient that is
/// not wanted, null, matrices without rows.
template <class T>
std::vector<RowBlocks<T>> matrices_of(const RowBlocks<T>& weight, std::size_t count,
                                      std::int64_t rows, std::int64_t cols) {
  if (weight.data == nullptr) return std::vector<RowBlocks<T>>(count);
  HPSIM_CHECK(weight.row_elems == rows * cols, "an expert has {} elements, not {} x {}",
              weight.row_elems, rows, cols);
  std::vector<RowBlocks<T>> matrices;
  for (const RowPiece<T>& piece : row_pieces(weight)) {
    for (std::int64_t row = 0; row < piece.rows; ++row) {
      matrices.push_back(
          {.data = piece.data + row * weight.row_elems, .rows = rows, .row_elems = cols});
    }
  }
  return matrices;
}

/// The same of w1, w2 and w3.
template <class T>
struct Matrices {
  Matrices(const ExpertsShape& shape, const ExpertWeights<T>& weights)
      : w1(matrices_of(weights.w1, shape.rows.size(), shape.hidden, shape.dim)),
        w2(matrices_of(weights.w2, shape.rows.size(), shape.dim, shape.hidden)),
        w3(matrices_of(weights.w3, shape.rows.size(), shape.hidden, shape.dim)) {
    HPSIM_CHECK(w1.size() == shape.rows.size() && w2.size() == w1.size() && w3.size() == w1.size(),
                "{} experts, rows of {}", w1.size(), shape.rows.size());
  }

  std::vector<RowBlocks<T>> w1;
  std::vector<RowBlocks<T>> w2;
  std::vector<RowBlocks<T>> w3;
};

/// Calls visit(expert, first row, number of rows) for every expert.
template <class Visit>
void each_expert(const ExpertsShape& shape, const Visit& visit) {
  std::int64_t first = 0;
  for (std::size_t e = 0; e < shape.rows.size(); first += shape.rows[e++])
    visit(e, first, shape.rows[e]);
}

}  // namespace

std::int64_t ExpertsShape::num_rows() const {
  return std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
}

template <class T>
void experts_forward(const ExpertsShape& shape, const ExpertWeights<T>& weights, const T* x, T* h1,
                     T* h3, T* gate, T* y) {
  const Matrices<T> of(shape, weights);
  each_expert(shape, [&](std::size_t e, std::int64_t first, std::int64_t rows) {
    const std::int64_t inside = first * shape.hidden;
    linear_forward(x + first * shape.dim, rows, of.w1[e], RowBlocks<T>{}, h1 + inside);
    linear_forward(x + first * shape.dim, rows, of.w3[e], RowBlocks<T>{}, h3 + inside);
  });
  silu_gate_forward(h1, h3, shape.num_rows() * shape.hidden, gate);
  each_expert(shape, [&](std::size_t e, std::int64_t first, std::int64_t rows) {
    linear_forward(gate + first * shape.hidden, rows, of.w2[e], RowBlocks<T>{},
                   y + first * shape.dim);
  });
}

template <class T>
void experts_backward(const ExpertsShape& shape, const ExpertWeights<T>& weights,
                      const ExpertsInputs<T>& inputs, const ExpertWeights<T>& gradients, T* dx,
                      T* scratch) {
  const Matrices<T> of(shape, weights);
  const Matrices<T> d(shape, gradients);
  const std::int64_t inner_elems = shape.num_rows() * shape.hidden;
  T* const gate = scratch;
  T* const dh1 = scratch + inner_elems;
  silu_gate_forward(inputs.h1, inputs.h3, inner_elems, gate);
  each_expert(shape, [&](std::size_t e, std::int64_t first, std::int64_t rows) {
    const T* const dy = inputs.dy + first * shape.dim;
    T* const of_expert = gate + first * shape.hidden;
    linear_parameter_gradients(of_expert, dy, rows, d.w2[e], RowBlocks<T>{});
    linear_input_gradient(dy, rows, of.w2[e], of_expert);
  });
  T* const dh3 = gate;  // where the gradient of the gate is now
  silu_gate_backward(inputs.h1, inputs.h3, gate, inner_elems, dh1, dh3);
  each_expert(shape, [&](std::size_t e, std::int64_t first, std::int64_t rows) {
    const T* const x = inputs.x + first * shape.dim;
    const std::int64_t inside = first * shape.hidden;
    linear_parameter_gradients(x, dh1 + inside, rows, d.w1[e], RowBlocks<T>{});
    linear_parameter_gradients(x, dh3 + inside, rows, d.w3[e], RowBlocks<T>{});
    if (dx == nullptr) return;
    T* const of_expert = dx + first * shape.dim;
    linear_input_gradient(dh1 + inside, rows, of.w1[e], of_expert);
    linear_add_input_gradient(dh3 + inside, rows, of.w3[e], of_expert);
  });
}

#define HPSIM_INSTANTIATE(T)                                                                       \
  template void experts_forward<T>(const ExpertsShape&, const ExpertWeights<T>&, const T*, T*, T*, \
                                   T*, T*);                                                        \
  template void experts_backward<T>(const ExpertsShape&, const ExpertWeights<T>&,                  \
                                    const ExpertsInputs<T>&, const ExpertWeights<T>&, T*, T*);
HPSIM_INSTANTIATE(float)
HPSIM_INSTANTIATE(double)
#undef HPSIM_INSTANTIATE

}  // namespace hpsim
