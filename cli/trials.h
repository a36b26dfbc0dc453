#pragma once

#include <optional>
#include <vector>

#include "exec/executor.h"
#include "mutation/kill_matrix.h"
#include "plan/plan.h"
#include "scenario/scenario.h"
#include "trace/reference_run.h"
#include "trace/training_state.h"

namespace hpsim {

/// One scenario under planted faults. What is alike in all its runs, the plan and the baseline, is
/// made once. Reports are not made, and `expect` is not looked at.
class TrialBench {
 public:
  /// Meshes of more than this many ranks are planned and verified, and not run.
  static constexpr std::int64_t kMostRanks = 64;

  TrialBench(Scenario scenario, Backend backend, double timeout_s);

  /// The trials of these faults, and what is found without any. A fault after which every rank
  /// recorded the same as without had no place: it made no difference.
  [[nodiscard]] ScenarioTrials run(const std::vector<const FaultKind*>& faults);

 private:
  struct Found {
    std::vector<CaughtAs> catches;
    std::string failure;
    bool is_as_clean = false;  ///< every rank recorded what it records without faults
  };

  [[nodiscard]] bool runs() const;
  [[nodiscard]] bool has_place_for(const FaultKind& kind, const FaultSpec& fault) const;
  [[nodiscard]] Found judge(const std::vector<FaultSpec>& faults);
  [[nodiscard]] Found judge_plan(const std::vector<FaultSpec>& faults);
  [[nodiscard]] const ReferenceRun& reference_for(const Plan& plan, const RunResult& run);

  Plan plan_;  ///< without faults
  Backend backend_;
  RunOptions options_;
  std::vector<TrainingState> states_;  ///< for which `reference_` was made
  std::optional<ReferenceRun> reference_;
  ReferenceRun other_reference_;
  std::optional<RunResult> clean_;
};

}  // namespace hpsim
