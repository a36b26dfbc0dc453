#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace hpsim {

/// What memory of a rank is used for.
enum class MemoryKind {
  ShardedParameters,    ///< true shards
  Padding,              ///< of the communication storage of the shards
  UnshardedParameters,  ///< gathered buckets
  UnshardedGradients,   ///< gradients before reduction, padding included
  ReduceBuffers,        ///< reduced rows until they are stored
  Gradients,            ///< of true shards, until the optimizer is done
  OptimizerState,
  Activations,
};

inline constexpr std::size_t kNumMemoryKinds = 8;

/// "sharded_parameters", "padding", "unsharded_parameters", ...
[[nodiscard]] std::string_view name_of(MemoryKind kind);

using BytesByKind = std::array<std::int64_t, kNumMemoryKinds>;

/// Of all kinds together.
[[nodiscard]] std::int64_t total_of(const BytesByKind& bytes);

/// What a step of the plan did to the memory of a rank. Plain data.
struct MemoryEvent {
  BytesByKind live_after{};
  std::int64_t peak_total = 0;  ///< the most that was alive at one moment of it, all kinds together

  bool operator==(const MemoryEvent&) const = default;
};

/// Counts live bytes by kind. Plain data: it may live in shared memory.
class Ledger {
 public:
  void allocate(MemoryKind kind, std::int64_t bytes);  ///< throws Error (Usage) above 2^62 alive
  /// \pre at least `bytes` of that kind are live
  void release(MemoryKind kind, std::int64_t bytes);

  /// What follows, until event() tells of it, is one event.
  void begin_event() { event_peak_ = live_total_; }
  [[nodiscard]] MemoryEvent event() const { return {live_, event_peak_}; }
  /// Peaks are from now on those of what is alive now, and of what comes.
  void restart_peaks();

  [[nodiscard]] const BytesByKind& live() const { return live_; }
  [[nodiscard]] const BytesByKind& peak() const { return peak_; }
  [[nodiscard]] std::int64_t peak_total() const { return peak_total_; }

 private:
  BytesByKind live_{};
  BytesByKind peak_{};
  std::int64_t live_total_ = 0;
  std::int64_t peak_total_ = 0;  ///< of the sum over kinds, at one moment
  std::int64_t event_peak_ = 0;  ///< likewise, of the event at hand
};

}  // namespace hpsim
