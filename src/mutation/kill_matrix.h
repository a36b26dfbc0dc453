#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "scenario/fault_catalog.h"

namespace hpsim {

/// What became of a fault that was planted in a scenario.
enum class TrialOutcome {
  NoPlace,   ///< the scenario has no place for it
  Own,       ///< one of its own checks found it
  Other,     ///< only other checks did
  Survived,  ///< none did
};

/// "-", "own", "other", "survived"
[[nodiscard]] std::string_view name_of(TrialOutcome outcome);

/// One fault in one scenario.
struct Trial {
  TrialOutcome outcome = TrialOutcome::NoPlace;
  std::vector<CaughtAs> found;  ///< what checks found, each once, in their order
  std::string failure;          ///< how the run ended if it came to no verdict; else empty
};

/// What a trial is, from what was found: Own if one of `caught_by` is among it.
///
///   caught by sync-set GRAD_SCALE    found                          outcome
///                                    sync-set GRAD_SCALE            Own
///                                    gradient-parity GRAD_SCALE     Other
///                                    nothing                        Survived
[[nodiscard]] TrialOutcome judge_trial(const FaultKind& fault, const std::vector<CaughtAs>& found);

/// A scenario and what became of every fault in it.
struct ScenarioTrials {
  std::string scenario;         ///< file, as typed
  std::vector<CaughtAs> noise;  ///< what checks found without a fault
  std::string noise_failure;
  std::vector<Trial> trials;  ///< like KillMatrix::faults
};

/// Faults against scenarios.
struct KillMatrix {
  std::vector<std::string> faults;
  std::vector<ScenarioTrials> scenarios;

  /// How often a fault had each outcome.
  struct Counts {
    std::int64_t places = 0;
    std::int64_t own = 0;
    std::int64_t other = 0;
    std::int64_t survived = 0;
    bool operator==(const Counts&) const = default;
  };
  [[nodiscard]] Counts counts_of(std::size_t fault) const;
  [[nodiscard]] Counts total() const;
  /// Every fault that had a place was found by its own check, and no scenario reported anything
  /// without a fault.
  [[nodiscard]] bool passed() const;
};

}  // namespace hpsim
