#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/finding.h"

namespace hpsim {

/// Where a fault is planted. There is one seam for each.
enum class FaultStage {
  Process,  ///< what the process of a rank does between two steps (exec/gloo/planted_faults.h)
  Plan,     ///< the plan, before it is verified: a pass made a mistake (plan/faults/plan_faults.h)
  Run,      ///< what ranks do with the verified plan: they carry out another one (executed_plan.h),
            ///< or an engine does a step wrongly (engine/faults/engine_fault.h)
};

/// "process", "plan", "run"
[[nodiscard]] std::string_view name_of(FaultStage stage);

/// A check that fails, with a finding of this code.
struct CaughtAs {
  CheckId check = CheckId::PlanAgreement;
  FindingCode code = FindingCode::CommOrder;
  bool operator==(const CaughtAs&) const = default;
};

/// "gradient-parity GRAD_SCALE"
[[nodiscard]] std::string to_string(const CaughtAs& found);

/// At the end, unless it is among them.
void add_once(std::vector<CaughtAs>& catches, const CaughtAs& found);

/// Which keys aim a fault: besides `fault`, it takes these.
struct FaultAims {
  bool params = false;
  bool ranks = false;
  bool step = false;
  bool seq = false;
  bool unit = false;
};

/// What can be planted, and what must catch it.
struct FaultKind {
  std::string_view name;  ///< "skip_all_reduce"
  std::string_view kind;  ///< what it is about: "groups", "scale", "padding", ...
  FaultStage stage = FaultStage::Run;
  std::string_view breaks;  ///< one sentence: what is done wrong
  std::string_view needs;   ///< what a scenario must have, where it has no place in every one
  std::vector<CaughtAs> caught_by;  ///< its own checks: one of these must find it
  std::string_view reports;  ///< public reports that it stands for: "pytorch#154888, verl#7493"
  FaultAims aims;
};

/// All kinds, by stage. Names are unique.
[[nodiscard]] std::span<const FaultKind> all_faults();

/// Whether one of the fault's own checks is among what was found.
[[nodiscard]] bool is_caught(const FaultKind& fault, const std::vector<CaughtAs>& found);

/// \pre `name` is that of a fault
[[nodiscard]] const FaultKind& fault_kind(std::string_view name);

}  // namespace hpsim
