#include "shrink/symptom.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "scenario/fault_catalog.h"

namespace hpsim {
namespace {

/// Runs of digits, and what stands in quotes, as "#".
std::string masked(const std::string& text) {
  std::string result;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (std::isdigit(static_cast<unsigned char>(c)) != 0) {
      while (i + 1 < text.size() && std::isdigit(static_cast<unsigned char>(text[i + 1])) != 0)
        ++i;
      result += '#';
    } else if (c == '"' || c == '`') {
      const std::size_t end = text.find(c, i + 1);
      if (end == std::string::npos) return result + text.substr(i);
      result += '#';
      i = end;
    } else {
      result += c;
    }
  }
  return result;
}

/// What is claimed, without the names of numbers that it may be, which other sizes change:
/// "is updated by 2 times what is due: S=2, R=2" -> "is updated by # times what is due"
std::string claim_of(const std::string& explanation) {
  return masked(explanation.substr(0, explanation.find(": ")));
}

std::string subject_of(const Finding& finding, const Scenario& scenario) {
  if (finding.code == FindingCode::FaultMissed) {
    const auto fault =
        std::find_if(scenario.faults.begin(), scenario.faults.end(),
                     [&](const FaultSpec& each) { return each.pointer == finding.pointer; });
    return fault == scenario.faults.end() ? std::string() : fault->name;
  }
  if (finding.check != CheckId::Expect) return {};
  return fmt::format("{}: {}", masked(finding.pointer), finding.message);
}

Symptom symptom_of(const Finding& finding, const Report& report) {
  Symptom symptom{.exit_code = report.exit_code,
                  .check = std::string(name_of(finding.check)),
                  .code = std::string(name_of(finding.code)),
                  .subject = subject_of(finding, *report.scenario),
                  .explanations = {}};
  for (const std::string& explanation : finding.explains)
    symptom.explanations.push_back(claim_of(explanation));
  return symptom;
}

Symptom symptom_of(const Diagnostic& diagnostic, const Report& report) {
  if (report.exit_code != exit_code_of(ErrorKind::RankFailure))
    return {.exit_code = report.exit_code,
            .check = {},
            .code = {},
            .subject = masked(diagnostic.message),
            .explanations = {}};
  return {.exit_code = report.exit_code,
          .check = std::string(name_of(CheckId::PlanAgreement)),
          .code = diagnostic.code,
          .subject = {},
          .explanations = {}};
}

void add_once(std::vector<Symptom>& symptoms, Symptom symptom) {
  if (std::find(symptoms.begin(), symptoms.end(), symptom) == symptoms.end())
    symptoms.push_back(std::move(symptom));
}

/// Whether it is what one of the own checks of a planted fault finds.
bool is_own(const Symptom& symptom, const Scenario& scenario) {
  return std::any_of(scenario.faults.begin(), scenario.faults.end(), [&](const FaultSpec& fault) {
    const std::vector<CaughtAs>& own = fault_kind(fault.name).caught_by;
    return std::any_of(own.begin(), own.end(), [&](const CaughtAs& each) {
      return name_of(each.check) == symptom.check && name_of(each.code) == symptom.code;
    });
  });
}

}  // namespace

std::vector<Symptom> symptoms_of(const Report& report) {
  std::vector<Symptom> symptoms;
  if (report.outcome == Outcome::Pass || !report.scenario) return symptoms;
  for (const Finding& finding : report.findings) {
    if (finding.severity == Severity::Error) add_once(symptoms, symptom_of(finding, report));
  }
  for (const Diagnostic& diagnostic : report.diagnostics)
    add_once(symptoms, symptom_of(diagnostic, report));
  return symptoms;
}

std::optional<Symptom> main_symptom(const Report& report) {
  const std::vector<Symptom> symptoms = symptoms_of(report);
  if (symptoms.empty()) return std::nullopt;
  // A fault that was missed is the failure, whatever else is found.
  const auto missed = std::find_if(symptoms.begin(), symptoms.end(), [](const Symptom& each) {
    return each.code == name_of(FindingCode::FaultMissed);
  });
  if (missed != symptoms.end()) return *missed;
  const auto own = std::find_if(symptoms.begin(), symptoms.end(), [&](const Symptom& each) {
    return is_own(each, *report.scenario);
  });
  return own != symptoms.end() ? *own : symptoms.front();
}

bool shows(const Report& report, const Symptom& symptom) {
  const std::vector<Symptom> symptoms = symptoms_of(report);
  return std::any_of(symptoms.begin(), symptoms.end(), [&](const Symptom& each) {
    if (each.exit_code != symptom.exit_code || each.check != symptom.check ||
        each.code != symptom.code || each.subject != symptom.subject)
      return false;
    return symptom.explanations.empty() ||
           std::find(each.explanations.begin(), each.explanations.end(),
                     symptom.explanations.front()) != each.explanations.end();
  });
}

bool has_vacuous_bound(const Report& report) {
  return std::any_of(report.findings.begin(), report.findings.end(), [](const Finding& finding) {
    return finding.code == FindingCode::VacuousBound && finding.severity == Severity::Error;
  });
}

std::string to_string(const Symptom& symptom) {
  if (symptom.check.empty()) return fmt::format("exit {}", symptom.exit_code);
  return fmt::format("{} {}", symptom.check, symptom.code);
}

}  // namespace hpsim
