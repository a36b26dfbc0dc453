#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "plan/plan.h"
#include "report/text.h"
#include "trace/memory_profile.h"

namespace hpsim {

/// A plan, and what verify_plan says of it. A rejected plan is there to be looked at.
struct PlanReport {
  Plan plan;
  bool passed = false;
  std::vector<CheckResult> checks;
  std::vector<Finding> findings;  ///< errors, then warnings
  std::vector<LeftOut> left_out;  ///< see Report
  /// As all steps need it; no events where the plan is rejected, or its ranks are of too many
  /// kinds.
  MemoryProfile memory;
};

[[nodiscard]] PlanReport make_plan_report(Plan plan);

/// An optimizer step that does other work than the first.
struct StepDifference {
  std::int64_t step = 0;
  std::int64_t position = 0;  ///< of the first difference, among the steps of an optimizer step
};

/// Which optimizer steps differ from the first one; none in most plans.
[[nodiscard]] std::vector<StepDifference> step_differences(const Plan& plan);

/// Which optimizer steps to show.
struct PlanView {
  std::optional<std::int64_t> step;  ///< none: all if `full`, else the first
  bool full = false;  ///< long lists are not folded, ranks are listed whatever their number
};

/// Header, a line per step with a number for its rule, the rules with the layouts they lead from
/// and to, where the most memory is needed, what verify_plan checked, findings. Lines have at most
/// 100 columns where names and numbers allow.
///
///    #  step            of      over    groups  elements  bytes        scale  why
///    backward
///    6  reshard         (root)                                                3
///    7  reduce_scatter  (root)  fsdp 4       1  64 -> 16  256 -> 64 B  1/4    6
///
/// Blocks of steps that repeat unit after unit are folded, unless `full`.
[[nodiscard]] std::string plan_text(const PlanReport& report, const PlanView& view, bool color);

/// {"plan": 1, "scenario", "verdict", "checks", "findings", "optimizer_steps", "memory", "steps"};
/// see json.h for when ranks are listed. `memory`: init and peak as in the report of a run, over
/// all optimizer steps; null where PlanReport::memory has no events.
[[nodiscard]] nlohmann::ordered_json plan_json(const PlanReport& report, const PlanView& view);

}  // namespace hpsim
