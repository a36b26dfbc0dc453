#include "mutation/kill_matrix.h"

#include <algorithm>

#include "base/check.h"

namespace hpsim {

std::string_view name_of(TrialOutcome outcome) {
  switch (outcome) {
    case TrialOutcome::NoPlace:
      return "-";
    case TrialOutcome::Own:
      return "own";
    case TrialOutcome::Other:
      return "other";
    case TrialOutcome::Survived:
      return "survived";
  }
  HPSIM_CHECK(false, "unknown outcome {}", static_cast<int>(outcome));
  return {};
}

TrialOutcome judge_trial(const FaultKind& fault, const std::vector<CaughtAs>& found) {
  if (found.empty()) return TrialOutcome::Survived;
  return is_caught(fault, found) ? TrialOutcome::Own : TrialOutcome::Other;
}

KillMatrix::Counts KillMatrix::counts_of(std::size_t fault) const {
  Counts counts;
  for (const ScenarioTrials& scenario : scenarios) {
    const TrialOutcome outcome = scenario.trials.at(fault).outcome;
    if (outcome == TrialOutcome::NoPlace) continue;
    ++counts.places;
    counts.own += outcome == TrialOutcome::Own ? 1 : 0;
    counts.other += outcome == TrialOutcome::Other ? 1 : 0;
    counts.survived += outcome == TrialOutcome::Survived ? 1 : 0;
  }
  return counts;
}

KillMatrix::Counts KillMatrix::total() const {
  Counts total;
  for (std::size_t fault = 0; fault < faults.size(); ++fault) {
    const Counts counts = counts_of(fault);
    total.places += counts.places;
    total.own += counts.own;
    total.other += counts.other;
    total.survived += counts.survived;
  }
  return total;
}

bool KillMatrix::passed() const {
  const Counts counts = total();
  return counts.own == counts.places &&
         std::all_of(scenarios.begin(), scenarios.end(), [](const ScenarioTrials& scenario) {
           return scenario.noise.empty() && scenario.noise_failure.empty();
         });
}

}  // namespace hpsim
