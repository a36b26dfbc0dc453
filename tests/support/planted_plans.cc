#include "support/planted_plans.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <iterator>
#include <utility>

#include "base/error.h"
#include "plan/faults/plan_faults.h"
#include "plan/verify_plan.h"
#include "scenario/fault_catalog.h"

namespace hpsim::test {

std::vector<std::string> plan_faults() {
  std::vector<std::string> names;
  for (const FaultKind& kind : all_faults()) {
    if (kind.stage == FaultStage::Plan) names.emplace_back(kind.name);
  }
  return names;
}

FaultSpec unaimed(const std::string& name, int number) {
  FaultSpec fault;
  fault.name = name;
  fault.pointer = fmt::format("/faults/{}", number);
  return fault;
}

bool takes_params(const std::string& name) {
  return fault_kind(name).aims.params;
}

bool takes_unit(const std::string& name) {
  return fault_kind(name).aims.unit;
}

bool takes_step(const std::string& name) {
  return fault_kind(name).aims.step;
}

bool is_about_placement(const std::string& name) {
  return fault_kind(name).kind == "placement";
}

std::vector<Finding> Planted::of(const std::string& name) const {
  const std::vector<CaughtAs>& wanted = fault_kind(name).caught_by;
  std::vector<Finding> own;
  std::copy_if(findings.begin(), findings.end(), std::back_inserter(own), [&](const Finding& each) {
    return std::find(wanted.begin(), wanted.end(), CaughtAs{each.check, each.code}) != wanted.end();
  });
  return own;
}

std::string Planted::told() const {
  std::string text = failure.empty() ? "" : fmt::format("failed: {}\n", failure);
  for (const Finding& each : findings) {
    if (text.size() > 2000) return text + "...";
    text += fmt::format("{} {}: {}\n", name_of(each.check), name_of(each.code), each.message);
  }
  return text;
}

Planted plant(Plan plan, std::vector<FaultSpec> faults) {
  Planted planted;
  plan.scenario.faults = std::move(faults);
  try {
    plan = plant_plan_faults(std::move(plan));
    planted.has_place = true;
    static_cast<void>(verify_plan(std::move(plan)));
  } catch (const PlanRejected& rejected) {
    planted.is_rejected = true;
    planted.findings = rejected.findings();
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::InvalidScenario || planted.has_place)
      planted.failure = error.diagnostics().front().message;
  } catch (const std::exception& other) {
    planted.failure = other.what();
  }
  return planted;
}

}  // namespace hpsim::test
