#pragma once

#include <string>

#include "report/text.h"

namespace hpsim {

// Parts of the screen of one scenario that has run. Each starts with an empty line.

/// A line per parameter: shape, placements, rows of each shard, rows of padding over all shards,
/// mesh dims and sizes of its groups.
[[nodiscard]] std::string parameters_section(const Report& report, const TextStyle& style);

/// A line per optimizer step: loss, loss of the baseline, gradient norm.
[[nodiscard]] std::string steps_section(const Report& report, const TextStyle& style);

/// A line per kind of collective in one optimizer step: number, bytes per rank of all of them, the
/// scale after the sum; then the memory.
[[nodiscard]] std::string collectives_section(const Report& report, const TextStyle& style);

/// Checks in three columns: of the plan, of the run, of the numbers against the baseline.
[[nodiscard]] std::string checks_section(const Report& report, const TextStyle& style);

}  // namespace hpsim
