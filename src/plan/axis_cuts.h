#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/interval.h"
#include "plan/plan.h"

namespace hpsim {

/// Parts of one length at neighbouring coordinates, evenly spaced along each mesh dim.
struct PartRun {
  std::vector<Interval> coordinates;  ///< like AxisCut::mesh_dims
  std::vector<std::int64_t> strides;  ///< from a part to the next along each of them
  Interval first;                     ///< indices of the part at the first coordinates
  std::int64_t slot = 0;              ///< length that each is padded to in communication

  [[nodiscard]] std::int64_t length() const { return first.length(); }
  [[nodiscard]] std::int64_t num_parts() const;
  /// Indices of part number `part`, row-major over the coordinates. \pre 0 <= part < num_parts()
  [[nodiscard]] Interval part(std::int64_t part) const;
  [[nodiscard]] Interval last() const { return part(num_parts() - 1); }
  /// Whether the parts follow one another without gaps: together they are [first.begin, last.end).
  [[nodiscard]] bool is_contiguous() const;
  bool operator==(const PartRun&) const = default;
};

/// How one tensor dim is cut, in as few runs as its lengths take, whatever the number of ranks.
struct AxisCut {
  int tensor_dim = 0;
  MeshDims mesh_dims;  ///< of more than one rank, in the order in which they cut: not ascending
  std::vector<PartRun> runs;

  bool operator==(const AxisCut&) const = default;
};

/// The cut of every tensor dim that is cut over more than one rank, ascending. What a rank holds is
/// the product of its parts.
///
///   (7, 8) over fsdp 4      dim 0 over fsdp: 0..2 hold 2 each, [0, 2) to [4, 6); 3 holds [6, 7)
///   and
///                           1 of padding
///   (8, 8), tp 2 on dim 1   dim 0 over fsdp, dim 1 over tp
///   (7, 2), tp 2 on dim 0,  dim 0 over tp, then fsdp: (0, 0..3) hold 1 each, [0, 1) to [3, 4);
///     over fsdp 4           (1, 0..2) 1 each, [4, 5) to [6, 7); (1, 3) nothing, at [7, 7)
///   (70, 2), tp 7 on dim 0, dim 0 over tp, then fsdp: (0..6, 0..2) 3 each, from 10 tp + 3 fsdp;
///     over fsdp 4           (0..6, 3) 1 each, from 10 tp + 9
///   (32, 64) on one rank    none
///
/// \pre fully_shard cuts at most one tensor dim
[[nodiscard]] std::vector<AxisCut> axis_cuts(const Mesh& mesh, const PlannedParameter& parameter);

/// One part of a tensor dim.
struct Band {
  Interval indices;
  std::vector<std::int64_t> coordinates;  ///< like AxisCut::mesh_dims
  std::int64_t slot = 0;
};

/// All parts, ascending by where they lie; of equals, first the empty ones. As many as the product
/// of the sizes of the cutting mesh dims.
[[nodiscard]] std::vector<Band> bands_of(const AxisCut& cut);

/// A number of indices of a tensor dim, in words.
///
///   (7, 8)    dim 0, 2 -> "2 rows"    dim 0, 1 -> "1 row"    dim 1, 4 -> "4 columns"
///   (7,)      dim 0, 2 -> "2 elements"
///   (5, 3, 6) dim 0, 2 -> "2 rows"    dim 2, 3 -> "3 indices of dim 2"
[[nodiscard]] std::string counted_indices(const Shape& shape, int tensor_dim, std::int64_t count);

/// "rows", "columns", "elements", "indices of dim 2", "row" for one of them
[[nodiscard]] std::string noun_of_indices(const Shape& shape, int tensor_dim, bool is_one = false);

}  // namespace hpsim
