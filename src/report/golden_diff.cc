#include "report/golden_diff.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <unordered_map>

#include "base/ids.h"
#include "base/units.h"
#include "report/golden_numbers.h"
#include "report/json_parts.h"
#include "report/table.h"
#include "report/text_parts.h"

namespace hpsim {
namespace {

constexpr std::size_t kLongestValue = 80;

/// JSON with sorted keys: the order of keys says nothing.
using Unordered = nlohmann::json;

Unordered unordered(const Json& value) {
  return Unordered::parse(value.dump(-1, ' ', false, Json::error_handler_t::replace));
}

std::int64_t count_leaves(const Json& value) {
  if (!value.is_structured()) return 1;
  std::int64_t count = 0;
  for (const Json& item : value)
    count += count_leaves(item);
  return count;
}

/// The first place in which two values differ: "/0/scale: 0.25 → 0.5".
std::string first_change(const Unordered& golden, const Unordered& now) {
  const Unordered patch = Unordered::diff(golden, now);
  const Unordered::json_pointer place(patch.at(0).at("path").get<std::string>());
  const auto text_at = [&place](const Unordered& value) {
    if (!value.contains(place)) return std::string("none");
    const std::string text = value.at(place).dump();
    return text.size() > kLongestValue ? text.substr(0, kLongestValue) + "…" : text;
  };
  return fmt::format("{}: {} → {}", place.to_string(), text_at(golden), text_at(now));
}

std::string mesh_words(const Json& mesh) {
  const Json& shape = member(mesh, "shape");
  const Json& names = member(mesh, "mesh_dim_names");
  if (!shape.is_array() || !names.is_array() || shape.size() != names.size()) return brief(mesh);
  std::vector<std::string> dims;
  for (std::size_t dim = 0; dim < shape.size(); ++dim)
    dims.push_back(fmt::format("{} {}", brief(names[dim]), brief(shape[dim])));
  const Json& ranks = member(mesh, "ranks");
  return fmt::format("{}{}", fmt::join(dims, " x "),
                     ranks.is_null() ? "" : " with ranks " + brief(ranks));
}

/// Groups over the same mesh dims that have other ranks: the first that differs.
std::string group_change(const std::string& dims, const Json& golden, const Json& now) {
  if (golden.is_array() && now.is_array() && golden.size() == now.size()) {
    for (std::size_t i = 0; i < now.size(); ++i) {
      if (golden[i] == now[i]) continue;
      return fmt::format("groups over {}: number {} has ranks {}, golden {}", dims, i,
                         brief(now[i]), brief(golden[i]));
    }
  }
  return fmt::format("groups over {}: {} → {}", dims, brief(golden), brief(now));
}

std::vector<GoldenDifference> diff_groups(const Json& golden, const Json& now) {
  std::vector<GoldenDifference> differences;
  const auto add = [&](std::string message) {
    differences.push_back({.section = "groups", .message = std::move(message)});
  };
  for (const auto& [dims, groups] : now.items()) {
    const Json& before = member(golden, dims);
    if (before.is_null()) {
      add(fmt::format("groups over {}: new", dims));
    } else if (before != groups) {
      add(group_change(dims, before, groups));
    }
  }
  if (!golden.is_object()) return differences;
  for (const auto& [dims, groups] : golden.items()) {
    if (member(now, dims).is_null()) add(fmt::format("groups over {}: gone", dims));
  }
  return differences;
}

std::string amount(const Json& value, bool is_bytes) {
  if (!value.is_number_integer()) return brief(value);
  return is_bytes ? format_bytes(value.get<std::int64_t>())
                  : format_count(value.get<std::int64_t>());
}

/// "3,000 → 3,072 B" rather than "2.93 KiB → 3 KiB" where rounding would hide it.
std::string amounts(const Json& from, const Json& to, bool is_bytes) {
  const std::string before = amount(from, is_bytes);
  const std::string after = amount(to, is_bytes);
  if (before != after) return before + " → " + after;
  return fmt::format("{} → {} B", brief(from), brief(to));
}

std::vector<GoldenDifference> diff_memory(const Json& golden, const Json& now) {
  std::vector<GoldenDifference> differences;
  const auto add = [&](std::string message) {
    differences.push_back({.section = "memory", .message = std::move(message)});
  };
  std::vector<std::string> kinds;
  std::vector<std::string> counters;
  for (const auto& [key, value] : now.items()) {
    const Json& before = member(golden, key);
    if (before == value || key == "peak_bytes") continue;
    std::string words = key;
    std::replace(words.begin(), words.end(), '_', ' ');
    const bool is_counter = words.substr(0, 4) == "pad ";
    (is_counter ? counters : kinds)
        .push_back(fmt::format("{} {}", words, amounts(before, value, !is_counter)));
  }
  const Json& peak = member(golden, "peak_bytes");
  if (peak != now["peak_bytes"]) {
    add(fmt::format("peak memory {}{}", amounts(peak, now["peak_bytes"], true),
                    kinds.empty() ? "" : fmt::format(" ({})", fmt::join(kinds, ", "))));
  } else if (!kinds.empty()) {
    add(fmt::format("memory: {}", fmt::join(kinds, ", ")));
  }
  for (const std::string& counter : counters)
    add(counter);
  return differences;
}

std::vector<GoldenDifference> diff_units(const Json& golden, const Json& now) {
  std::vector<GoldenDifference> differences;
  if (!golden.is_array()) return differences;
  std::unordered_map<std::string, std::vector<const Json*>> gone;  ///< by unit
  std::unordered_map<std::string, int> kept;
  for (const Json& unit : now)
    ++kept[unit.dump()];
  for (const Json& unit : golden) {
    if (kept[unit.dump()]-- <= 0) gone[brief(member(unit, "unit"))].push_back(&unit);
  }
  std::unordered_map<std::string, int> before;
  for (const Json& unit : golden)
    ++before[unit.dump()];
  const auto add = [&](std::string message) {
    differences.push_back({.section = "units", .message = std::move(message)});
  };
  for (const Json& unit : now) {
    if (before[unit.dump()]-- > 0) continue;
    const std::string name = brief(unit["unit"]);
    std::vector<const Json*>& others = gone[name];
    if (others.empty()) {
      add(fmt::format("unit {}: new, with {}", name, brief(unit["params"])));
      continue;
    }
    add(fmt::format("unit {} carries {}, golden {}", name, brief(unit["params"]),
                    brief(member(*others.front(), "params"))));
    others.erase(others.begin());
  }
  for (const Json& unit : golden) {
    std::vector<const Json*>& others = gone[brief(member(unit, "unit"))];
    const auto found = std::find(others.begin(), others.end(), &unit);
    if (found == others.end()) continue;
    add(fmt::format("unit {}: gone", brief(member(unit, "unit"))));
    others.erase(found);
  }
  if (differences.empty() && golden.size() == now.size()) add("units: the same in another order");
  return differences;
}

std::vector<GoldenDifference> diff_warnings(const Json& golden, const Json& now) {
  std::vector<GoldenDifference> differences;
  const auto lacks = [](const Json& list, const Json& item) {
    return !list.is_array() || std::find(list.begin(), list.end(), item) == list.end();
  };
  const auto add = [&](const Json& warning, const char* what) {
    const std::string param = brief(member(warning, "param"));
    differences.push_back(
        {.section = "warnings",
         .param = param,
         .message = fmt::format("{}{}warning {}: {}", param, param.empty() ? "" : ": ",
                                brief(member(warning, "code")), what)});
  };
  for (const Json& warning : now) {
    if (lacks(golden, warning)) add(warning, "new");
  }
  if (!golden.is_array()) return differences;
  for (const Json& warning : golden) {
    if (lacks(now, warning)) add(warning, "gone");
  }
  return differences;
}

std::vector<GoldenDifference> diff_section(const std::string& key, const Json& golden,
                                           const Json& now, const Json& mesh_dim_names) {
  if (key == "groups") return diff_groups(golden, now);
  if (key == "parameters") return diff_parameters(golden, now, mesh_dim_names);
  if (key == "units") return diff_units(golden, now);
  if (key == "collectives") return diff_collectives(golden, now);
  if (key == "memory") return diff_memory(golden, now);
  if (key == "warnings") return diff_warnings(golden, now);
  if (key == "mesh") {
    return {{.section = key,
             .message = fmt::format("mesh: {} → {}", mesh_words(golden), mesh_words(now))}};
  }
  if (golden.is_object() && now.is_object()) return {};
  return {{.section = key, .message = fmt::format("{}: {} → {}", key, brief(golden), brief(now))}};
}

}  // namespace

const Json& member(const Json& object, std::string_view key) {
  static const Json kNone;
  const std::string name(key);
  return object.is_object() && object.contains(name) ? object.at(name) : kNone;
}

std::string brief(const Json& value) {
  constexpr std::size_t kLongestText = 200;
  if (value.is_null()) return "none";
  if (value.is_string()) return elided(value.get<std::string>(), kLongestText);
  std::string text;
  if (value.is_array()) {
    std::vector<std::string> items;
    for (const Json& item : value)
      items.push_back(brief(item));
    text = fmt::format("({}{})", fmt::join(items, ", "), items.size() == 1 ? "," : "");
  } else {
    text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  }
  return elided(text, kLongestValue);
}

std::string over_text(const Json& mesh_dims) {
  if (!mesh_dims.is_array()) return brief(mesh_dims);
  if (mesh_dims.empty()) return "no mesh dim";
  return mesh_dims.size() == 1 ? brief(mesh_dims[0]) : brief(mesh_dims);
}

std::string first_names(const std::vector<std::string>& names) {
  constexpr std::size_t kMostNamed = 3;
  const std::size_t shown = std::min(names.size(), kMostNamed);
  std::string text = fmt::format(
      "{}", fmt::join(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(shown), ", "));
  if (shown < names.size()) text += fmt::format(" and {} more", names.size() - shown);
  return text;
}

std::string steps_text(const std::vector<Interval>& steps) {
  std::vector<std::string> parts;
  for (const Interval& run : steps) {
    parts.push_back(run.length() == 1 ? fmt::format("{}", run.begin)
                                      : fmt::format("{}..{}", run.begin, run.end - 1));
  }
  const bool is_one = steps.size() == 1 && steps[0].length() == 1;
  return fmt::format("step{} {}", is_one ? "" : "s", fmt::join(parts, ", "));
}

void diff_goldens(const Json& golden, const Json& now, const Report& report,
                  GoldenComparison& comparison) {
  for (const auto& [key, section] : now.items()) {
    if (is_golden_number_key(key) || key == "golden") continue;
    comparison.compared += count_leaves(section);
    if (member(golden, key) == section) continue;
    const Unordered before = unordered(member(golden, key));
    const Unordered after = unordered(section);
    if (before == after) continue;
    const bool is_empty = !member(golden, key).is_structured() || member(golden, key).empty();
    if (is_empty && section.is_structured() && !section.empty()) {
      comparison.differences.push_back(
          {.section = key, .message = fmt::format("{}: the golden lists none", key)});
      continue;
    }
    std::vector<GoldenDifference> differences =
        diff_section(key, member(golden, key), section, now["mesh"]["mesh_dim_names"]);
    // Fewer or more steps are told by "steps".
    const bool is_told = key == "collectives" && member(golden, "steps") != now["steps"];
    if (differences.empty() && !is_told) {
      differences.push_back(
          {.section = key, .message = fmt::format("{}{}", key, first_change(before, after))});
    }
    comparison.differences.insert(comparison.differences.end(), differences.begin(),
                                  differences.end());
  }
  diff_golden_numbers(golden, now, report, comparison);
  for (const auto& [key, section] : golden.items()) {
    if (now.contains(key) || (is_golden_number_key(key) && report.losses.empty())) continue;
    comparison.differences.push_back(
        {.section = key,
         .message = fmt::format("{}: the golden has it, a golden of this run has not", key)});
  }
}

}  // namespace hpsim
