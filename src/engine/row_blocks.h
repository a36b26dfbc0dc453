#pragma once

#include <algorithm>
#include <cstdint>

namespace hpsim {

/// A whole parameter where the fused all-gather left it: rows in blocks, one block per shard, each
/// block contiguous, blocks `block_stride` elements apart (the row of a bucket). Compute reads and
/// writes it in place, so nothing is copied out of or into communication buffers.
///
///   7 rows over 4 shards, rows_per_block 2    block 0: rows [0,2)  1: [2,4)  2: [4,6)  3: [6,7)
///   2 rows over 4 shards, rows_per_block 1    block 0: [0,1)  1: [1,2); blocks 2 and 3 are empty
///   not cut                                   block 0: all rows
///
/// What a block holds behind its rows is padding.
template <class T>
struct RowBlocks {
  T* data = nullptr;
  std::int64_t rows = 0;
  std::int64_t row_elems = 0;  ///< elements of one row: columns of a matrix, 1 for a vector
  std::int64_t rows_per_block = 0;
  std::int64_t block_stride = 0;  ///< elements between the starts of blocks
  std::int64_t num_blocks = 1;

  /// Calls visit(block data, first row, number of rows) for every block that holds rows.
  template <class Visit>
  void each_block(const Visit& visit) const {
    for (std::int64_t block = 0; block < num_blocks; ++block) {
      const std::int64_t begin = std::min(block * rows_per_block, rows);
      const std::int64_t end = std::min(begin + rows_per_block, rows);
      if (begin < end) visit(data + block * block_stride, begin, end - begin);
    }
  }

  /// Calls visit(first element of the padding, number of elements) for every block with padding.
  template <class Visit>
  void each_padding(const Visit& visit) const {
    for (std::int64_t block = 0; block < num_blocks; ++block) {
      const std::int64_t begin = std::min(block * rows_per_block, rows);
      const std::int64_t held = std::min(begin + rows_per_block, rows) - begin;
      const std::int64_t padding = (rows_per_block - held) * row_elems;
      if (padding > 0) visit(data + block * block_stride + held * row_elems, padding);
    }
  }
};

}  // namespace hpsim
