#pragma once

#include <cstdint>
#include <vector>

#include "plan/plan.h"

namespace hpsim {

/// What one rank holds of a parameter.
struct HeldShard {
  Box whole;               ///< of the global tensor: what TP and EP leave to the rank
  std::int64_t index = 0;  ///< of its shard in the sharded group
  std::vector<Box> boxes;  ///< its shard, of the global tensor, in storage order
  std::int64_t elems = 0;  ///< of its shard

  bool operator==(const HeldShard&) const = default;
};

[[nodiscard]] HeldShard held_shard(const Mesh& mesh, const PlannedParameter& parameter,
                                   const Coordinate& coordinate);

/// Whether gathered shards must be put together before compute can use them: they are no rows of
/// tensor dim 0 (RFC multi-dim: chunk and concatenate around the collective).
[[nodiscard]] bool needs_whole_copy(const PlannedParameter& parameter);

/// Shape of a slot in communication: the shard's, padded so that it is equal in the sharded group.
[[nodiscard]] Shape padded_shape_at(const Mesh& mesh, const PlannedParameter& parameter,
                                    const Coordinate& coordinate);

/// Coordinates at which one parameter's shards are of every size that they have, first and last of
/// each run along each of its cut dims. Their number does not depend on the number of ranks (a
/// ragged cut has as many runs as its units).
[[nodiscard]] std::vector<Coordinate> telling_coordinates(const Mesh& mesh,
                                                          const PlannedParameter& parameter);

/// The same for what TP and EP leave: coordinates along the sharded group are 0.
[[nodiscard]] std::vector<Coordinate> telling_wholes(const Mesh& mesh,
                                                     const PlannedParameter& parameter);

/// Ranks that hold shards of equal sizes of every parameter.
struct RankClass {
  Coordinate first;
  std::int64_t num_ranks = 0;
};

/// How many there are; may be more than fit memory.
[[nodiscard]] double num_rank_classes(const Plan& plan);

/// All ranks in classes; along each mesh dim, a class is a run of coordinates.
[[nodiscard]] std::vector<RankClass> rank_classes(const Plan& plan);

}  // namespace hpsim
