#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

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

/// Tensor dim `dim` is cut evenly along the mesh dim.
struct Shard {
  int dim = 0;
  bool operator==(const Shard&) const = default;
};

/// The cells of the leading tensor dims `dims` (0..k-1) are cut in contiguous runs along the mesh
/// dim; rank i holds local_units[i] / sum(local_units) of them. fully_shard writes raw row counts.
struct RaggedShard {
  std::vector<int> dims;
  std::vector<std::int64_t> local_units;
  bool operator==(const RaggedShard&) const = default;
};

/// What one mesh dim does to a tensor.
using Placement = std::variant<Replicate, Partial, Shard, RaggedShard>;

/// "Replicate", "Partial(sum)", "Shard(0)", "RaggedShard((0,), (2, 2, 2, 1))"
[[nodiscard]] std::string to_string(const Placement& placement);

/// "sum", "avg"
[[nodiscard]] std::string to_string(ReduceOp op);

}  // namespace hpsim
