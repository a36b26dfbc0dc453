#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/interval.h"

namespace hpsim {

/// The slots of one buffer of an all_to_all, in group order: those of the counts, or equal ones
/// where there are none.
///
///   elems, members, counts    5, 3, 2 0 3    [0, 2) [2, 2) [2, 5)
///                             0, 2, 0 0      [0, 0) [0, 0)
///                             6, 3, none     [0, 2) [2, 4) [4, 6)
///
/// \pre a count for every member, none negative, `elems` in all; or num_members divides elems
[[nodiscard]] std::vector<Interval> slots_of(std::span<const std::int64_t> counts,
                                             std::int64_t elems, std::int64_t num_members);

}  // namespace hpsim
