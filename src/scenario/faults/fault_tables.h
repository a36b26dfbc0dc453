#pragma once

#include <vector>

#include "scenario/fault_catalog.h"

namespace hpsim {

// The rows of the catalogue, by where a fault is planted.

/// Of the processes of ranks.
[[nodiscard]] std::vector<FaultKind> process_faults();
/// Of the plan, before it is verified.
[[nodiscard]] std::vector<FaultKind> plan_faults();
/// Of collectives, groups, scales and micro-batches, as ranks carry them out.
[[nodiscard]] std::vector<FaultKind> exchange_faults();
/// Of what a rank holds and computes: storage, padding, optimizer, norm, precision, model, data.
[[nodiscard]] std::vector<FaultKind> engine_faults();
/// More of them: what is in shards, buffers, samples and activations, norms and numbers of updates.
[[nodiscard]] std::vector<FaultKind> contents_faults();

}  // namespace hpsim
