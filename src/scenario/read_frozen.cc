#include <fmt/format.h>

#include <algorithm>

#include "scenario/pattern_matcher.h"
#include "scenario/sections.h"
#include "scenario/type_expr.h"

namespace hpsim {
namespace {

class FrozenReader {
 public:
  FrozenReader(const ObjectReader& scenario, const Scenario& result)
      : scenario_(scenario),
        training_(scenario.object("training", "Training")),
        problems_(scenario.problems()),
        result_(result),
        from_(result.parameters.size(), 0) {}

  /// Per parameter the step from which on it is trained; none if all are from the first one on.
  std::vector<std::int64_t> read() {
    const std::int64_t never = result_.training.steps;
    for (const int p : read_parameter_patterns(training_, "frozen", result_.model))
      from_[static_cast<std::size_t>(p)] = never;
    std::size_t next = 0;  // parameters are in file order
    for (const auto& [name, at] : scenario_.members("parameters")) {
      const std::size_t p = next++;
      if (!at.value->is_object()) continue;
      if (ObjectReader(at, "Elementwise", problems_).boolean("frozen") == true) from_[p] = never;
    }
    read_unfreezing();
    check_first_step();
    const bool all = std::all_of(from_.begin(), from_.end(), [](auto step) { return step == 0; });
    return all ? std::vector<std::int64_t>{} : from_;
  }

 private:
  void read_unfreezing() {
    const auto members = training_.members("unfreeze_at");
    if (members.empty()) return;
    const std::vector<std::int64_t> frozen = from_;
    std::vector<const JsonCursor*> where(from_.size());
    PatternMatcher matcher(names_of(result_.parameters), "parameter", problems_);
    for (const auto& [pattern, at] : members) {
      const std::vector<int> matched = matcher.matches_of(pattern, at);
      if (problems_.is_bad(*at.value)) continue;
      const std::int64_t step = as_int64(*at.value).value_or(0);
      if (!check_step(at, step)) continue;
      for (const int p : matched) {
        const auto index = static_cast<std::size_t>(p);
        const std::string name = in_quotes(result_.parameters[index].name);
        if (frozen[index] == 0 && is_sound("frozen")) {
          problems_.add_at_key(at,
                               fmt::format("{} is not frozen, and has a gradient already", name),
                               "list it in \"frozen\" too, or take it out of \"unfreeze_at\"");
          break;
        }
        if (where[index] != nullptr && from_[index] != step) {
          problems_.add(at,
                        fmt::format("{} is unfrozen at step {} here, but at step {} by {}", name,
                                    step, from_[index], where[index]->pointer),
                        "keep one of the two");
          break;
        }
        where[index] = &at;
        from_[index] = step;
      }
    }
  }

  /// Whether nothing is wrong with the patterns at a key: what follows from them may be told.
  [[nodiscard]] bool is_sound(std::string_view key) const {
    const auto is_bad = [&](const Json& value) { return problems_.is_bad(value); };
    const Json& value = *training_.where(key).value;
    return !training_.has(key) ||
           (!is_bad(value) && std::none_of(value.begin(), value.end(), is_bad));
  }

  bool check_step(const JsonCursor& at, std::int64_t step) {
    const std::int64_t num_steps = result_.training.steps;
    if (step < num_steps || training_.is_bad("steps")) return true;
    problems_.add(
        at, fmt::format("optimizer step {} is outside 0..{}", step, num_steps - 1),
        fmt::format("steps are counted from 0, and \"training\" has {} of them; what is never "
                    "unfrozen is in \"frozen\" alone",
                    num_steps));
    return false;
  }

  /// Unfreezing adds parameters: if one is trained in the first step, one is in every step.
  void check_first_step() {
    if (!is_sound("frozen") || !is_sound("unfreeze_at") || training_.is_bad("steps")) return;
    if (from_.empty() || std::count(from_.begin(), from_.end(), 0) > 0) return;
    const std::int64_t first = *std::min_element(from_.begin(), from_.end());
    const std::string until = first < result_.training.steps
                                  ? fmt::format("the first is unfrozen at step {}", first)
                                  : std::string("all are frozen");
    problems_.add(
        training_.has("frozen") ? training_.where("frozen") : scenario_.where("parameters"),
        fmt::format("no parameter is trained in optimizer step 0, {}: backward has "
                    "nothing to do; PyTorch refuses it too",
                    until),
        "leave one parameter out of what is frozen");
  }

  const ObjectReader& scenario_;
  ObjectReader training_;
  Problems& problems_;
  const Scenario& result_;
  std::vector<std::int64_t> from_;
};

}  // namespace

std::vector<std::int64_t> read_trained_from(const ObjectReader& scenario, const Scenario& result) {
  return FrozenReader(scenario, result).read();
}

}  // namespace hpsim
