#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "fuzz/dice.h"

namespace hpsim {

/// Damages scenario files, in one of three ways: single bytes; single tokens, so that the text is
/// still close to JSON; or values of the document, which stays JSON, so that the damage gets as far
/// as the checks on meaning. Values and keys come from the text itself, from lists of edges and of
/// words of the format, and from the key table, so that a new key of the format is tried too.
///
///   {"steps": 1}  ->  {"steps": }, {"steps": 9223372036854775808}, {"steps": 1, "micro_batches":
///   3}
class ScenarioMutator {
 public:
  /// The same seed gives the same damage, on any machine.
  explicit ScenarioMutator(std::uint32_t seed) : dice_(seed) {}

  /// The text with one to three changes.
  [[nodiscard]] std::string mutate(std::string text);

  /// The first text with a value of the second in it; the first if either is no JSON.
  [[nodiscard]] std::string cross(std::string_view text, std::string_view other);

 private:
  Dice dice_;
};

}  // namespace hpsim
