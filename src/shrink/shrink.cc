#include "shrink/shrink.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_set>
#include <utility>

#include "base/error.h"
#include "scenario/parse.h"
#include "shrink/reductions.h"
#include "shrink/repair.h"

namespace hpsim {
namespace {

using Json = nlohmann::ordered_json;

class Search {
 public:
  Search(Json scenario, std::string file, const ShrinkHooks& hooks)
      : current_(std::move(scenario)), file_(std::move(file)), hooks_(hooks) {
    seen_.insert(current_.dump());
  }

  ShrinkResult run() {
    bool is_smaller = true;
    while (is_smaller && !is_out_of_time_) {
      is_smaller = false;
      for (const ReductionKind& kind : reduction_kinds())
        is_smaller |= reduce(kind);
    }
    result_.is_minimal = !is_out_of_time_;
    result_.text = current_.dump();
    return std::move(result_);
  }

 private:
  /// Tries reductions of the kind until none helps; whether one did.
  bool reduce(const ReductionKind& kind) {
    bool is_smaller = false;
    bool goes_on = true;
    while (goes_on && !is_out_of_time_) {
      goes_on = false;
      std::vector<Reduction> reductions = kind.of(current_);
      for (std::size_t i = 0; i < reductions.size() && !is_out_of_time_; ++i) {
        if (!try_out(reductions[i])) continue;
        goes_on = true;
        reductions = kind.of(current_);  // goes on from here: what did not help before seldom does
      }
      is_smaller |= goes_on;
    }
    return is_smaller;
  }

  bool try_out(const Reduction& reduction) {
    Json candidate = current_;
    reduction.apply(candidate);
    const std::optional<Scenario> scenario = read_repaired(candidate);
    if (!scenario) return false;
    if (!hooks_.has_time()) {
      is_out_of_time_ = true;
      return false;
    }
    hooks_.on_run(result_.runs, static_cast<std::int64_t>(result_.change.size()));
    ++result_.runs;
    if (!hooks_.fails_alike(*scenario)) return false;
    current_ = std::move(candidate);
    result_.change.push_back(reduction.what);
    return true;
  }

  /// The candidate as a scenario; nothing if it cannot be one, or was tried before.
  std::optional<Scenario> read_repaired(Json& candidate) {
    constexpr int kMostRepairs = 8;
    for (int i = 0; i <= kMostRepairs; ++i) {
      std::string text = candidate.dump();
      if (!seen_.insert(text).second) return std::nullopt;
      try {
        return parse_scenario(text, file_);
      } catch (const Error& error) {
        if (!leave_out_refused(candidate, error.diagnostics())) return std::nullopt;
      }
    }
    return std::nullopt;
  }

  Json current_;
  std::string file_;
  const ShrinkHooks& hooks_;
  std::unordered_set<std::string> seen_;
  ShrinkResult result_;
  bool is_out_of_time_ = false;
};

}  // namespace

ShrinkResult shrink(const Json& scenario, const std::string& file, const ShrinkHooks& hooks) {
  return Search(scenario, file, hooks).run();
}

}  // namespace hpsim
