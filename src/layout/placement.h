#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "layout/local_units.h"

namespace hpsim {

/// How the sum over ranks is scaled: Sum leaves it, Avg divides it. The wire always carries a sum.
enum class ReduceOp { Sum, Avg };

/// Every rank along the mesh dim holds the whole tensor (of what the other dims leave).
struct Replicate {
  bool operator==(const Replicate&) const = default;
};

/// Every rank along the mesh dim holds a term of a reduction that is still to be done.
struct Partial {
  ReduceOp op = ReduceOp::Sum;
  bool operator==(const Partial&) const = default;
};

/// Tensor dim `dim` is cut along the mesh dim, by the ceil rule where it does not divide.
struct Shard {
  int dim = 0;
  bool uneven = false;  ///< vocabulary uneven_flag: marked as not dividing
  bool operator==(const Shard&) const = default;
};

/// Like Shard, but cuts what the mesh dims with smaller factors leave of the tensor dim;
/// `split_factor` is the product of their sizes. Plain shards have factor 1.
struct StridedShard {
  int dim = 0;
  std::int64_t split_factor = 1;
  bool uneven = false;
  bool operator==(const StridedShard&) const = default;
};

/// The cells of the leading tensor dims `dims` (0..k-1) are cut in contiguous runs along the mesh
/// dim; rank i holds local_units[i] / sum(local_units) of them. fully_shard writes raw row counts.
struct RaggedShard {
  std::vector<int> dims;
  LocalUnits local_units;
  bool operator==(const RaggedShard&) const = default;
};

/// RaggedShard of what the other mesh dims leave of `dims`, `split_factor` the product of their
/// sizes. One `local_units`, or where these leave different numbers of rows one per coordinate
/// along them, row-major.
struct RaggedStridedShard {
  std::vector<int> dims;
  std::vector<LocalUnits> local_units;
  std::int64_t split_factor = 1;
  bool operator==(const RaggedStridedShard&) const = default;
};

/// What one mesh dim does to a tensor.
using Placement =
    std::variant<Replicate, Partial, Shard, StridedShard, RaggedShard, RaggedStridedShard>;

/// How uneven cuts of fully_shard are written.
enum class Vocabulary {
  Ragged,      ///< RaggedShard, RaggedStridedShard: the ragged FSDP RFC
  UnevenFlag,  ///< Shard(d, uneven), StridedShard(d, f, uneven): HyperParallel as shipped
  Torch,       ///< Shard(d), _StridedShard(d, f): PyTorch, which does not mark them
};

/// "ragged", "uneven_flag", "torch"
[[nodiscard]] std::string_view name_of(Vocabulary vocabulary);

/// As Python prints it. Only Torch writes StridedShard with an underscore.
///
///   Replicate    Partial(sum)    Shard(0)    Shard(0, uneven)
///   StridedShard(0, 2)    StridedShard(0, 2, uneven)    Torch: _StridedShard(0, 2)
///   RaggedShard((0,), (2, 2, 2, 1))    RaggedStridedShard((0,), (3, 2), 2)
///   RaggedStridedShard((0,), ((1, 1, 1, 1), (1, 1, 1, 0)), 2)
[[nodiscard]] std::string to_string(const Placement& placement,
                                    Vocabulary vocabulary = Vocabulary::Ragged);

/// "[Replicate, Shard(0)]"
[[nodiscard]] std::string to_string(const std::vector<Placement>& placements,
                                    Vocabulary vocabulary = Vocabulary::Ragged);

/// "sum", "avg"
[[nodiscard]] std::string to_string(ReduceOp op);

/// The tensor dims that a placement cuts: {0} for Shard(0), {0, 1} for RaggedShard((0, 1), ...),
/// none for Replicate and Partial.
[[nodiscard]] std::vector<int> cut_dims(const Placement& placement);

/// Whether it cuts that tensor dim, alone or with others.
[[nodiscard]] bool cuts(const Placement& placement, int tensor_dim);

/// Whether it cuts any.
[[nodiscard]] bool is_cut(const Placement& placement);

/// 1 but for strided placements.
[[nodiscard]] std::int64_t split_factor_of(const Placement& placement);

}  // namespace hpsim
