#pragma once

#include <vector>

#include "report/report.h"
#include "scenario/fault_catalog.h"

namespace hpsim {

/// What checks found, each once, in their order: the errors among the findings but FAULT_MISSED,
/// and what ranks died or disagreed of, which are findings of plan-agreement.
[[nodiscard]] std::vector<CaughtAs> caught_in(const Report& report);

/// Judges a run with planted faults, which must fail, by one of the own checks of each of them
/// (FaultKind::caught_by): each that none of its own found is an error FAULT_MISSED of the check
/// `expect`, and a run that passed has failed.
///
///   planted              found                          says
///   own: padding P       padding P                      nothing
///   own: padding P       gradient-parity GRAD_VALUE     FAULT_MISSED, exit 1
///   own: padding P       nothing                        FAULT_MISSED, exit 1
///   kill                 ranks died, exit 6             nothing, exit 6
///   own: padding P       ranks disagree, exit 6         FAULT_MISSED as a diagnostic, exit 6
///   any                  exit 2, 3, 7 or 70             nothing: there was no run to judge
void judge_planted_faults(Report& report);

}  // namespace hpsim
