#pragma once

#include <cstdint>
#include <vector>

#include "base/finding.h"
#include "verify/verdict.h"

namespace hpsim {

/// Gathers what one check compares and finds, and closes it with a result.
///
///   compared   findings added   verdict.findings   passed
///   0          0                1: nothing compared  no
///   4480       0                0                    yes
///   4480       1 warning        1                    yes
///   4480       7 errors         5, and 2 in verdict.left_out  no
class CheckRecorder {
 public:
  explicit CheckRecorder(CheckId id) { result_.id = id; }
  /// Goes on from what verify_plan found.
  explicit CheckRecorder(CheckResult carried_over) : result_(std::move(carried_over)) {}

  [[nodiscard]] CheckId id() const { return result_.id; }
  void count(std::int64_t compared) { result_.compared += compared; }
  /// Keeps the element with the largest ratio; the first of equals.
  void offer_worst(const WorstElement& element);
  /// Root causes first; see keep_told. The check of the finding becomes this one.
  void add(Finding finding);
  /// Appends the result and the findings.
  void finish(Verdict& verdict);

 private:
  CheckResult result_;
  std::vector<Finding> findings_;
};

}  // namespace hpsim
