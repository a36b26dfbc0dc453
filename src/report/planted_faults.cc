#include "report/planted_faults.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>

#include "scenario/locate.h"

namespace hpsim {
namespace {

/// "gradient-parity GRAD_SCALE, padding PADDING_NONZERO"
std::string text_of(const std::vector<CaughtAs>& catches, std::string_view separator) {
  std::vector<std::string> texts;
  for (const CaughtAs& each : catches)
    texts.push_back(to_string(each));
  return fmt::format("{}", fmt::join(texts, separator));
}

std::string message_of(const FaultKind& kind, const std::vector<CaughtAs>& found) {
  return fmt::format("planted fault \"{}\" must be found as {}; found: {}", kind.name,
                     text_of(kind.caught_by, " or "),
                     found.empty() ? "nothing" : text_of(found, ", "));
}

/// The row of the check `expect`, after which come no others.
CheckResult& expect_check(Report& report) {
  const auto row = std::find_if(report.checks.begin(), report.checks.end(),
                                [](const CheckResult& each) { return each.id == CheckId::Expect; });
  if (row != report.checks.end()) return *row;
  return report.checks.emplace_back(CheckResult{.id = CheckId::Expect, .passed = true});
}

SourcePosition position_of(const Scenario& scenario, const std::string& pointer) {
  if (!scenario.source || pointer.empty()) return {};
  return locate(*scenario.source, {pointer}).at(0);
}

/// Of a run that came to a verdict.
void add_finding(const FaultSpec& fault, std::string message, Report& report) {
  const SourcePosition at = position_of(*report.scenario, fault.pointer);
  report.findings.push_back({.code = FindingCode::FaultMissed,
                             .message = std::move(message),
                             .pointer = fault.pointer,
                             .line = at.line,
                             .column = at.column});
  expect_check(report).passed = false;
  report.outcome = Outcome::Fail;
  report.exit_code = 1;
}

/// Of a run whose ranks failed: it has no findings, and keeps its exit code.
void add_diagnostic(const FaultSpec& fault, std::string message, Report& report) {
  const SourcePosition at = position_of(*report.scenario, fault.pointer);
  report.diagnostics.push_back({.file = report.file,
                                .line = at.line,
                                .column = at.column,
                                .pointer = fault.pointer,
                                .message = std::move(message),
                                .code = std::string(name_of(FindingCode::FaultMissed))});
}

bool has_failed_ranks(const Report& report) {
  return report.outcome == Outcome::Error &&
         report.exit_code == exit_code_of(ErrorKind::RankFailure);
}

}  // namespace

std::vector<CaughtAs> caught_in(const Report& report) {
  std::vector<CaughtAs> catches;
  for (const Finding& finding : report.findings) {
    if (finding.severity == Severity::Error && finding.code != FindingCode::FaultMissed)
      add_once(catches, {finding.check, finding.code});
  }
  for (const Diagnostic& diagnostic : report.diagnostics) {
    const auto code = find_code(diagnostic.code);
    if (code && *code != FindingCode::FaultMissed)
      add_once(catches, {CheckId::PlanAgreement, *code});
  }
  return catches;
}

void judge_planted_faults(Report& report) {
  if (!report.scenario || report.scenario->faults.empty()) return;
  const bool is_failure = has_failed_ranks(report);
  if (report.outcome == Outcome::Error && !is_failure) return;
  const std::vector<CaughtAs> found = caught_in(report);
  const std::vector<FaultSpec> faults = report.scenario->faults;
  if (!is_failure) expect_check(report).compared += static_cast<std::int64_t>(faults.size());
  for (const FaultSpec& fault : faults) {
    const FaultKind& kind = fault_kind(fault.name);
    if (is_caught(kind, found)) continue;
    if (is_failure) {
      add_diagnostic(fault, message_of(kind, found), report);
    } else {
      add_finding(fault, message_of(kind, found), report);
    }
  }
}

}  // namespace hpsim
