#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "scenario/scenario.h"
#include "spoiled_run.h"
#include "verify/cause_sources.h"
#include "verify/verdict.h"

namespace hpsim::test {

/// What the baseline answers; counts how often it is asked.
struct CountedSources {
  explicit CountedSources(const Scenario& scenario, double confidence);

  CauseSources sources;
  int num_contributions = 0;
  int num_gradients = 0;
};

/// A run that a test spoils, with all that a failed check may ask.
struct ExplainedRun {
  explicit ExplainedRun(const Scenario& scenario, const Spoiling& spoiling = {});
  /// Carries out another plan than the one by which it is judged.
  ExplainedRun(const Scenario& told, const Scenario& done);

  [[nodiscard]] Verdict judge() const;
  [[nodiscard]] float* gradient(std::int64_t rank, std::int64_t step, int p) {
    return reinterpret_cast<float*>(run.bytes(run.layout().gradient(Rank{rank}, step, p)));
  }

  VerifiedPlan plan;
  RunResult run;
};

/// What the first error of a check says, of those of this parameter and step, if they are given.
[[nodiscard]] std::vector<std::string> explanations(const Verdict& verdict, CheckId check,
                                                    const std::string& param = "",
                                                    std::int64_t step = -1);

/// What members of a group sent in each collective, and may get in place of what is due.
class SentBuffers {
 public:
  void keep(const Step& step, Rank rank, const CollectiveCall& call);
  [[nodiscard]] const std::vector<float>& of(const CollectiveCall& call, Rank rank) const {
    return buffers_.at({call.plan_step, rank.value});
  }

 private:
  std::map<std::pair<std::int64_t, std::int64_t>, std::vector<float>> buffers_;
};

}  // namespace hpsim::test
