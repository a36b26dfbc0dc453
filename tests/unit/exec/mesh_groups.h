#pragma once

#include <cstdint>
#include <vector>

#include "exec/gloo/rank_session.h"
#include "mesh/group.h"

namespace hpsim {

/// Every group of the mesh that this rank is in, over each set of dims with more than one rank.
inline std::vector<RankGroup> groups_in(const Mesh& mesh, Rank rank) {
  std::vector<MeshDims> choices{{0}};
  if (mesh.num_dims() == 2) choices = {{0}, {1}, {0, 1}};
  std::vector<RankGroup> groups;
  for (const MeshDims& dims : choices) {
    if (mesh.size(dims) < 2) continue;
    RankGroup group;
    group.members = group_of(mesh, dims, rank);
    group.id = groups.size() * 100 + static_cast<std::uint64_t>(group.members.front().value);
    groups.push_back(group);
  }
  return groups;
}

}  // namespace hpsim
