#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <unordered_map>

#include "report/golden_diff.h"
#include "report/json_parts.h"
#include "report/text_parts.h"

namespace hpsim {
namespace {

/// What one rank, or one shard, holds: boxes as {"offset", "shape"}.
using Boxes = std::vector<const Json*>;

/// By rank; `shard` numbers where the golden speaks of shards.
std::map<std::int64_t, Boxes> boxes_by_label(const Json& shards, const std::string& label) {
  std::map<std::int64_t, Boxes> boxes;
  if (!shards.is_array()) return boxes;
  for (const Json& shard : shards) {
    const Json& number = member(shard, label);
    if (number.is_number_integer()) boxes[number.get<std::int64_t>()].push_back(&shard);
  }
  return boxes;
}

bool are_equal(const Boxes& a, const Boxes& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const Json* x, const Json* y) { return *x == *y; });
}

std::string box_text(const Json& box) {
  return fmt::format("{} from {}", brief(member(box, "shape")), brief(member(box, "offset")));
}

std::string boxes_text(const Boxes& boxes) {
  if (boxes.empty()) return "nothing";
  std::vector<std::string> parts;
  for (const Json* box : boxes)
    parts.push_back(box_text(*box));
  return fmt::format("{}", fmt::join(parts, " and "));
}

/// Offset and shape of one box, if they are lists of integers of one length.
struct Rows {
  Interval interval;
  Json rest;  ///< offsets and lengths of the other dims
};

std::optional<Rows> rows_of(const Boxes& boxes) {
  if (boxes.size() != 1) return {};
  const Json& offset = member(*boxes[0], "offset");
  const Json& shape = member(*boxes[0], "shape");
  const auto are_integers = [](const Json& list) {
    return list.is_array() && !list.empty() &&
           std::all_of(list.begin(), list.end(),
                       [](const Json& item) { return item.is_number_integer(); });
  };
  if (!are_integers(offset) || !are_integers(shape) || offset.size() != shape.size()) return {};
  Rows rows;
  rows.interval.begin = offset[0].get<std::int64_t>();
  rows.interval.end = rows.interval.begin + shape[0].get<std::int64_t>();
  for (std::size_t dim = 1; dim < shape.size(); ++dim)
    rows.rest.push_back({offset[dim], shape[dim]});
  return rows;
}

std::string interval_text(const Interval& rows) {
  return fmt::format("[{}, {})", rows.begin, rows.end);
}

/// What comes after "rank 3": "holds 0 rows, golden 1".
std::string holding_text(const Boxes& golden, const Boxes& now, bool is_plural) {
  const char* holds = is_plural ? "hold" : "holds";
  const std::optional<Rows> before = rows_of(golden);
  const std::optional<Rows> after = rows_of(now);
  if (!before || !after || before->rest != after->rest) {
    return fmt::format("{} {}, golden {}", holds, boxes_text(now), boxes_text(golden));
  }
  const std::int64_t length = after->interval.length();
  if (after->interval.begin == before->interval.begin || length == 0 || before->interval.empty()) {
    if (length != before->interval.length()) {
      return fmt::format("{} {}, golden {}", holds, counted(length, "row"),
                         before->interval.length());
    }
    return fmt::format("{} no row at {}, golden at {}", holds, after->interval.begin,
                       before->interval.begin);
  }
  return fmt::format("{} rows {}, golden {}", holds, interval_text(after->interval),
                     interval_text(before->interval));
}

/// "0, 124..127"
std::string labels_text(const std::map<std::int64_t, Boxes>& boxes) {
  std::vector<Rank> labels;
  for (const auto& [label, unused] : boxes)
    labels.push_back({label});
  const std::string text = ranks_text(labels, static_cast<std::int64_t>(labels.size()));
  return text.substr(text.find(' ') + 1);
}

class ParameterDiff {
 public:
  ParameterDiff(const Json& golden, const Json& now, const Json& mesh_dim_names)
      : golden_(golden), now_(now), names_(mesh_dim_names) {}

  std::vector<std::string> claims() {
    compare_value("global_shape", "shape");
    const bool has_other_shape = member(golden_, "global_shape") != now_["global_shape"];
    compare_value("dtype", "dtype");
    compare_placements("sharded", "");
    compare_placements("unsharded", " in compute");
    compare_group("sharded_group", "sharded group");
    compare_group("unsharded_group", "unsharded group");
    compare_group("partial_group", "partial group");
    if (!has_other_shape) {  // otherwise all shards differ
      compare_value("padded_shape", "padded shape");
      compare_shards();
    }
    return std::move(claims_);
  }

 private:
  void add(std::string claim) { claims_.push_back(std::move(claim)); }

  void compare_value(const char* key, const char* words) {
    const Json& before = member(golden_, key);
    if (before == now_[key]) return;
    add(fmt::format("{} {} → {}", words, brief(before), brief(now_[key])));
  }

  void compare_placements(const char* key, const char* where) {
    const Json& before = member(member(golden_, "placements"), key);
    const Json& after = now_["placements"][key];
    if (before == after) return;
    std::size_t num_changes = 0;
    std::size_t changed = 0;
    const bool is_alike = before.is_array() && before.size() == after.size();
    for (std::size_t dim = 0; is_alike && dim < after.size(); ++dim) {
      if (before[dim] == after[dim]) continue;
      ++num_changes;
      changed = dim;
    }
    if (num_changes == 1) {
      add(fmt::format("over {}{}: {} → {}", brief(names_.at(changed)), where,
                      brief(before[changed]), brief(after[changed])));
    } else {
      add(fmt::format("placements{}: {} → {}", where, brief(before), brief(after)));
    }
  }

