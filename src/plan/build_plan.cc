#include "plan/build_plan.h"

#include <array>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "plan/passes/passes.h"

namespace hpsim {
namespace {

struct Pass {
  std::string_view name;
  Plan (*run)(Plan);
  bool (*holds_after)(const Plan&);
  bool (*is_needed)(const Plan&) = nullptr;  ///< null: always
};

constexpr std::array<Pass, 6> kPasses = {{
    {"lay_out_activations", lay_out_activations, has_activations},
    {"lay_out_parameters", lay_out_parameters, has_parameters},
    {"form_buckets", form_buckets, has_buckets},
    {"schedule_compute", schedule_compute, has_compute},
    {"insert_reductions", insert_reductions, has_reductions},
    {"insert_weight_sync", insert_weight_sync, has_weight_sync, needs_weight_sync},
}};

}  // namespace

Plan build_plan(Scenario scenario) {
  Plan plan;
  plan.scenario = std::move(scenario);
  for (const Pass& pass : kPasses) {
    if (pass.is_needed != nullptr && !pass.is_needed(plan)) continue;
    // What a pass establishes must not hold before it, or the check after it could not fail.
    HPSIM_CHECK(!pass.holds_after(plan) || plan.scenario.parameters.empty(),
                "pass {} has nothing to do", pass.name);
    plan = pass.run(std::move(plan));
    HPSIM_CHECK(pass.holds_after(plan), "pass {} did not do its work", pass.name);
  }
  return plan;
}

}  // namespace hpsim
