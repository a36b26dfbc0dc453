#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/interval.h"
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

/// "[Replicate, Shard(0)]"
[[nodiscard]] std::string to_string(const std::vector<Placement>& placements);

/// The placement that fully_shard gives to tensor dim 0 of `rows` rows cut over `num_shards` ranks
/// (ragged FSDP RFC 6.4): even cuts keep Shard(0), uneven ones carry their row counts.
///
///   rows, num_shards
///   32, 8    Shard(0)
///   7, 4     RaggedShard((0,), (2, 2, 2, 1))
///   2, 4     RaggedShard((0,), (1, 1, 0, 0))
///   5, 1     Shard(0)
[[nodiscard]] Placement fsdp_placement(std::int64_t rows, std::int64_t num_shards);

/// The rows of tensor dim 0 that each of `num_ranks` coordinates along one mesh dim holds, read
/// from its placement alone, in one pass. Placements that do not cut dim 0 leave all rows to
/// everybody.
///
///   RaggedShard((0,), (2, 2, 2, 1)), 7 rows    [0,2) [2,4) [4,6) [6,7)
///   Shard(0), 8 rows, 4 ranks                  [0,2) [2,4) [4,6) [6,8)
///   Replicate, 3 rows, 2 ranks                 [0,3) [0,3)
[[nodiscard]] std::vector<Interval> rows_along(const Placement& placement, std::int64_t rows,
                                               std::int64_t num_ranks);

/// The box of the global tensor that the rank at `coordinate` holds, read from the placements alone
/// (Replicate and Partial: all of it). The offset of an empty shard is the end of the tensor dim.
///
///   (7, 8) on mesh (4)          [RaggedShard((0,), (2, 2, 2, 1))]
///     coordinate (0) -> offset (0, 0) shape (2, 8)     (3) -> offset (6, 0) shape (1, 8)
///   (2, 3) on mesh (4)          [RaggedShard((0,), (1, 1, 0, 0))]
///     coordinate (2) -> offset (2, 0) shape (0, 3)
///   (32, 64) on mesh (2, 4)     [Replicate, Shard(0)]
///     coordinate (1, 2) -> offset (16, 0) shape (8, 64)
///
/// \pre at most one mesh dim shards each tensor dim; ragged dims are (0,) and its units sum to the
///      size of dim 0
[[nodiscard]] Box local_box(const TensorLayout& layout, const Mesh& mesh,
                            const Coordinate& coordinate);

}  // namespace hpsim
