#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "base/interval.h"

namespace hpsim {

/// What each rank along a mesh dim holds, in units: the `local_units` of RaggedShard. Kept as runs
/// of equal numbers, so that the cut of 9 rows over 131,072 ranks takes two entries.
///
///   2, 2, 2, 1    runs 2 * 3, 1 * 1
class LocalUnits {
 public:
  struct Run {
    std::int64_t count = 0;  ///< of neighbouring ranks
    std::int64_t value = 0;  ///< of each
    bool operator==(const Run&) const = default;
  };

  LocalUnits() = default;
  LocalUnits(std::initializer_list<std::int64_t> units);
  explicit LocalUnits(const std::vector<std::int64_t>& units);
  /// The lengths of shards.
  explicit LocalUnits(const std::vector<ShardRun>& runs);

  /// \pre count >= 1
  void append(std::int64_t count, std::int64_t value);

  /// Number of ranks.
  [[nodiscard]] std::int64_t size() const { return size_; }
  [[nodiscard]] std::int64_t sum() const { return sum_; }
  [[nodiscard]] std::int64_t largest() const;
  /// Units before and up to rank `index`: (2, 2, 2, 1), 3 -> [6, 7). Logarithmic in the number of
  /// runs. \pre 0 <= index < size()
  [[nodiscard]] Interval interval(std::int64_t index) const;
  [[nodiscard]] const std::vector<Run>& runs() const { return runs_; }

  bool operator==(const LocalUnits& other) const { return runs_ == other.runs_; }

 private:
  struct Start {
    std::int64_t index = 0;  ///< of the run's first rank
    std::int64_t units = 0;  ///< before it
  };

  std::vector<Run> runs_;      ///< neighbours differ in value
  std::vector<Start> starts_;  ///< like runs_
  std::int64_t size_ = 0;
  std::int64_t sum_ = 0;
};

/// "(2, 2, 2, 1)", "(5,)"; of more than 64 ranks in runs: "(2 * 100, 1, 0 * 27)".
[[nodiscard]] std::string to_string(const LocalUnits& units);

}  // namespace hpsim
