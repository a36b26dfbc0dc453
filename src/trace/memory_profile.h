#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "plan/plan.h"
#include "trace/ledger.h"

namespace hpsim {

/// Memory per rank around the steps of a plan: maxima over ranks, each number its own.
struct MemoryProfile {
  struct Event {
    BytesByKind live_after{};
    std::int64_t total_after = 0;  ///< of one rank, all kinds together
    std::int64_t peak_total = 0;   ///< within the step, likewise
  };

  std::vector<Event> events;  ///< per step of the plan; empty where none were recorded
  BytesByKind init_peak{};    ///< while parameters were made
  std::int64_t init_peak_total = 0;

  /// One rank more. `of_rank`: none, or one event per step of the plan.
  void add(const Ledger& init, std::span<const MemoryEvent> of_rank);
  /// Step of the plan in which the most was alive, the first of equals; -1: there are no events.
  [[nodiscard]] std::int64_t peak_step() const;
};

/// Of all ranks, as the plan says; with balanced_routing.
[[nodiscard]] MemoryProfile planned_profile(const Plan& plan);

}  // namespace hpsim
