#pragma once

#include <cstdint>
#include <vector>

#include "layout/placement.h"
#include "mesh/mesh.h"
#include "tensor/shape.h"

namespace hpsim {

/// A global tensor and what each mesh dim does to it: one placement per mesh dim.
struct TensorLayout {
  Shape global_shape;
  std::vector<Placement> placements;
  bool operator==(const TensorLayout&) const = default;
};

/// The mesh dims that cut tensor dim `tensor_dim`, in the order in which they cut it: by ascending
/// split factor (1 for plain placements), and in mesh order where factors are equal.
///
///   [Shard(0), Shard(0)]                      0, 1: left first
///   [StridedShard(0, 2), Shard(0)]            1, 0: tensor parallelism first, then fully_shard
///   [StridedShard(0, 4), StridedShard(0, 2), Shard(0)]    2, 1, 0
[[nodiscard]] MeshDims cutting_order(const std::vector<Placement>& placements, int tensor_dim);

/// Mesh dims that cut the tensor, ascending.
[[nodiscard]] MeshDims cutting_dims(const std::vector<Placement>& placements);

/// Product of the sizes of the mesh dims other than `mesh_dim` that cut any of `tensor_dims`: the
/// split factor of what is cut last.
[[nodiscard]] std::int64_t split_factor_at(const Mesh& mesh,
                                           const std::vector<Placement>& placements, int mesh_dim,
                                           const std::vector<int>& tensor_dims);

/// The part of the global tensor that the rank at `coordinate` holds, read from the placements
/// alone (Replicate and Partial: all of it). One box; several where a ragged shard over several
/// tensor dims is no box; storage is box after box. Empty parts are one box, which says where.
///
///   (7, 8) on mesh (4)            [RaggedShard((0,), (2, 2, 2, 1))]
///     (0) -> (0, 0)+(2, 8)   (3) -> (6, 0)+(1, 8)
///   (2, 3) on mesh (4)            [RaggedShard((0,), (1, 1, 0, 0))]
///     (2) -> (2, 0)+(0, 3)
///   (32, 64) on mesh (2, 4)       [Replicate, Shard(0)]
///     (1, 2) -> (16, 0)+(8, 64)
///   (10, 3) on mesh (fsdp 2, tp 2)    [RaggedStridedShard((0,), (3, 2), 2), Shard(0)]
///     (0, 0) -> rows [0, 3)  (0, 1) -> [5, 8)  (1, 0) -> [3, 5)  (1, 1) -> [8, 10)
///   (7, 2) on mesh (fsdp 4, tp 2)     tp leaves 4 and 3 rows
///                                 [RaggedStridedShard((0,), ((1, 1, 1, 1), (1, 1, 1, 0)), 2),
///                                 S(0)]
///     (2, 0) -> row 2  (2, 1) -> row 6  (3, 0) -> row 3  (3, 1) -> no row, at 7
///   (2, 64) on mesh (4)           [RaggedShard((0, 1), (21, 21, 22, 0))]
///     (1) -> (0, 42)+(1, 22) (1, 0)+(1, 20)
///
/// \pre at most one ragged placement; its units divide what it cuts; tensor dims exist
[[nodiscard]] std::vector<Box> local_boxes(const TensorLayout& layout, const Mesh& mesh,
                                           const Coordinate& coordinate);

/// The same where it is one box. \pre no ragged shard over several tensor dims
[[nodiscard]] Box local_box(const TensorLayout& layout, const Mesh& mesh,
                            const Coordinate& coordinate);

/// The boxes of the cells [cells.begin, cells.end) of the leading `num_dims` dims of `whole`, a box
/// of a larger tensor; one empty box, which says where, for no cells.
[[nodiscard]] std::vector<Box> boxes_of_cells(const Box& whole, int num_dims, Interval cells);

}  // namespace hpsim
