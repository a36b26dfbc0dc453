#include "trace/ledger.h"

#include <algorithm>

#include "base/check.h"

namespace hpsim {

std::string_view name_of(MemoryKind kind) {
  static constexpr std::array<std::string_view, kNumMemoryKinds> kNames = {
      "sharded_parameters", "padding",   "unsharded_parameters", "unsharded_gradients",
      "reduce_buffers",     "gradients", "optimizer_state",      "activations"};
  return kNames.at(static_cast<std::size_t>(kind));
}

void Ledger::allocate(MemoryKind kind, std::int64_t bytes) {
  const auto at = static_cast<std::size_t>(kind);
  live_[at] += bytes;
  live_total_ += bytes;
  peak_[at] = std::max(peak_[at], live_[at]);
  peak_total_ = std::max(peak_total_, live_total_);
}

void Ledger::release(MemoryKind kind, std::int64_t bytes) {
  const auto at = static_cast<std::size_t>(kind);
  HPSIM_CHECK(live_[at] >= bytes, "{}: releasing {} bytes of {} live", name_of(kind), bytes,
              live_[at]);
  live_[at] -= bytes;
  live_total_ -= bytes;
}

}  // namespace hpsim