  void compare_group(const char* key, const char* words) {
    const Json& before = member(golden_, key);
    if (before == now_[key]) return;
    add(fmt::format("{} over {} {} → {} {}", words, over_text(member(before, "mesh_dims")),
                    brief(member(before, "size")), over_text(now_[key]["mesh_dims"]),
                    brief(now_[key]["size"])));
  }

  void compare_shards() {
    const Json& after = now_["shards"];
    const std::string label = !after.empty() && after[0].contains("shard") ? "shard" : "rank";
    const auto golden = boxes_by_label(member(golden_, "shards"), label);
    const auto now = boxes_by_label(after, label);
    // Ranks in which the same has changed are told together.
    struct Change {
      std::vector<Rank> ranks;
      const Boxes* golden;
      const Boxes* now;
    };
    std::vector<std::pair<std::string, Change>> changes;
    static const Boxes kNothing;
    std::map<std::int64_t, Boxes> all = golden;
    all.insert(now.begin(), now.end());
    // Folded lists name the shards at which sizes change: one that is not listed is there all the
    // same.
    const bool is_folded = label == "shard" || golden.empty();
    if (is_folded && (golden.size() != all.size() || now.size() != all.size())) {
      add(fmt::format("sizes change at {}s {}, golden {}", label, labels_text(now),
                      golden.empty() ? "lists others" : labels_text(golden)));
    }
    for (const auto& [rank, boxes] : all) {
      const Boxes& held_before = golden.count(rank) != 0 ? golden.at(rank) : kNothing;
      const Boxes& held_now = now.count(rank) != 0 ? now.at(rank) : kNothing;
      if (are_equal(held_before, held_now)) continue;
      if (is_folded && (held_before.empty() || held_now.empty())) continue;
      const std::string text = holding_text(held_before, held_now, false);
      auto change = std::find_if(changes.begin(), changes.end(),
                                 [&text](const auto& other) { return other.first == text; });
      if (change == changes.end())
        change = changes.insert(change, {text, {{}, &held_before, &held_now}});
      change->second.ranks.push_back({rank});
    }
    for (const auto& [text, change] : changes) {
      const auto count = static_cast<std::int64_t>(change.ranks.size());
      std::string who = ranks_text(change.ranks, count);
      if (label == "shard") who.replace(0, 4, "shard");
      add(fmt::format("{} {}", who, holding_text(*change.golden, *change.now, count > 1)));
    }
  }

  const Json& golden_;
  const Json& now_;
  const Json& names_;  ///< of the mesh dims, of the run
  std::vector<std::string> claims_;
};

std::string name_of(const Json& parameter) {
  const Json& name = member(parameter, "name");
  return name.is_string() ? name.get<std::string>() : brief(name);
}

std::unordered_map<std::string, const Json*> by_name(const Json& parameters) {
  std::unordered_map<std::string, const Json*> named;
  if (!parameters.is_array()) return named;
  for (const Json& parameter : parameters)
    named.emplace(name_of(parameter), &parameter);
  return named;
}

/// What is so about one parameter.
struct Claim {
  std::string param;
  std::string text;
};

/// What is so about several parameters is told once, where it is first so.
std::vector<GoldenDifference> told(const std::vector<Claim>& claims) {
  std::vector<std::string> texts;
  std::unordered_map<std::string, std::vector<std::string>> params;
  for (const Claim& claim : claims) {
    std::vector<std::string>& names = params[claim.text];
    if (names.empty()) texts.push_back(claim.text);
    names.push_back(claim.param);
  }
  std::vector<GoldenDifference> differences;
  for (const std::string& text : texts) {
    const std::vector<std::string>& names = params[text];
    differences.push_back({.section = "parameters",
                           .param = names.size() == 1 ? names.front() : std::string(),
                           .message = fmt::format("{}: {}", first_names(names), text)});
  }
  return differences;
}

}  // namespace

std::vector<GoldenDifference> diff_parameters(const Json& golden, const Json& now,
                                              const Json& mesh_dim_names) {
  std::vector<Claim> claims;
  const auto before = by_name(golden);
  const auto after = by_name(now);
  const auto add_missing = [&claims](const Json& parameters, const auto& others, const char* what) {
    if (!parameters.is_array()) return;
    for (const Json& parameter : parameters) {
      if (others.count(name_of(parameter)) == 0) claims.push_back({name_of(parameter), what});
    }
  };
  add_missing(now, before, "new, the golden has no such parameter");
  add_missing(golden, after, "gone, the golden has it");
  for (const Json& parameter : now) {
    const auto found = before.find(name_of(parameter));
    if (found == before.end() || *found->second == parameter) continue;
    for (std::string& text : ParameterDiff(*found->second, parameter, mesh_dim_names).claims())
      claims.push_back({name_of(parameter), std::move(text)});
  }
  std::vector<GoldenDifference> differences = told(claims);
  const bool may_be_reordered = differences.empty() && golden.is_array() &&
                                before.size() == golden.size() && golden.size() == now.size();
  for (std::size_t i = 0; may_be_reordered && i < now.size(); ++i) {
    if (name_of(golden[i]) == name_of(now[i])) continue;
    differences.push_back(
        {.section = "parameters",
         .message = fmt::format("parameters in another order: number {} is {}, golden {}", i,
                                name_of(now[i]), name_of(golden[i]))});
    break;
  }
  return differences;
}

}  // namespace hpsim
