#pragma once

#include <cstdint>

#include "exec/executor.h"
#include "scenario/scenario.h"

namespace hpsim {

/// The most ranks that a backend takes: gloo 64 (a process each), local 1,024 (all in one process),
/// symbolic any number (a record for each kind of rank, see require_rank_kinds).
[[nodiscard]] std::int64_t max_ranks(Backend backend);

/// \throws Error (Usage) if the backend takes fewer ranks, naming those that take more
void require_ranks(Backend backend, std::int64_t num_ranks);

/// \throws Error (Usage) if ranks hold so many different sets of sizes that symbolic cannot record
///         one of each: more than 2,000,000 sizes in all
void require_rank_kinds(const Plan& plan);

/// \throws Error (Usage) if the scenario plants faults that need a process per rank, and the
/// backend
///         has none
void require_faults(Backend backend, const Scenario& scenario);

/// \throws Error (Environment) if what a run records does not fit into this machine's memory
void require_memory_for_results(std::int64_t size_bytes);

}  // namespace hpsim
