#pragma once

#include <span>

#include "plan/faults/plan_faults.h"

namespace hpsim {

struct NamedPlanFault {
  std::string_view name;
  PlanFault apply = nullptr;
};

// What find_plan_fault looks through.

/// Of stage Plan: those of early passes first, whose mistakes go on to all that follows.
[[nodiscard]] std::span<const NamedPlanFault> planning_operators();
/// Of stage Run: what ranks carry out instead of the plan.
[[nodiscard]] std::span<const NamedPlanFault> executed_operators();
/// Likewise, of what is in the buffers that they exchange.
[[nodiscard]] std::span<const NamedPlanFault> storage_operators();

}  // namespace hpsim
