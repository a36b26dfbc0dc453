#pragma once

#include <cstdint>
#include <stdexcept>
#include <vector>

#include "engine/rank_engine.h"
#include "exec/gloo/control_block.h"

namespace hpsim {

/// What one rank sends to another is not what that one expects.
class CountsDisagree : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Says how many elements `me` sends to every member and expects of each, and compares it with what
/// they have said of the collective with this tag. Nobody waits: of two ranks, the later finds that
/// they disagree. It does not where the earlier one, which needs nothing of it, has announced
/// another collective since; then the size of the message, which Exchange makes slots from, keeps
/// the two apart until the timeout.
///
///   rank 0 sends 3 elements to rank 1, which expects 2
///
/// \pre call.counts_in and call.counts_out have an entry for every member; no other collective of
///      the run has this tag
/// \throws CountsDisagree
void announce_counts(const ControlBlock& control, const CollectiveCall& call,
                     const std::vector<Rank>& members, Rank me, std::uint64_t tag);

}  // namespace hpsim
