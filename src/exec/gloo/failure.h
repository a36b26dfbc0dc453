#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/finding.h"
#include "base/ids.h"
#include "exec/gloo/control_block.h"
#include "exec/rank_processes.h"

namespace hpsim {

/// All that is known of one rank at one moment.
struct RankView {
  RankStatus status;
  std::vector<EnteredCollective> entered;  ///< the last ones, besides that of its status
  std::int64_t waiting_for = -1;           ///< rank whose data it waits for; -1 if none
  std::string text;                        ///< of its failure, if it failed
  ProcessState process;
};

/// Why a run must end: the rank that is the cause, and the whole story in words.
struct Failure {
  Rank root;
  FindingCode code = FindingCode::Hang;
  std::string message;  ///< root, what it was doing, what happened, who waited for it
  std::string help;     ///< what all others were doing
};

/// "rank 2", "ranks 0, 1, 3"
[[nodiscard]] std::string list_ranks(const std::vector<Rank>& ranks);

/// "all_gather of unit l0 (forward, step 0)", "forward of module l0 (step 0)"
using DescribeStep = std::function<std::string(std::int64_t plan_step)>;

/// What a look at all ranks says.
struct Judgement {
  std::optional<Failure> failure;  ///< the run must end
  bool is_suspicious = false;      ///< something is wrong, but its cause may still show
};

/// Judges ranks that share a run. The cause is sought in this order, so that what follows from it
/// is not taken for it:
///
///   collectives of one plan step along different mesh dims    -> the one that differs from most
///   ranks of one group, same sequence number, different tags  -> the one that differs from most;
///                                                                also of collectives that they
///                                                                began and went on from
///   a rank failed through its own fault                       -> the first of them
///   a process ended though not all ranks had met              -> that rank
///   all wait, for a second, and some left the plan            -> one that did
///   a rank waits longer than the timeout                      -> whom the chain of waiting ends at
///   connections lost                                          -> whom the chain of waiting ends at
///
/// The second is only suspicious until all ranks of the group have come, and the last until
/// `patience_over`. The chain goes from a rank to the one it waits for; it ends at a rank that
/// waits for nobody, is stopped, or has ended; in a circle, at the rank most wait for. Of ranks
/// that may be the cause, one that left the plan is, where others did not.
///
/// The code is what differs in what ranks entered: COMM_ORDER, COMM_GROUP, COMM_DTYPE, COMM_SHAPE;
/// RANK_DIED of a rank that failed or ended, HANG of one that others wait for.
[[nodiscard]] Judgement judge_ranks(const std::vector<RankView>& ranks,
                                    const DescribeStep& describe, double timeout_s,
                                    bool patience_over, std::int64_t now_ns);

/// The same of ranks none of which can go on, whatever the time.
[[nodiscard]] Failure judge_stuck(const std::vector<RankView>& ranks, const DescribeStep& describe);

}  // namespace hpsim
