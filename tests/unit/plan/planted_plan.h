#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "plan/build_plan.h"
#include "plan/verify_plan.h"
#include "support/catch.h"
#include "support/scenarios.h"

namespace hpsim::test {

using Texts = std::vector<std::string>;
using Codes = std::vector<FindingCode>;

/// Kinds of the steps of one pass, or of what follows the passes (micro_batch -1).
inline Texts kinds_of_pass(const Plan& plan, std::int64_t micro_batch, std::int64_t step = 0) {
  Texts kinds;
  for (const Step& each : plan.steps) {
    const bool is_update = each.phase == Phase::Optimizer;
    if (each.step != step || is_update != (micro_batch < 0)) continue;
    if (is_update || each.micro_batch == micro_batch) kinds.emplace_back(name_of(each.kind));
  }
  return kinds;
}

inline std::int64_t count_kind(const Plan& plan, StepKind kind) {
  return std::count_if(plan.steps.begin(), plan.steps.end(),
                       [&](const Step& step) { return step.kind == kind; });
}

/// "all_gather(fsdp) bfloat16 16->64" of every collective of a kind of step, in order.
inline Texts collectives_of(const Plan& plan, StepKind kind) {
  Texts texts;
  for (const Step& step : plan.steps) {
    if (step.kind != kind || !step.collective) continue;
    const CollectiveSpec& spec = *step.collective;
    texts.push_back(fmt::format("{}({}) {} {}->{}", name_of(spec.op), plan.mesh().names(spec.dims),
                                name_of(spec.dtype), to_string(plan.mesh(), spec.elems_in),
                                to_string(plan.mesh(), spec.elems_out)));
  }
  return texts;
}

/// `micro_batches` passes of one sample per data rank.
inline Scenario in_micro_batches(Scenario scenario, std::int64_t micro_batches) {
  scenario.training.micro_batches = micro_batches;
  scenario.training.global_batch = micro_batches * scenario.num_data_ranks();
  return scenario;
}

/// The `number`-th step of a kind, from 0.
inline std::ptrdiff_t find_step(const Plan& plan, StepKind kind, std::int64_t number = 0) {
  for (std::size_t i = 0; i < plan.steps.size(); ++i) {
    if (plan.steps[i].kind == kind && number-- == 0) return static_cast<std::ptrdiff_t>(i);
  }
  FAIL("no such " << name_of(kind));
  return 0;
}

inline Step& step_of(Plan& plan, StepKind kind, std::int64_t number = 0) {
  return plan.steps[static_cast<std::size_t>(find_step(plan, kind, number))];
}
inline void drop(Plan& plan, StepKind kind, std::int64_t number = 0) {
  plan.steps.erase(plan.steps.begin() + find_step(plan, kind, number));
}
inline void repeat(Plan& plan, StepKind kind, std::int64_t number = 0) {
  const std::ptrdiff_t at = find_step(plan, kind, number);
  const Step copy = plan.steps[static_cast<std::size_t>(at)];
  plan.steps.insert(plan.steps.begin() + at, copy);
}

/// The codes that `plant` causes in a plan that was right before, each once, ascending.
inline Codes codes_after(const Scenario& scenario, const std::function<void(Plan&)>& plant) {
  Plan plan = build_plan(scenario);
  CHECK_NOTHROW(verify_plan(plan));
  plant(plan);
  Codes codes;
  try {
    (void)verify_plan(std::move(plan));
  } catch (const PlanRejected& rejected) {
    for (const Finding& finding : rejected.findings()) {
      UNSCOPED_INFO(finding.message);
      codes.push_back(finding.code);
    }
  }
  std::sort(codes.begin(), codes.end());
  codes.erase(std::unique(codes.begin(), codes.end()), codes.end());
  return codes;
}

inline bool has(const Codes& codes, FindingCode code) {
  return std::find(codes.begin(), codes.end(), code) != codes.end();
}

}  // namespace hpsim::test
