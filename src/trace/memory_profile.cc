#include "trace/memory_profile.h"

#include <algorithm>

#include "plan/rank_layout.h"
#include "trace/plan_ledger.h"

namespace hpsim {
namespace {

void raise_to(std::int64_t& maximum, std::int64_t value) {
  maximum = std::max(maximum, value);
}

void raise_to(BytesByKind& maxima, const BytesByKind& values) {
  for (std::size_t kind = 0; kind < kNumMemoryKinds; ++kind)
    raise_to(maxima[kind], values[kind]);
}

}  // namespace

void MemoryProfile::add(const Ledger& init, std::span<const MemoryEvent> of_rank) {
  raise_to(init_peak, init.peak());
  raise_to(init_peak_total, init.peak_total());
  events.resize(std::max(events.size(), of_rank.size()));
  for (std::size_t i = 0; i < of_rank.size(); ++i) {
    raise_to(events[i].live_after, of_rank[i].live_after);
    raise_to(events[i].total_after, total_of(of_rank[i].live_after));
    raise_to(events[i].peak_total, of_rank[i].peak_total);
  }
}

std::int64_t MemoryProfile::peak_step() const {
  const auto most =
      std::max_element(events.begin(), events.end(),
                       [](const auto& a, const auto& b) { return a.peak_total < b.peak_total; });
  return most == events.end() ? -1 : most - events.begin();
}

MemoryProfile planned_profile(const Plan& plan) {
  MemoryProfile profile;
  for (const RankClass& each : rank_classes(plan)) {
    const PlannedMemory memory = planned_memory(plan, each.first);
    profile.add(memory.init, memory.events);
  }
  return profile;
}

}  // namespace hpsim
