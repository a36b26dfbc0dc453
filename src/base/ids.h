#pragma once

#include <compare>
#include <cstdint>

namespace hpsim {

/// A process of the run, 0 <= value < number of ranks of the mesh.
struct Rank {
  std::int64_t value = 0;
  auto operator<=>(const Rank&) const = default;
};

/// A position inside a group, 0 <= value < size of the group; not a Rank.
struct GroupRank {
  std::int64_t value = 0;
  auto operator<=>(const GroupRank&) const = default;
};

}  // namespace hpsim
