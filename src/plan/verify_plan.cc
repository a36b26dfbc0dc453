#include "plan/verify_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

#include "plan/plan_checks.h"
#include "plan/well_formed.h"

namespace hpsim {
namespace {

std::string summary_of(const std::vector<Finding>& findings) {
  std::string text = fmt::format("the plan must not run: {} findings", findings.size());
  for (const Finding& finding : findings) {
    text += fmt::format("\n  {}: {}", name_of(finding.code), finding.message);
  }
  return text;
}

/// \throws PlanRejected if there is a layout that the checks cannot look at: none of them has
///         compared anything
void require_well_formed(const Plan& plan) {
  std::vector<Finding> findings;
  for (const PlannedParameter& parameter : plan.parameters) {
    if (auto finding = malformed_layout(plan.mesh(), parameter))
      findings.push_back(*std::move(finding));
  }
  if (findings.empty()) return;
  PlanChecks checks;
  for (const CheckId id :
       {CheckId::Coverage, CheckId::SyncSet, CheckId::PlanAgreement, CheckId::Placements}) {
    checks.results.push_back({.id = id, .passed = false, .compared = 0});
  }
  throw PlanRejected(std::move(findings), std::move(checks));
}

}  // namespace

PlanRejected::PlanRejected(std::vector<Finding> findings, PlanChecks checks)
    : std::runtime_error(summary_of(findings)),
      findings_(std::move(findings)),
      checks_(std::move(checks)) {}

VerifiedPlan verify_plan(Plan plan) {
  require_well_formed(plan);
  PlanChecks checks;
  std::vector<Finding> findings;
  std::array<PlanCheckOutcome, 4> outcomes = {check_coverage(plan), check_sync_set(plan),
                                              check_agreement(plan), check_placements(plan)};
  for (PlanCheckOutcome& outcome : outcomes) {
    const auto first_warning =
        std::stable_partition(outcome.findings.begin(), outcome.findings.end(),
                              [](const Finding& f) { return f.severity == Severity::Error; });
    checks.results.push_back(
        {.id = outcome.id,
         .passed = first_warning == outcome.findings.begin() && outcome.compared > 0,
         .compared = outcome.compared});
    std::move(outcome.findings.begin(), first_warning, std::back_inserter(findings));
    std::move(first_warning, outcome.findings.end(), std::back_inserter(checks.warnings));
  }
  if (!findings.empty()) throw PlanRejected(std::move(findings), std::move(checks));
  return VerifiedPlan(std::move(plan), std::move(checks));
}

}  // namespace hpsim
