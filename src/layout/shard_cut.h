#pragma once

#include <cstdint>
#include <vector>

#include "base/interval.h"
#include "layout/tensor_layout.h"

namespace hpsim {

/// How fully_shard cuts what tensor and expert parallelism leave of a parameter (its whole, or
/// TP-local, tensor): along one tensor dim by a chunk rule, or in ragged runs of cells of its
/// leading dims.
struct ShardCut {
  std::int64_t num_shards = 1;
  std::vector<int> dims = {0};         ///< several only if ragged, and then 0..k-1
  Chunking chunking = Chunking::Ceil;  ///< not ragged
  LocalUnits local_units;              ///< ragged: relative sizes, one per shard

  [[nodiscard]] bool is_ragged() const { return local_units.size() > 0; }
  /// Shards are whole rows of tensor dim 0.
  [[nodiscard]] bool is_by_rows() const { return dims.size() == 1 && dims[0] == 0; }
  bool operator==(const ShardCut&) const = default;
};

/// What is cut: the indices of the one tensor dim, or the cells of the leading ones.
///
///   (7, 8), dims {0}    7        (7, 8), dims {1}    8        (5, 3, 6), dims {0, 1}    15
[[nodiscard]] std::int64_t num_cells(const ShardCut& cut, const Shape& whole);

/// All shards in cells, in order.
///
///   (7, 8) in 4          [0,3) of 2 from 0, [3,4) of 1 from 6
///   (6, 4), units 1, 2   [0,1) of 2 from 0, [1,2) of 4 from 2
///
/// \pre ragged: the units are one per shard, and their sum divides the cells
[[nodiscard]] std::vector<ShardRun> shard_runs(const ShardCut& cut, const Shape& whole);

/// The cells of one shard. \pre as above, 0 <= index < num_shards
[[nodiscard]] Interval shard_cells(const ShardCut& cut, const Shape& whole, std::int64_t index);

/// The boxes of one shard inside the whole tensor, in storage order; one box, or up to 2n - 1 if
/// several dims are cut in ragged runs. An empty shard is one empty box, which says where.
[[nodiscard]] std::vector<Box> shard_boxes(const ShardCut& cut, const Shape& whole,
                                           std::int64_t index);

[[nodiscard]] std::int64_t shard_elems(const ShardCut& cut, const Shape& whole, std::int64_t index);

/// The shape of a shard's slot in communication, equal for all shards: the largest of them. Shards
/// that are no box have slots of one dim.
///
///   (7, 8) in 4          (2, 8)       (2, 3) in 4                            (1, 3)
///   (32, 64), dims {1}, in 8  (32, 8)      (2, 64), dims {0, 1}, units 21, 21, 22    (44,)
[[nodiscard]] Shape padded_shape(const ShardCut& cut, const Shape& whole);

/// Whether the cut divides: shards of one size, no padding. \pre not ragged
[[nodiscard]] bool is_even(const ShardCut& cut, const Shape& whole);

/// The placement that fully_shard's mesh dim has for this cut, next to what `unsharded` says of the
/// other mesh dims (RFCs: multi-dim 2.2.1, ragged 6.4). Even cuts are plain in every vocabulary.
///
///   (32, 64) in 8                          Shard(0)
///   (7, 8) in 4                            RaggedShard((0,), (2, 2, 2, 1)) | Shard(0, uneven) |
///   Shard(0) (6, 4) in 4, balanced                  RaggedShard((0,), (2, 2, 1, 1)) (32, 64) in 4,
///   tp 2 on dim 0           StridedShard(0, 2) (10, 3) in 2, tp 2 on dim 0
///   RaggedStridedShard((0,), (3, 2), 2) (7, 2) in 4, tp 2 on dim 0 RaggedStridedShard((0,), ((1,
///   1, 1, 1), (1, 1, 1, 0)), 2) (7, 2) in 1                            Shard(0)
///
/// Where other mesh dims cut unevenly, the cut is uneven if it is so on any rank: placements are
/// the same on all.
[[nodiscard]] Placement fully_shard_placement(const ShardCut& cut, const TensorLayout& unsharded,
                                              const Mesh& mesh, Vocabulary vocabulary);

}  // namespace hpsim
