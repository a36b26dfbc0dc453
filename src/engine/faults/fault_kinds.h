#pragma once

#include <span>

#include "engine/faults/engine_fault.h"

namespace hpsim {

// What find_engine_fault looks through.

/// Of collectives, scales and micro-batches.
[[nodiscard]] std::span<const EngineFaultKind> exchange_fault_kinds();
/// Of what a rank holds and computes.
[[nodiscard]] std::span<const EngineFaultKind> rank_fault_kinds();

}  // namespace hpsim
