#pragma once

#include <cstdint>

#include "mesh/mesh.h"
#include "trace/planned_collectives.h"

namespace hpsim {

/// Names a group of ranks: the same on all members, another for every other group. `index` is that
/// of the group among groups_along(mesh, dims, consecutive).
[[nodiscard]] inline std::uint64_t group_id(const MeshDims& dims, std::int64_t consecutive,
                                            std::int64_t index) {
  return static_cast<std::uint64_t>(consecutive) << 40 | dims_mask(dims) << 32 |
         static_cast<std::uint64_t>(index);
}

/// What the name says besides the index: along which mesh dims, in what runs.
[[nodiscard]] inline std::uint64_t dims_of_group(std::uint64_t id) {
  return id >> 32;
}

}  // namespace hpsim
