#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "report/report.h"

namespace hpsim {

/// Meshes with more ranks than this list shards per shard coordinate and groups by their mesh dims,
/// size, number and the first of them (at most this many ranks), unless `full` is asked for.
inline constexpr std::int64_t kMaxListedRanks = 64;

/// The part of a report that is the same for the same scenario and build: all but `timing` and
/// `meta`. Keys in the order of the format; integral numbers are integers; NaN and infinities,
/// which JSON lacks, are strings.
[[nodiscard]] nlohmann::ordered_json comparable_json(const Report& report, bool full);

/// The whole report.
[[nodiscard]] nlohmann::ordered_json report_json(const Report& report, bool full);

struct JsonStyle {
  std::size_t width = 100;
  bool line_per_object = false;  ///< also where the objects of an array fit on one line together
};

/// JSON for people and for diffs: what fits in `width` columns stands on one line.
///
///   {"a": [1, 2], "b": {}}    when short
///   {                         when not
///     "a": [1, 2],
[[nodiscard]] std::string json_text(const nlohmann::ordered_json& value,
                                    const JsonStyle& style = {});

}  // namespace hpsim
