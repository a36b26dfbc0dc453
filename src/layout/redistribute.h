#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "layout/placement.h"
#include "mesh/mesh.h"

namespace hpsim {

/// What the ranks along a mesh dim do to bring a tensor from one placement to another.
enum class RedistributeOp {
  Keep,           ///< nothing: the placements are the same
  Slice,          ///< every rank keeps its part of what it holds
  AllGather,      ///< parts are put together
  AllToAll,       ///< parts of one tensor dim become parts of another
  AllReduce,      ///< terms are added
  ReduceScatter,  ///< terms are added, every rank keeps its part of the sum
  KeepFirst,      ///< the first rank's copy becomes the only term, other ranks hold zeros
  Embed,          ///< parts become terms: zeros wherever another rank holds the part
};

/// "keep", "slice", "all_gather", "all_to_all", "all_reduce", "reduce_scatter", "keep_first",
/// "embed"
[[nodiscard]] std::string_view name_of(RedistributeOp op);

/// Whether ranks must exchange anything.
[[nodiscard]] bool communicates(RedistributeOp op);

/// The rule table, for one mesh dim (torch.distributed.tensor, _redistribute.py, but for embed). No
/// module takes terms, so that plans have no keep_first and no embed:
///
///   from \ to     Replicate    Shard(e)                     Partial
///   Replicate     keep         slice                        keep_first
///   Shard(d)      all_gather   keep if d = e, all_to_all    embed
///   Partial       all_reduce   reduce_scatter               keep
///
/// \pre none of them is ragged
[[nodiscard]] RedistributeOp redistribute_op(const Placement& from, const Placement& to);

/// The placement of the gradient of a tensor: that of the tensor, but Replicate where it is
/// Partial: all terms of a sum have the gradient of the sum.
///
/// With it the backward of a redistribution is the transposed one. The gradient that comes back is
/// placed as `gradient_placement(to)`, or is Partial where `to` is Replicate and its readers used
/// parts of a weight; it is brought to gradient_placement(from):
///
///   forward                         backward, whole       backward, Partial
///   keep       Replicate            keep                  all_reduce
///   all_reduce Partial -> Replicate keep                  all_reduce
///   all_gather Shard -> Replicate   slice                 reduce_scatter
///   slice      Replicate -> Shard   all_gather            all_reduce
///   reduce_scatter Partial -> Shard all_gather            all_reduce
///   all_to_all Shard(d) -> Shard(e) all_to_all            reduce_scatter
[[nodiscard]] Placement gradient_placement(const Placement& placement);
[[nodiscard]] std::vector<Placement> gradient_placements(const std::vector<Placement>& placements);

/// One step of a redistribution over a mesh: one mesh dim, several only for all_reduce.
struct Transition {
  RedistributeOp op = RedistributeOp::Keep;
  MeshDims mesh_dims;
  std::vector<Placement> before;  ///< one per mesh dim of the mesh
  std::vector<Placement> after;
  bool operator==(const Transition&) const = default;
};

/// The steps that bring an activation [batch, features] from one layout to another; none if they
/// are equal. What several mesh dims cut is put together from the innermost cut outwards, and cut
/// again where that is needed; sums over several mesh dims are one step, and come first. The batch,
/// tensor dim 0, is counted in samples of data ranks, so that any of its cuts can be undone alone.
///
///   mesh (tp)      [Shard(1)] -> [Replicate]                     all_gather tp
///   mesh (a, b)    [Partial, Partial] -> [Replicate, Replicate]  all_reduce a, b
///                  [Shard(1), Shard(1)] -> [Replicate, Shard(1)] all_gather b, all_gather a,
///                                                                slice b
///                  [Shard(0), Shard(0)] -> [Replicate, Shard(0)] all_gather a
///
/// \pre none of them is ragged
[[nodiscard]] std::vector<Transition> redistribute(const std::vector<Placement>& from,
                                                   const std::vector<Placement>& to);

}  // namespace hpsim
