#pragma once

#include <cstddef>
#include <vector>

#include "engine/rank_engine.h"

namespace hpsim {

/// Carries out one collective between ranks of this process. `calls` are those of the members of a
/// group, in group order, in which sums run too. Returns the members, by their place in the group,
/// whose sums rounded (the INEXACT flag).
/// \pre at least one call; the same op, dtype and numbers of elements in all, numbers that differ
///      where they have counts; what one sends to another is as much as that one expects
[[nodiscard]] std::vector<std::size_t> exchange_in_process(
    const std::vector<const CollectiveCall*>& calls);

}  // namespace hpsim
