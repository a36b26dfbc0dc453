#pragma once

#include <algorithm>
#include <iostream>
#include <optional>

#include "plan/plan.h"
#include "support/catch.h"
#include "verify/verdict.h"

namespace hpsim::test {

/// Whether a scenario names a dtype of 16 bits.
inline bool is_narrow(const Scenario& scenario) {
  const auto is_short = [](std::optional<DType> dtype) {
    return dtype == DType::BFloat16 || dtype == DType::Float16;
  };
  const MixedPrecision& policy = scenario.fully_shard.mp_policy;
  return is_short(scenario.numerics.dtype) || is_short(policy.param_dtype) ||
         is_short(policy.reduce_dtype) || is_short(policy.output_dtype) ||
         std::any_of(scenario.numerics.parameter_dtypes.begin(),
                     scenario.numerics.parameter_dtypes.end(), is_short);
}

/// How runs in dtypes of 16 bits end. They may honestly say that bounds are too wide to prove
/// something, and nothing else.
class NarrowRuns {
 public:
  /// Whether that is how it ended, or all is well.
  bool accepts(const VerifiedPlan& plan, const Verdict& verdict) {
    if (!is_narrow(plan->scenario) || plan->scenario.is_exact()) return verdict.passed();
    ++num_runs_;
    num_passed_ += verdict.passed() ? 1 : 0;
    return verdict.passed() || is_only_vacuous(verdict);
  }
  void check(int least) const {
    std::cout << num_runs_ << " in 16 bits, of which " << num_passed_ << " prove all\n";
    CHECK(num_runs_ >= least);
    if (num_runs_ > 0) CHECK(num_passed_ * 2 > num_runs_);
  }

 private:
  static bool is_only_vacuous(const Verdict& verdict) {
    const auto has = [&](CheckId check, bool is_vacuous) {
      return std::any_of(verdict.findings.begin(), verdict.findings.end(), [&](const Finding& f) {
        return f.check == check && f.severity == Severity::Error &&
               (f.code == FindingCode::VacuousBound) == is_vacuous;
      });
    };
    return std::all_of(verdict.checks.begin(), verdict.checks.end(), [&](const CheckResult& check) {
      return check.passed || (has(check.id, true) && !has(check.id, false));
    });
  }

  int num_runs_ = 0;
  int num_passed_ = 0;
};

}  // namespace hpsim::test
