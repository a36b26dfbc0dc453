#include "verify/check_recorder.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace hpsim {

void CheckRecorder::offer_worst(const WorstElement& element) {
  if (!result_.worst || element.ratio > result_.worst->ratio) result_.worst = element;
}

void CheckRecorder::add(Finding finding) {
  finding.check = result_.id;
  findings_.push_back(std::move(finding));
}

void CheckRecorder::finish(Verdict& verdict) {
  if (result_.compared == 0 && findings_.empty()) {
    add({.code = FindingCode::VacuousBound,
         .message = fmt::format("{} compared 0 numbers, more than 0 expected: nothing is proved",
                                name_of(result_.id))});
  }
  result_.passed = result_.compared > 0 &&
                   std::none_of(findings_.begin(), findings_.end(), [](const Finding& finding) {
                     return finding.severity == Severity::Error;
                   });
  const std::vector<LeftOut> left_out = keep_told(findings_);
  verdict.left_out.insert(verdict.left_out.end(), left_out.begin(), left_out.end());
  verdict.checks.push_back(result_);
  verdict.findings.insert(verdict.findings.end(), std::make_move_iterator(findings_.begin()),
                          std::make_move_iterator(findings_.end()));
}

}  // namespace hpsim
