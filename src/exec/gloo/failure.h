#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "exec/gloo/control_block.h"
#include "exec/rank_processes.h"

namespace hpsim {

/// All that is known of one rank at one moment.
struct RankView {
  RankStatus status;
  std::int64_t waiting_for = -1;  ///< rank whose data it waits for; -1 if none
  std::string text;               ///< of its failure, if it failed
  ProcessState process;
};

/// Why a run must end: the rank that is the cause, and the whole story in words.
struct Failure {
  Rank root;
  std::string message;  ///< root, what it was doing, what happened, who waited for it
  std::string help;     ///< what all others were doing
};

/// "all_gather of unit l0 (forward, step 0)", "forward of module l0 (step 0)"
using DescribeStep = std::function<std::string(std::int64_t plan_step)>;

struct Patience {
  double timeout_s = 30;       ///< longest wait of a rank for others
  bool lost_for_long = false;  ///< ranks lost a connection and no cause has shown since
};

/// Judges ranks that share a run; nothing while all may still end well. The cause is sought in this
/// order, so that what follows from it is not taken for it:
///
///   ranks of one group, same sequence number, different tags  -> the one that differs
///   a rank failed through its own fault                       -> that rank
///   a process ended though not all ranks had met              -> that rank
///   a rank waits longer than the timeout                      -> whom the chain of waiting ends at
///   connections lost, and patience is over                    -> whom the chain of waiting ends at
///
/// The chain goes from a rank to the one it waits for; it ends at a rank that waits for nobody, is
/// stopped, or has ended; in a circle, at the rank most wait for.
[[nodiscard]] std::optional<Failure> find_failure(const std::vector<RankView>& ranks,
                                                  const DescribeStep& describe,
                                                  const Patience& patience, std::int64_t now_ns);

}  // namespace hpsim
