#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/finding.h"

namespace hpsim {

/// How far numbers of the report may be from what `expect` says; all else is compared exactly.
struct ExpectBounds {
  bool has_numbers = true;         ///< false: losses, baseline_losses, grad_norms, digest are not
                                   ///< there to be compared, nor warnings of numbers
  std::vector<double> losses;      ///< per step; also for baseline_losses
  std::vector<double> grad_norms;  ///< per step
};

struct ExpectResult {
  std::optional<CheckResult> check;  ///< none if all that `expect` names has no numbers
  std::vector<Finding> findings;     ///< one per mismatch, EXPECT or VACUOUS_BOUND
  std::vector<std::string> not_compared;
};

/// Compares a report with a scenario's `expect`, a subset of it. Differences of
///
///   report                              expect                             say
///   {"a": 1, "b": 2}                    {"a": 1}                           nothing
///   {"a": 1}                            {"c": 1}                           /expect/c is no key
///   {"a": [1, 2]}                       {"a": [1]}                         2 elements, not 1
///   {"parameters": [{"name": "w",...},  {"parameters": [{"name": "v",      nothing: matched by
///      {"name": "v", "dtype": "x"}]}       "dtype": "x"}]}                 name
///   1 all_gather in step 0, 2 in 1      {"counts": {"all_gather": 1}}      step 1: 2, not 1
///   {"losses": [0.5 + bound]}           {"losses": [0.5]}                  nothing
///   the same, bound above 0.5 / 8       {"losses": [0.5]}                  VACUOUS_BOUND
///
/// `counts` counts collectives of phases forward and backward in every step, `optimizer_counts`
/// those of phase optimizer. `compared` counts leaves; an `expect` that compares none fails.
/// \pre `expect` is a JSON object (the scenario reader checks)
[[nodiscard]] ExpectResult check_expect(const std::string& expect,
                                        const nlohmann::ordered_json& report,
                                        const ExpectBounds& bounds);

}  // namespace hpsim
