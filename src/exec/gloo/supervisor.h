#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "exec/executor.h"
#include "exec/gloo/control_block.h"
#include "exec/gloo/failure.h"
#include "exec/gloo/rank_session.h"
#include "exec/rank_processes.h"

namespace hpsim {

struct RanksRun {
  double connect_s = 0;  ///< until the last rank was connected
  double steps_s = 0;    ///< from then until the last rank had finished its steps
  std::string output;    ///< what the ranks wrote to stdout and stderr, which should be nothing
};

/// Watches ranks until all have met, then ends their processes. Looks about every 10 ms and at once
/// when a process ends.
/// \throws Error (RankFailure) at the first sign that they cannot, naming the cause: see
///         judge_ranks; Interrupted on SIGINT or SIGTERM. Processes may still run then.
void supervise(RankProcesses& processes, const ControlBlock& control, const RunOptions& options,
               const DescribeStep& describe);

/// Runs `body` as every rank of a mesh, each in its own process, connected before and met after. No
/// process, file or port outlives the call, however it ends.
/// \pre this process has one thread
/// \throws as supervise; Error (Environment) if there are no processes or memory to be had
RanksRun run_ranks(std::int64_t num_ranks, const RunOptions& options, const DescribeStep& describe,
                   const std::function<void(RankSession&)>& body);

}  // namespace hpsim
