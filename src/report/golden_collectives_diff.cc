#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "base/units.h"
#include "report/golden_diff.h"
#include "report/json_parts.h"
#include "report/text_parts.h"

namespace hpsim {
namespace {

constexpr std::array<const char*, 3> kPhases = {"forward", "backward", "optimizer"};

/// A run of optimizer steps that do the same.
struct StepRun {
  Interval steps;
  const Json* collectives = nullptr;
};

std::vector<StepRun> step_runs(const Json& section) {
  std::vector<StepRun> runs;
  if (!section.is_array()) return runs;
  for (const Json& run : section) {
    const Json& first = member(run, "first_step");
    const Json& last = member(run, "last_step");
    if (!first.is_number_integer() || !last.is_number_integer()) continue;
    runs.push_back({{first.get<std::int64_t>(), last.get<std::int64_t>() + 1}, &run});
  }
  return runs;
}

/// What a collective is for: a unit, or an activation.
struct Subject {
  std::string name;
  bool is_activation = false;
  bool operator==(const Subject&) const = default;

  [[nodiscard]] std::string text() const { return is_activation ? name : "unit " + name; }
};

/// "unit l3", "units l1, l2, l3", "units l1, l2, l3 and 9 more", "units l1, l2; output of "l2"";
/// each once, in order.
std::string subjects_text(const std::vector<Subject>& all) {
  std::vector<std::string> parts;
  for (const bool is_activation : {false, true}) {
    std::vector<std::string> names;
    for (const Subject& subject : all) {
      const bool is_new = std::find(names.begin(), names.end(), subject.name) == names.end();
      if (subject.is_activation == is_activation && is_new) names.push_back(subject.name);
    }
    if (names.empty()) continue;
    const char* kind = is_activation ? "" : names.size() == 1 ? "unit " : "units ";
    parts.push_back(kind + first_names(names));
  }
  return fmt::format("{}", fmt::join(parts, "; "));
}

/// One collective, and the key by which it is found again: op, unit, activation, whether it is
/// recomputed, params, and which of those that are alike it is.
struct Entry {
  const Json* json = nullptr;
  std::string key;
  [[nodiscard]] std::string op() const { return brief(member(*json, "op")); }
  [[nodiscard]] Subject subject() const {
    const Json& activation = member(*json, "activation");
    if (activation.is_null()) return {brief(member(*json, "unit")), false};
    const bool is_recomputed = !member(*json, "recomputed").is_null();
    return {brief(activation) + (is_recomputed ? ", recomputed" : ""), true};
  }
  [[nodiscard]] std::string over() const { return over_text(member(*json, "mesh_dims")); }
};

std::vector<Entry> entries_of(const Json& list) {
  std::vector<Entry> entries;
  std::map<std::string, int> seen;
  if (!list.is_array()) return entries;
  for (const Json& json : list) {
    const std::string name =
        Json({member(json, "op"), member(json, "unit"), member(json, "activation"),
              member(json, "recomputed"), member(json, "params")})
            .dump(-1, ' ', false, Json::error_handler_t::replace);
    entries.push_back({&json, fmt::format("{} {}", name, seen[name]++)});
  }
  return entries;
}

/// Compares the collectives of one phase of steps that do the same.
class PhaseDiff {
 public:
  PhaseDiff(const Json& golden, const Json& now)
      : golden_(entries_of(golden)), now_(entries_of(now)) {
    pair_leftovers();
    for (const Entry& entry : golden_)
      golden_by_key_[entry.key] = &entry;
    for (const Entry& entry : now_)
      now_by_key_[entry.key] = &entry;
  }

  std::vector<std::string> messages() {
    compare_counts();
    compare_attributes();
    if (messages_.empty()) compare_order();
    return std::move(messages_);
  }

 private:
  struct Count {
    std::string op;
    std::string over;
    std::int64_t before = 0;
    std::int64_t after = 0;
    std::vector<Subject> added;
    std::vector<Subject> gone;
  };

