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
  if (findings_.size() > kMaxFindingsPerCheck) {
    const auto first_left_out =
        findings_.begin() + static_cast<std::ptrdiff_t>(kMaxFindingsPerCheck);
    Finding rest{.code = first_left_out->code, .severity = Severity::Warning, .check = result_.id};
    for (auto it = first_left_out; it != findings_.end(); ++it) {
      if (it->severity == Severity::Error) rest.severity = Severity::Error;
    }
    rest.message =
        fmt::format("and {} more findings of this check", findings_.size() - kMaxFindingsPerCheck);
    findings_.erase(first_left_out, findings_.end());
    findings_.push_back(std::move(rest));
  }
  verdict.checks.push_back(result_);
  verdict.findings.insert(verdict.findings.end(), std::make_move_iterator(findings_.begin()),
                          std::make_move_iterator(findings_.end()));
}

}  // namespace hpsim
