#include "trials.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "baseline/eigen_baseline.h"
#include "engine/faults/engine_fault.h"
#include "exec/interrupted.h"
#include "plan/build_plan.h"
#include "plan/faults/plan_faults.h"
#include "plan/verify_plan.h"
#include "verify/compare_runs.h"

namespace hpsim {
namespace {

std::vector<CaughtAs> errors_of(const std::vector<Finding>& findings) {
  std::vector<CaughtAs> catches;
  for (const Finding& finding : findings) {
    if (finding.severity == Severity::Error) add_once(catches, {finding.check, finding.code});
  }
  return catches;
}

/// What ranks that died or disagreed are a finding of.
std::vector<CaughtAs> failures_of(const Error& error) {
  std::vector<CaughtAs> catches;
  for (const Diagnostic& diagnostic : error.diagnostics()) {
    if (const auto code = find_code(diagnostic.code))
      add_once(catches, {CheckId::PlanAgreement, *code});
  }
  return catches;
}

bool is_equal(const TrainingState& a, const TrainingState& b) {
  return a.parameters == b.parameters && a.state == b.state && a.scatter == b.scatter;
}

}  // namespace

TrialBench::TrialBench(Scenario scenario, Backend backend, double timeout_s) : backend_(backend) {
  scenario.faults.clear();
  plan_ = build_plan(std::move(scenario));
  options_.timeout_s = timeout_s;
}

bool TrialBench::runs() const {
  return backend_ != Backend::Symbolic && plan_.mesh().num_ranks() <= kMostRanks;
}

bool TrialBench::has_place_for(const FaultKind& kind, const FaultSpec& fault) const {
  if (kind.stage == FaultStage::Process) return false;
  if (kind.stage == FaultStage::Run && !runs()) return false;
  return has_place(plan_, fault);
}

ScenarioTrials TrialBench::run(const std::vector<const FaultKind*>& faults) {
  ScenarioTrials result;
  result.scenario = plan_.scenario.file;
  Found clean = judge({});
  result.noise = std::move(clean.catches);
  result.noise_failure = std::move(clean.failure);
  for (const FaultKind* const kind : faults) {
    Trial& trial = result.trials.emplace_back();
    FaultSpec fault;
    fault.name = kind->name;
    if (!has_place_for(*kind, fault)) continue;
    Found found = judge({fault});
    if (found.is_as_clean) continue;  // in exact mode weights are rounded: an update may be none
    trial.outcome = judge_trial(*kind, found.catches);
    if (trial.outcome == TrialOutcome::Survived && !found.failure.empty())
      trial.outcome = TrialOutcome::Other;
    trial.found = std::move(found.catches);
    trial.failure = std::move(found.failure);
  }
  return result;
}

TrialBench::Found TrialBench::judge(const std::vector<FaultSpec>& faults) {
  try {
    return judge_plan(faults);
  } catch (const PlanRejected& rejected) {
    return {errors_of(rejected.findings()), {}, false};
  } catch (const Error& error) {
    return {failures_of(error), error.diagnostics().front().message, false};
  } catch (const InternalError& error) {
    return {{}, std::string("internal error: ") + error.what(), false};
  }
}

TrialBench::Found TrialBench::judge_plan(const std::vector<FaultSpec>& faults) {
  Plan plan = plan_;
  plan.scenario.faults = faults;
  const VerifiedPlan verified = verify_plan(plant_plan_faults(std::move(plan)));
  if (!runs()) return {};
  RunResult run = make_executor(backend_)->run(verified, options_);
  Found found;
  found.catches = errors_of(compare_runs(verified, run, reference_for(*verified, run)).findings);
  if (faults.empty()) {
    clean_ = std::move(run);
  } else if (found.catches.empty() && clean_) {
    found.is_as_clean = recorded_alike(plan_, *clean_, run);
  }
  return found;
}

const ReferenceRun& TrialBench::reference_for(const Plan& plan, const RunResult& run) {
  if (plan_.scenario.is_exact()) {
    if (!reference_) reference_ = run_baseline(plan_.scenario);
    return *reference_;
  }
  std::vector<TrainingState> states = states_before_steps(plan, run);
  if (reference_ &&
      std::equal(states.begin(), states.end(), states_.begin(), states_.end(), is_equal))
    return *reference_;
  if (!reference_) {
    reference_ = run_baseline(plan_.scenario, states);
    states_ = std::move(states);
    return *reference_;
  }
  try {
    other_reference_ = run_baseline(plan_.scenario, states);
  } catch (const Error&) {
    return *reference_;  // what the fault left cannot be gone on from: a near tie
  }
  return other_reference_;
}

}  // namespace hpsim