  /// What carries other parameters of a unit is the same collective with other parameters, if there
  /// is no better match.
  void pair_leftovers() {
    std::set<std::string> golden_keys;
    std::set<std::string> now_keys;
    for (const Entry& entry : golden_)
      golden_keys.insert(entry.key);
    for (const Entry& entry : now_)
      now_keys.insert(entry.key);
    std::map<std::string, std::vector<Entry*>> leftovers;
    for (Entry& entry : golden_) {
      if (now_keys.count(entry.key) == 0)
        leftovers[entry.op() + " " + entry.subject().text()].push_back(&entry);
    }
    for (const Entry& entry : now_) {
      if (golden_keys.count(entry.key) != 0) continue;
      std::vector<Entry*>& others = leftovers[entry.op() + " " + entry.subject().text()];
      if (others.empty()) continue;
      others.front()->key = entry.key;
      others.erase(others.begin());
    }
  }

  Count& count_of(const Entry& entry) {
    for (Count& count : counts_) {
      if (count.op == entry.op() && count.over == entry.over()) return count;
    }
    counts_.push_back({.op = entry.op(), .over = entry.over()});
    return counts_.back();
  }

  void compare_counts() {
    for (const Entry& entry : golden_) {
      Count& count = count_of(entry);
      ++count.before;
      if (now_by_key_.count(entry.key) == 0) count.gone.push_back(entry.subject());
    }
    for (const Entry& entry : now_) {
      Count& count = count_of(entry);
      ++count.after;
      if (golden_by_key_.count(entry.key) == 0) count.added.push_back(entry.subject());
    }
    for (const Count& count : counts_) {
      std::vector<std::string> what;
      if (!count.added.empty()) what.push_back(subjects_text(count.added) + " added");
      if (!count.gone.empty()) what.push_back(subjects_text(count.gone) + " gone");
      if (what.empty()) continue;
      messages_.push_back(fmt::format("{} {} → {} over {} ({})", count.op, count.before,
                                      count.after, count.over, fmt::join(what, ", ")));
    }
  }

  /// One attribute that changed about collectives of one op over the same mesh dims.
  struct Change {
    std::string op;
    std::string over;
    std::string attribute;
    std::vector<const Json*> before;
    std::vector<const Json*> after;
    std::vector<Subject> subjects;
  };

  void note_change(const Entry& entry, const std::string& attribute, const Json& before,
                   const Json& after) {
    // Where the mesh dims themselves change, they stand on the right of "over" only.
    const std::string over = attribute == "mesh_dims" ? "" : entry.over();
    auto change = std::find_if(changes_.begin(), changes_.end(), [&](const Change& other) {
      return other.op == entry.op() && other.over == over && other.attribute == attribute;
    });
    if (change == changes_.end()) {
      change = changes_.insert(change, {.op = entry.op(), .over = over, .attribute = attribute});
    }
    change->before.push_back(&before);
    change->after.push_back(&after);
    change->subjects.push_back(entry.subject());
  }

  void compare_attributes() {
    for (const Entry& entry : now_) {
      const auto found = golden_by_key_.find(entry.key);
      if (found == golden_by_key_.end()) continue;
      const Json& before = *found->second->json;
      const Json& after = *entry.json;
      std::set<std::string> keys;
      for (const Json* json : {&before, &after}) {
        for (const auto& item : json->items())
          keys.insert(item.key());
      }
      static const Json kOne = 1;  // a factor that is left out
      const bool has_other_bytes = member(before, "bytes") != member(after, "bytes");
      const bool has_other_dtype = member(before, "dtype") != member(after, "dtype");
      for (const std::string& key : keys) {
        if (member(before, key) == member(after, key)) continue;
        if (key == "elements" && has_other_bytes && !has_other_dtype) continue;  // says the same
        const bool is_factor = key == "prescale" || key == "scale";
        const auto value = [&](const Json& json) -> const Json& {
          return is_factor && member(json, key).is_null() ? kOne : member(json, key);
        };
        note_change(entry, key, value(before), value(after));
      }
    }
    for (const Change& change : changes_)
      messages_.push_back(change_text(change));
  }

  static bool are_all_equal(const std::vector<const Json*>& values) {
    return std::all_of(values.begin(), values.end(),
                       [&](const Json* value) { return *value == *values.front(); });
  }

