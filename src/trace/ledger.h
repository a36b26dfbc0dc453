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

/// Counts live bytes by kind. Plain data: it may live in shared memory.
class Ledger {
 public:
  void allocate(MemoryKind kind, std::int64_t bytes);
  /// \pre at least `bytes` of that kind are live
  void release(MemoryKind kind, std::int64_t bytes);

  [[nodiscard]] const BytesByKind& live() const { return live_; }
  [[nodiscard]] const BytesByKind& peak() const { return peak_; }
  [[nodiscard]] std::int64_t peak_total() const { return peak_total_; }

 private:
  BytesByKind live_{};
  BytesByKind peak_{};
  std::int64_t live_total_ = 0;
  std::int64_t peak_total_ = 0;  ///< of the sum over kinds, at one moment
};

}  // namespace hpsim
