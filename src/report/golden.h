#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace hpsim {

/// What a golden says of the run it guards.
enum class GoldenState { Same, Differs, Missing, Unreadable };

/// "same", "differs", "missing", "unreadable"
[[nodiscard]] std::string_view name_of(GoldenState state);

/// One thing in which a run is not what its golden says.
struct GoldenDifference {
  std::string section;               ///< "parameters", "collectives", ...: a key of the golden
  std::string param;                 ///< fully qualified name; empty if none
  std::optional<std::int64_t> step;  ///< optimizer step; none if it is so in all
  std::string message;               ///< one line: "weight: rank 3 holds 0 rows, golden 1"
};

/// A run beside its golden.
struct GoldenComparison {
  std::string file;  ///< of the golden, as it would be typed
  GoldenState state = GoldenState::Same;
  std::int64_t compared = 0;  ///< values compared
  std::vector<GoldenDifference> differences;
  std::vector<std::string> not_compared;  ///< keys that this backend computes no numbers for
};

}  // namespace hpsim
