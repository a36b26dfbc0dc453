#include "shrink/symptom.h"

#include "support/catch.h"
#include "unit/report/sample_report.h"

namespace hpsim {
namespace {

/// A failed report with one finding.
Report report_with(Finding finding) {
  Report report = failed_report();
  report.findings = {std::move(finding)};
  return report;
}

Finding ratio(const std::vector<std::string>& explains) {
  return {.code = FindingCode::GradScale,
          .check = CheckId::GradientParity,
          .explains = explains,
          .message = "got 1, expected 4"};
}

TEST_CASE("a run that passed shows nothing") {
  CHECK(symptoms_of(sample_report()).empty());
  CHECK_FALSE(main_symptom(sample_report()));
}

TEST_CASE("numbers and names in explanations do not count, their best one does") {
  const auto of_eight = main_symptom(report_with(ratio({"D=8"}))).value();
  CHECK(of_eight.explanations == std::vector<std::string>{"D=#"});
  CHECK(to_string(of_eight) == "gradient-parity GRAD_SCALE");
  CHECK(shows(report_with(ratio({"W=2", "D=2"})), of_eight));
  CHECK_FALSE(shows(report_with(ratio({"R=2"})), of_eight));
  CHECK_FALSE(shows(report_with(ratio({})), of_eight));
  const auto of_w2 = main_symptom(report_with(ratio({"equals the gradient of \"w2\""}))).value();
  CHECK(shows(report_with(ratio({"equals the gradient of \"0.weight\""})), of_w2));
  const auto twice = main_symptom(report_with(ratio({"is 2 times that: S=2, R=2"}))).value();
  CHECK(twice.explanations == std::vector<std::string>{"is # times that"});
  CHECK(shows(report_with(ratio({"is 2 times that"})), twice));
  CHECK_FALSE(shows(report_with(ratio({"is 2 times this: S=2, R=2"})), twice));
  const auto unexplained = main_symptom(report_with(ratio({}))).value();
  CHECK(shows(report_with(ratio({"R=2"})), unexplained));
}

TEST_CASE("another check, code or exit code is another failure") {
  const auto symptom = main_symptom(report_with(ratio({}))).value();
  Finding value = ratio({});
  value.code = FindingCode::GradValue;
  CHECK_FALSE(shows(report_with(value), symptom));
  Finding check = ratio({});
  check.check = CheckId::SyncSet;
  CHECK_FALSE(shows(report_with(check), symptom));
  CHECK_FALSE(shows(sample_report(), symptom));
  CHECK_FALSE(shows(error_report(), symptom));
}

TEST_CASE("a bound that says nothing is told from one that was passed") {
  Finding vacuous = ratio({});
  CHECK_FALSE(has_vacuous_bound(report_with(vacuous)));
  vacuous.code = FindingCode::VacuousBound;
  CHECK(has_vacuous_bound(report_with(vacuous)));
  vacuous.severity = Severity::Warning;
  CHECK_FALSE(has_vacuous_bound(report_with(vacuous)));
}

TEST_CASE("warnings are no symptoms") {
  Finding warning = ratio({});
  warning.severity = Severity::Warning;
  CHECK(symptoms_of(report_with(warning)).empty());
}

TEST_CASE("what expect says and what is must stay, wherever in a list") {
  const auto mismatch = [](std::string pointer, std::string message) {
    return report_with({.code = FindingCode::Expect,
                        .check = CheckId::Expect,
                        .message = std::move(message),
                        .pointer = std::move(pointer)});
  };
  const auto symptom = main_symptom(mismatch("/expect/parameters/2/dtype", "a, not b")).value();
  CHECK(shows(mismatch("/expect/parameters/0/dtype", "a, not b"), symptom));
  CHECK_FALSE(shows(mismatch("/expect/parameters/0/dtype", "a, not c"), symptom));
  CHECK_FALSE(shows(mismatch("/expect/parameters/0/name", "a, not b"), symptom));
}

TEST_CASE("of planted faults, what was missed comes first, then what their own checks found") {
  Report report = error_report();
  report.scenario = sample_report().scenario;
  report.scenario->faults = {{.name = "stall", .pointer = "/faults/0"},
                             {.name = "kill", .pointer = "/faults/1"}};
  report.diagnostics = {{.message = "ranks differ", .code = "COMM_ORDER"},
                        {.message = "rank 3 waits", .code = "HANG"}};
  const auto own = main_symptom(report).value();
  CHECK(own.exit_code == 6);
  CHECK(own.code == "HANG");

  Report missed = report_with({.code = FindingCode::FaultMissed, .pointer = "/faults/1"});
  missed.scenario->faults = report.scenario->faults;
  missed.findings.insert(missed.findings.begin(), ratio({}));
  const auto symptom = main_symptom(missed).value();
  CHECK(symptom.code == "FAULT_MISSED");
  CHECK(symptom.subject == "kill");
  missed.scenario->faults[1].name = "throw";
  CHECK_FALSE(shows(missed, symptom));
}

TEST_CASE("an internal error is known by its text, but for numbers") {
  const auto internal = [](std::string message) {
    Report report = error_report();
    report.scenario = sample_report().scenario;
    report.exit_code = 70;
    report.diagnostics = {{.message = std::move(message)}};
    return report;
  };
  const auto symptom = main_symptom(internal("internal error: 3 steps of 4")).value();
  CHECK(to_string(symptom) == "exit 70");
  CHECK(shows(internal("internal error: 1 steps of 12"), symptom));
  CHECK_FALSE(shows(internal("internal error: no steps"), symptom));
}

}  // namespace
}  // namespace hpsim
