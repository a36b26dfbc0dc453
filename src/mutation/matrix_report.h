#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "mutation/kill_matrix.h"

namespace hpsim {

/// For people: a line per fault (places, found by its own check, by others, survived), then every
/// trial that its own check did not find, every scenario that reports without a fault, and the
/// score.
[[nodiscard]] std::string matrix_text(const KillMatrix& matrix, bool color);

/// The same, and what became of every fault in every scenario:
///
///   {"faults": {"skip_all_reduce": {"places": 3, "own": 3, "other": 0, "survived": 0}, ...},
///    "scenarios": {"scenarios/a.json": "skip_all_reduce norm_local", ...},
///    "other": [{"fault", "scenario", "found": [...]}], "survived": [...], "without_fault": [...],
///    "score": 1.0}
///
/// A scenario lists the faults that have a place in it.
[[nodiscard]] nlohmann::ordered_json matrix_json(const KillMatrix& matrix);

/// What differs between a golden matrix and another, in words; empty where they are equal.
///
///   skip_all_reduce: places 3 → 2
///   scenarios/a.json: skip_all_reduce has no place any more
[[nodiscard]] std::vector<std::string> matrix_differences(const nlohmann::ordered_json& golden,
                                                          const nlohmann::ordered_json& got);

}  // namespace hpsim