  static std::string change_text(const Change& change) {
    const std::string subjects = subjects_text(change.subjects);
    std::string from = brief(*change.before.front());
    std::string to = brief(*change.after.front());
    if (change.attribute == "mesh_dims") {
      from = over_text(*change.before.front());
      to = over_text(*change.after.front());
    }
    if (!are_all_equal(change.before) || !are_all_equal(change.after)) {
      to += fmt::format(" for {}, other values for the others", change.subjects.front().text());
    }
    if (change.attribute == "mesh_dims") {
      return fmt::format("{} over {} → {} ({})", change.op, from, to, subjects);
    }
    const bool in_and_out = change.attribute == "bytes" || change.attribute == "elements";
    return fmt::format("{} over {}: {} {}{} → {} ({})", change.op, change.over, change.attribute,
                       in_and_out ? "in and out " : "", from, to, subjects);
  }

  void compare_order() {
    for (std::size_t i = 0; i < now_.size() && i < golden_.size(); ++i) {
      if (golden_[i].key == now_[i].key) continue;
      messages_.push_back(fmt::format(
          "the same collectives in another order: number {} is {} of {}, golden "
          "{} of {}",
          i, now_[i].op(), now_[i].subject().text(), golden_[i].op(), golden_[i].subject().text()));
      return;
    }
  }

  std::vector<Entry> golden_;
  std::vector<Entry> now_;
  std::map<std::string, const Entry*> golden_by_key_;
  std::map<std::string, const Entry*> now_by_key_;
  std::vector<Count> counts_;
  std::vector<Change> changes_;
  std::vector<std::string> messages_;
};

/// Totals that are not what the collectives of the golden add up to.
std::vector<std::string> total_messages(const Json& golden, const Json& now) {
  std::vector<std::string> messages;
  for (std::size_t i = 0; i < now.size(); ++i) {
    static const Json kNone;
    const Json& before = golden.is_array() && i < golden.size() ? golden[i] : kNone;
    for (const auto& [key, value] : now[i].items()) {
      if (member(before, key) == value) continue;
      messages.push_back(fmt::format("totals of {} {} over {}: {} {} → {}", brief(now[i]["phase"]),
                                     brief(now[i]["op"]), over_text(now[i]["mesh_dims"]), key,
                                     brief(member(before, key)), brief(value)));
    }
  }
  return messages;
}

std::vector<std::string> messages_of(const Json& golden, const Json& now) {
  std::vector<std::string> messages;
  for (const char* phase : kPhases) {
    for (const std::string& message : PhaseDiff(member(golden, phase), now[phase]).messages())
      messages.push_back(fmt::format("{}: {}", phase, message));
  }
  if (messages.empty()) return total_messages(member(golden, "totals"), now["totals"]);
  return messages;
}

}  // namespace

std::vector<GoldenDifference> diff_collectives(const Json& golden, const Json& now) {
  const std::vector<StepRun> before = step_runs(golden);
  const std::vector<StepRun> after = step_runs(now);
  std::vector<std::pair<std::string, std::vector<Interval>>> found;  ///< message, steps
  std::int64_t num_steps = 0;
  for (const StepRun& run : after) {
    num_steps = run.steps.end;
    for (const StepRun& other : before) {
      const Interval steps{std::max(run.steps.begin, other.steps.begin),
                           std::min(run.steps.end, other.steps.end)};
      if (steps.begin >= steps.end) continue;
      for (const std::string& message : messages_of(*other.collectives, *run.collectives)) {
        auto entry = std::find_if(found.begin(), found.end(),
                                  [&](const auto& item) { return item.first == message; });
        if (entry == found.end()) entry = found.insert(entry, {message, {}});
        std::vector<Interval>& all = entry->second;
        if (!all.empty() && all.back().end == steps.begin) {
          all.back().end = steps.end;
        } else {
          all.push_back(steps);
        }
      }
    }
  }
  std::vector<GoldenDifference> differences;
  for (const auto& [message, steps] : found) {
    const bool in_all = steps.size() == 1 && steps[0] == Interval{0, num_steps};
    GoldenDifference difference{
        .section = "collectives",
        .message = in_all ? message : fmt::format("{}, {}", steps_text(steps), message)};
    if (steps.size() == 1 && steps[0].length() == 1) difference.step = steps[0].begin;
    differences.push_back(std::move(difference));
  }
  return differences;
}

}  // namespace hpsim
