#pragma once

#include <cstdint>
#include <vector>

#include "engine/row_blocks.h"

namespace hpsim {

/// Rows [first, first + rows) of a parameter, contiguous.
template <class T>
struct RowPiece {
  T* data = nullptr;
  std::int64_t first = 0;
  std::int64_t rows = 0;
};

/// The blocks that hold rows, in order of rows; worked out once where a loop needs them often.
template <class T>
[[nodiscard]] std::vector<RowPiece<T>> row_pieces(const RowBlocks<T>& blocks) {
  std::vector<RowPiece<T>> pieces;
  blocks.each_block([&](T* data, std::int64_t first, std::int64_t rows) {
    pieces.push_back({data, first, rows});
  });
  return pieces;
}

/// All rows become zero; padding is left alone.
template <class T>
void set_zero(const RowBlocks<T>& blocks) {
  blocks.each_block([&](T* data, std::int64_t, std::int64_t rows) {
    for (std::int64_t i = 0; i < rows * blocks.row_elems; ++i)
      data[i] = 0;
  });
}

}  // namespace hpsim
