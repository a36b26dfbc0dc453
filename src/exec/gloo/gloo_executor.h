#pragma once

#include <memory>

#include "exec/executor.h"

namespace hpsim {

/// Runs a plan over Gloo: one process per rank on this machine, at most 64, all collectives over
/// TCP on the loopback interface. Ranks write what they record into memory shared with this
/// process; nothing of them outlives a run, however it ends.
///
/// run throws Interrupted on SIGINT or SIGTERM. \pre this process has one thread
[[nodiscard]] std::unique_ptr<Executor> make_gloo_executor();

}  // namespace hpsim
