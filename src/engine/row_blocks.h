#pragma once

#include <cstdint>

#include "layout/shard_cut.h"

namespace hpsim {

/// A whole parameter where the fused all-gather left it: rows in blocks, one block per shard, each
/// block contiguous, blocks `block_stride` elements apart (the row of a bucket). Compute reads and
/// writes it in place, so nothing is copied out of or into communication buffers.
///
///   7 rows over 4 shards            block 0: rows [0,2)  1: [2,4)  2: [4,6)  3: [6,7)
///   2 rows over 4 shards            block 0: [0,1)  1: [1,2); blocks 2 and 3 are empty
///   6 rows over 4 shards, balanced  block 0: [0,2)  1: [2,4)  2: [4,5)  3: [5,6)
///   no cut                          block 0: all rows
///
/// What a block holds behind its rows is padding.
template <class T>
struct RowBlocks {
  T* data = nullptr;
  std::int64_t rows = 0;
  std::int64_t row_elems = 0;     ///< elements of one row: columns of a matrix, 1 for a vector
  std::int64_t block_stride = 0;  ///< elements between the starts of blocks
  std::int64_t num_blocks = 1;
  const ShardCut* cut = nullptr;  ///< which rows a block holds; null: one block of all rows

  [[nodiscard]] Interval block_rows(std::int64_t block) const {
    return cut == nullptr ? Interval{0, rows} : shard_cells(*cut, {rows}, block);
  }

  /// Calls visit(block data, first row, number of rows) for every block that holds rows.
  template <class Visit>
  void each_block(const Visit& visit) const {
    for (std::int64_t block = 0; block < num_blocks; ++block) {
      const Interval held = block_rows(block);
      if (!held.empty()) visit(data + block * block_stride, held.begin, held.length());
    }
  }
};

}  // namespace hpsim
