#include "verify/verdict.h"

#include <algorithm>

namespace hpsim {

bool Verdict::passed() const {
  const bool checks_hold = std::all_of(checks.begin(), checks.end(), [](const CheckResult& check) {
    return check.passed && check.compared > 0;
  });
  const bool has_error = std::any_of(findings.begin(), findings.end(), [](const Finding& finding) {
    return finding.severity == Severity::Error;
  });
  return !checks.empty() && checks_hold && !has_error;
}

}  // namespace hpsim
