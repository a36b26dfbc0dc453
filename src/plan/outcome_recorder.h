#pragma once

#include <cstdint>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "plan/plan_checks.h"

namespace hpsim {

/// Collects findings of one check of a plan.
class OutcomeRecorder {
 public:
  explicit OutcomeRecorder(CheckId id) { outcome_.id = id; }

  void count() { ++outcome_.compared; }
  void count(std::int64_t facts) { outcome_.compared += facts; }
  void add(FindingCode code, const std::string& param, std::string message) {
    outcome_.findings.push_back(
        {.code = code, .check = outcome_.id, .param = param, .message = std::move(message)});
  }
  /// The last finding has these numbers.
  void with_numbers(double expected, double got) {
    outcome_.findings.back().expected = expected;
    outcome_.findings.back().got = got;
  }
  void explained(double ratio, std::vector<std::string> explains) {
    outcome_.findings.back().ratio = ratio;
    outcome_.findings.back().explains = std::move(explains);
  }
  /// The last finding is about this optimizer step.
  void at_step(std::int64_t step) { outcome_.findings.back().step = step; }
  void warn(FindingCode code, const std::string& param, std::string message) {
    add(code, param, std::move(message));
    outcome_.findings.back().severity = Severity::Warning;
  }
  void append(std::vector<Finding> findings) {
    std::move(findings.begin(), findings.end(), std::back_inserter(outcome_.findings));
  }
  [[nodiscard]] PlanCheckOutcome take() { return std::move(outcome_); }

 private:
  PlanCheckOutcome outcome_;
};

}  // namespace hpsim
