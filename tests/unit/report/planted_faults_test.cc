#include "report/planted_faults.h"

#include <algorithm>

#include "report/text_parts.h"
#include "support/catch.h"
#include "unit/report/sample_report.h"

namespace hpsim {
namespace {

// kill is caught by plan-agreement RANK_DIED, stall by plan-agreement HANG.

Report with_faults(Report report, const std::vector<std::string>& names) {
  if (!report.scenario) report.scenario = sample_report().scenario;
  for (const std::string& name : names) {
    report.scenario->faults.push_back(
        {.name = name, .pointer = "/faults/" + std::to_string(report.scenario->faults.size())});
  }
  return report;
}

Finding error(CheckId check, FindingCode code) {
  return {.code = code, .check = check, .message = "wrong"};
}

std::vector<Finding> missed_in(const Report& report) {
  std::vector<Finding> missed;
  std::copy_if(report.findings.begin(), report.findings.end(), std::back_inserter(missed),
               [](const Finding& each) { return each.code == FindingCode::FaultMissed; });
  return missed;
}

TEST_CASE("a run without faults is as it was") {
  Report report = sample_report();
  judge_planted_faults(report);
  CHECK(report.outcome == Outcome::Pass);
  CHECK(report.exit_code == 0);
  CHECK(report.checks.size() == sample_report().checks.size());
}

TEST_CASE("a run with a fault that passes has failed: FAULT_MISSED") {
  Report report = with_faults(sample_report(), {"stall"});
  judge_planted_faults(report);
  CHECK(report.outcome == Outcome::Fail);
  CHECK(report.exit_code == 1);
  REQUIRE(missed_in(report).size() == 1);
  const Finding finding = missed_in(report)[0];
  CHECK(finding.check == CheckId::Expect);
  CHECK(finding.severity == Severity::Error);
  CHECK(finding.pointer == "/faults/0");
  CHECK(finding.message ==
        "planted fault \"stall\" must be found as plan-agreement HANG; found: nothing");
  CHECK(report.checks.back().id == CheckId::Expect);
  CHECK_FALSE(report.checks.back().passed);
  CHECK(report.checks.back().compared == 1);
}

TEST_CASE("what other checks found does not do, and is named") {
  Report report = with_faults(failed_report(), {"stall"});
  report.findings = {error(CheckId::GradientParity, FindingCode::GradValue),
                     error(CheckId::GradientParity, FindingCode::GradValue),
                     error(CheckId::SyncSet, FindingCode::Hang)};
  judge_planted_faults(report);
  REQUIRE(missed_in(report).size() == 1);
  CHECK(missed_in(report)[0].message ==
        "planted fault \"stall\" must be found as plan-agreement HANG; found: gradient-parity "
        "GRAD_VALUE, sync-set HANG");
}

TEST_CASE("a warning of its own check does not find a fault, an error does") {
  Report report = with_faults(failed_report(), {"stall"});
  report.findings = {error(CheckId::PlanAgreement, FindingCode::Hang)};
  report.findings[0].severity = Severity::Warning;
  Report found = report;
  judge_planted_faults(report);
  CHECK(missed_in(report).size() == 1);

  found.findings[0].severity = Severity::Error;
  judge_planted_faults(found);
  CHECK(missed_in(found).empty());
  CHECK(found.exit_code == 1);
  CHECK(found.checks.back().id == CheckId::Expect);
  CHECK(found.checks.back().passed);
}

TEST_CASE("of several faults each is judged by its own checks") {
  Report report = with_faults(failed_report(), {"stall", "kill"});
  report.findings = {error(CheckId::PlanAgreement, FindingCode::Hang)};
  judge_planted_faults(report);
  REQUIRE(missed_in(report).size() == 1);
  CHECK(missed_in(report)[0].pointer == "/faults/1");
  CHECK(report.checks.back().compared == 2);
}

TEST_CASE("ranks that failed keep exit 6, and say what was missed as a diagnostic") {
  Report report = with_faults(error_report(), {"kill"});
  report.diagnostics = {{.message = "rank 3 waits", .code = "HANG"}};
  judge_planted_faults(report);
  CHECK(report.outcome == Outcome::Error);
  CHECK(report.exit_code == 6);
  CHECK(report.findings.empty());
  REQUIRE(report.diagnostics.size() == 2);
  CHECK(report.diagnostics[1].code == "FAULT_MISSED");
  CHECK(report.diagnostics[1].pointer == "/faults/0");
  CHECK(report.diagnostics[1].message ==
        "planted fault \"kill\" must be found as plan-agreement RANK_DIED; found: plan-agreement "
        "HANG");

  Report found = with_faults(error_report(), {"kill"});
  found.diagnostics = {{.message = "rank 3 died", .code = "RANK_DIED"}};
  judge_planted_faults(found);
  CHECK(found.diagnostics.size() == 1);
  CHECK(found.exit_code == 6);
}

TEST_CASE("where there was no run there is nothing to judge") {
  for (const int code : {2, 3, 7, 70}) {
    Report report = with_faults(error_report(), {"kill"});
    report.exit_code = code;
    report.diagnostics = {{.message = "no"}};
    judge_planted_faults(report);
    CHECK(report.exit_code == code);
    CHECK(report.diagnostics.size() == 1);
    CHECK(report.findings.empty());
  }
}

}  // namespace
}  // namespace hpsim
