#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "plan/plan.h"

namespace hpsim {

/// Positions of all ranks along mesh dims, computed once per set of dims.
///
///   mesh (rep 2, fsdp 4)    index_along({1})[6] = 2    group_along({1})[6] = 1
class RankTable {
 public:
  explicit RankTable(const Mesh& mesh) : mesh_(mesh) {}

  /// Per rank: its index inside its group along `dims` (Mesh::index_along).
  [[nodiscard]] const std::vector<std::int64_t>& index_along(const MeshDims& dims);
  /// Per rank: which of the groups along `dims` it is in, in the order of groups_along.
  [[nodiscard]] const std::vector<std::int64_t>& group_along(const MeshDims& dims);
  /// The same in runs of `consecutive` members; 0: whole groups.
  [[nodiscard]] std::vector<std::int64_t> group_along(const MeshDims& dims,
                                                      std::int64_t consecutive);

 private:
  const Mesh& mesh_;
  std::map<MeshDims, std::vector<std::int64_t>> indices_;
};

/// "rank 6 (rep=1, fsdp=2)"
[[nodiscard]] std::string describe_rank(const Mesh& mesh, Rank rank);

}  // namespace hpsim
