#include "trace/ledger.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "base/error.h"

namespace hpsim {
namespace {

/// Sums of these do not wrap.
constexpr std::int64_t kMostBytes = std::int64_t{1} << 62;

[[noreturn]] void throw_too_large() {
  throw Error(ErrorKind::Usage, "a rank would need more than 2^62 bytes at once",
              "use smaller parameters, fewer samples, or more micro-batches");
}

}  // namespace

std::string_view name_of(MemoryKind kind) {
  static constexpr std::array<std::string_view, kNumMemoryKinds> kNames = {
      "sharded_parameters", "padding",   "unsharded_parameters", "unsharded_gradients",
      "reduce_buffers",     "gradients", "optimizer_state",      "activations"};
  return kNames.at(static_cast<std::size_t>(kind));
}

std::int64_t total_of(const BytesByKind& bytes) {
  return std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0});
}

void Ledger::restart_peaks() {
  peak_ = live_;
  peak_total_ = live_total_;
  event_peak_ = live_total_;
}

void Ledger::allocate(MemoryKind kind, std::int64_t bytes) {
  const auto at = static_cast<std::size_t>(kind);
  if (bytes > kMostBytes - live_total_) throw_too_large();
  live_[at] += bytes;
  live_total_ += bytes;
  peak_[at] = std::max(peak_[at], live_[at]);
  peak_total_ = std::max(peak_total_, live_total_);
  event_peak_ = std::max(event_peak_, live_total_);
}

void Ledger::release(MemoryKind kind, std::int64_t bytes) {
  const auto at = static_cast<std::size_t>(kind);
  HPSIM_CHECK(live_[at] >= bytes, "{}: releasing {} bytes of {} live", name_of(kind), bytes,
              live_[at]);
  live_[at] -= bytes;
  live_total_ -= bytes;
}

}  // namespace hpsim
