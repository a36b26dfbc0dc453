#pragma once

#include <cstdint>
#include <random>
#include <string>

#include "scenario/scenario.h"

namespace hpsim::test {

/// Draws numbers that are the same with every standard library.
class Dice {
 public:
  explicit Dice(std::uint64_t seed) : engine_(seed) {}
  /// 0 <= result < count
  [[nodiscard]] std::int64_t below(std::int64_t count) {
    return static_cast<std::int64_t>(engine_() % static_cast<std::uint64_t>(count));
  }
  /// True once in `count` times.
  [[nodiscard]] bool one_in(std::int64_t count) { return below(count) == 0; }
  template <class T>
  [[nodiscard]] T pick(std::initializer_list<T> choices) {
    return choices.begin()[below(static_cast<std::int64_t>(choices.size()))];
  }

 private:
  std::mt19937_64 engine_;
};

/// The JSON text of a small scenario that is valid and may be any mix of what the format allows:
/// meshes of 1 to 4 dims up to 12 ranks with any roles and rank order, prime and single sizes,
/// elementwise parameters with placements by TP and EP, module models with styles and placements of
/// their linears, units, shards along any tensor dim or ragged over several, shard_size,
/// min_shard_bytes, replicated and ignored parameters, averaged weights, both chunk rules, all
/// vocabularies, data dims, factors, optimizers, modes, a linear used twice, and policies as
/// draw_policies adds them.
[[nodiscard]] std::string random_scenario(Dice& dice);

}  // namespace hpsim::test
