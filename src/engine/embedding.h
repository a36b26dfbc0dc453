#pragma once

#include <cstdint>

#include "engine/row_blocks.h"

namespace hpsim {

// Rows of a weight by token. A rank may hold rows [first_row, first_row + weight.rows) of the
// vocabulary only: tokens of other rows give zeros, a term of the sum over ranks, and add nothing
// to its gradient. Tokens are integers, stored as T.

/// y: [positions, weight.row_elems]
template <class T>
void embedding_forward(const T* tokens, std::int64_t positions, const RowBlocks<T>& weight,
                       std::int64_t first_row, T* y);

/// Rows of dy added up by token, position after position, overwriting; padding is left alone.
template <class T>
void embedding_backward(const T* tokens, const T* dy, std::int64_t positions,
                        const RowBlocks<T>& weight_gradient, std::int64_t first_row);

}  // namespace hpsim
