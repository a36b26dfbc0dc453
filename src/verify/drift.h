#pragma once

#include <vector>

#include "plan/plan.h"
#include "trace/reference_run.h"
#include "trace/run_result.h"

namespace hpsim {

/// How far the parameters of a run are from those of the free training of the baseline after an
/// optimizer step: what roundings, each of them allowed, have made of each other. No check: steps
/// are judged one by one, from what the run held before them.
struct StepDrift {
  /// 2-norm of the difference over all parameters, over that of the baseline's; infinity where only
  /// those are zero.
  double relative = 0;
  double largest = 0;  ///< difference of any element
  int parameter = 0;   ///< that it is of, the first of several
};

/// One entry per optimizer step, none where the reference has no free training; copies are those of
/// the first replica, as assemble_state takes them. \pre run.has_numbers()
[[nodiscard]] std::vector<StepDrift> measure_drift(const Plan& plan, const RunResult& run,
                                                   const ReferenceRun& reference);

/// Of one step: [parameter][element] of the run, and of the baseline.
///
///   run (3, 4), baseline (3, 5)          relative 1 / sqrt(34), largest 1
///   both (3, 4)                          0, 0
[[nodiscard]] StepDrift drift_between(const std::vector<std::vector<double>>& run,
                                      const std::vector<std::vector<double>>& baseline);

}  // namespace hpsim
