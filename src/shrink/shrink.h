#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "scenario/scenario.h"

namespace hpsim {

/// What the search asks for.
struct ShrinkHooks {
  /// Whether the scenario still fails as the first one did: runs it.
  std::function<bool(const Scenario&)> fails_alike;
  /// Whether there is time for one more run; asked before each.
  std::function<bool()> has_time;
  /// Before every run: how many there were, how many of them made the scenario smaller.
  std::function<void(std::int64_t runs, std::int64_t smaller)> on_run;
};

struct ShrinkResult {
  std::string text;                 ///< of the smallest scenario found, JSON on one line
  std::vector<std::string> change;  ///< what made it smaller, in order: "/mesh/shape/1: 4 -> 2"
  std::int64_t runs = 0;
  bool is_minimal = false;  ///< no reduction leaves it failing; false: time was up
};

/// Makes a failing scenario as small as the reductions allow (reduction_kinds), one after the other
/// in their order, until none leaves it failing alike. What the reader refuses of a reduced
/// scenario is left out too (leave_out_refused); what it refuses then is not tried. No text is
/// tried twice. The same scenario and the same answers give the same result.
/// \pre `scenario` is the JSON of a valid scenario that fails; `file` stands in what is read of it
[[nodiscard]] ShrinkResult shrink(const nlohmann::ordered_json& scenario, const std::string& file,
                                  const ShrinkHooks& hooks);

}  // namespace hpsim
