#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "report/golden.h"
#include "report/report.h"

namespace hpsim {

// Differences of two goldens in words. `golden` comes from a file and may be of any form; `now` is
// make_golden of a report. Whatever is compared exactly and is not equal gives a difference: where
// the words of a section find none, it is told by its JSON pointer.

/// All sections.
void diff_goldens(const nlohmann::ordered_json& golden, const nlohmann::ordered_json& now,
                  const Report& report, GoldenComparison& comparison);

/// The member, or null where there is none.
[[nodiscard]] const nlohmann::ordered_json& member(const nlohmann::ordered_json& object,
                                                   std::string_view key);

/// On one line: "(7, 8)" for arrays of integers, texts without quotes, "none" for null.
[[nodiscard]] std::string brief(const nlohmann::ordered_json& value);

/// "fsdp", "(rep, fsdp)", "no mesh dim": a list of mesh dims.
[[nodiscard]] std::string over_text(const nlohmann::ordered_json& mesh_dims);

/// "weight", "a, b, c and 27 more"
[[nodiscard]] std::string first_names(const std::vector<std::string>& names);

/// "step 2", "steps 2..4", "steps 0, 2..4"; half-open intervals, ascending.
[[nodiscard]] std::string steps_text(const std::vector<Interval>& steps);

/// "parameters": those added and gone, then of each that both have what changed.
[[nodiscard]] std::vector<GoldenDifference> diff_parameters(
    const nlohmann::ordered_json& golden, const nlohmann::ordered_json& now,
    const nlohmann::ordered_json& mesh_dim_names);

/// "collectives", phase by phase: those added and gone, by op and mesh dims; then what changed
/// about those that both have; then their order. What is so in all optimizer steps is told once.
///
///   "backward: reduce_scatter 12 → 13 over fsdp (unit l3 added)"
///   "backward: all_reduce over rep: dtype float32 → bfloat16 (units l0, l1)"
///   "step 2, forward: all_gather 3 → 2 over fsdp (unit l1 gone)"
[[nodiscard]] std::vector<GoldenDifference> diff_collectives(const nlohmann::ordered_json& golden,
                                                             const nlohmann::ordered_json& now);

}  // namespace hpsim
