#pragma once

#include <cstdint>
#include <vector>

#include "base/finding.h"
#include "verify/drift.h"
#include "verify/told_findings.h"

namespace hpsim {

/// What is true of a run. It passes if every check passed; a check that compared nothing fails.
struct Verdict {
  std::vector<CheckResult> checks;  ///< in the order of CheckId; only those that apply
  std::vector<Finding> findings;    ///< root causes first within a check; warnings too
  std::vector<LeftOut> left_out;    ///< of checks with many: how many are not among them
  std::vector<double> losses;       ///< of the run, one per step; empty without numbers
  std::vector<double> grad_norms;
  std::vector<StepDrift> drift;  ///< one per step; empty without numbers, and in exact mode

  [[nodiscard]] bool passed() const;
};

}  // namespace hpsim
