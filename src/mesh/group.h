#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "mesh/mesh.h"

namespace hpsim {

/// The ranks that vary along `dims` while all other coordinates are those of `rank`, in the order
/// of their coordinates along `dims` (GroupRank order), not of their numbers; at most the first
/// `limit` of them.
///
///   mesh (2, 4), rank 6    dims {1} -> 4 5 6 7    dims {0} -> 2 6    dims {} -> 6
[[nodiscard]] std::vector<Rank> group_of(
    const Mesh& mesh, const MeshDims& dims, Rank rank,
    std::int64_t limit = std::numeric_limits<std::int64_t>::max());

/// All groups along `dims`, ordered by the coordinates of their first members. Together they hold
/// every rank once; groups of one rank are listed too.
///
///   mesh (2, 4)    dims {1} -> {0 1 2 3} {4 5 6 7}    dims {0} -> {0 4} {1 5} {2 6} {3 7}
[[nodiscard]] std::vector<std::vector<Rank>> groups_along(const Mesh& mesh, const MeshDims& dims);

/// The same in runs of `consecutive` members, which divide a group; 0: whole groups.
///
///   mesh (2, 4), dims {1}, 2    {0 1} {2 3} {4 5} {6 7}
[[nodiscard]] std::vector<std::vector<Rank>> groups_along(const Mesh& mesh, const MeshDims& dims,
                                                          std::int64_t consecutive);

/// The members of the group of `rank`, and the index of that group among groups_along.
struct GroupOfRank {
  std::vector<Rank> members;
  std::int64_t index = 0;
};
[[nodiscard]] GroupOfRank group_along(const Mesh& mesh, const MeshDims& dims,
                                      std::int64_t consecutive, Rank rank);

}  // namespace hpsim
