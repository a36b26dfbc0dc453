#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <random>

namespace hpsim {

/// Random choices that are the same on every machine.
class Dice {
 public:
  explicit Dice(std::uint32_t seed) : random_(seed) {}

  /// 0 <= result < end. \pre end > 0
  std::size_t below(std::size_t end) { return random_() % end; }
  bool one_in(std::size_t count) { return below(count) == 0; }

  /// An element of a list that is not empty.
  template <class List>
  const auto& pick(const List& list) {
    return *std::next(std::begin(list), static_cast<std::ptrdiff_t>(below(std::size(list))));
  }

 private:
  std::mt19937 random_;
};

}  // namespace hpsim
