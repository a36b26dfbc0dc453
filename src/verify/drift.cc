#include "verify/drift.h"

#include <cmath>
#include <limits>

#include "base/check.h"

namespace hpsim {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

}  // namespace

StepDrift drift_between(const std::vector<std::vector<double>>& run,
                        const std::vector<std::vector<double>>& baseline) {
  HPSIM_CHECK(run.size() == baseline.size(), "{} parameters, the baseline has {}", run.size(),
              baseline.size());
  StepDrift drift;
  double difference_squares = 0;
  double squares = 0;
  for (std::size_t p = 0; p < run.size(); ++p) {
    HPSIM_CHECK(run[p].size() == baseline[p].size(), "{} elements of parameter {}, not {}",
                run[p].size(), p, baseline[p].size());
    for (std::size_t i = 0; i < run[p].size(); ++i) {
      const double difference = std::abs(run[p][i] - baseline[p][i]);
      difference_squares += difference * difference;
      squares += baseline[p][i] * baseline[p][i];
      // A NaN is as far as can be.
      const double far = std::isnan(difference) ? kInfinity : difference;
      if (far <= drift.largest) continue;
      drift.largest = far;
      drift.parameter = static_cast<int>(p);
    }
  }
  if (difference_squares != 0) drift.relative = std::sqrt(difference_squares / squares);
  if (std::isnan(drift.relative)) drift.relative = kInfinity;
  return drift;
}

std::vector<StepDrift> measure_drift(const Plan& plan, const RunResult& run,
                                     const ReferenceRun& reference) {
  const std::int64_t num_steps = run.layout().num_steps();
  if (reference.free_parameters.empty()) return {};
  HPSIM_CHECK(static_cast<std::int64_t>(reference.free_parameters.size()) == num_steps,
              "the baseline trained {} steps, not {}", reference.free_parameters.size(), num_steps);
  std::vector<StepDrift> drift;
  for (std::int64_t step = 0; step < num_steps; ++step) {
    drift.push_back(drift_between(assemble_state(plan, run, step + 1).parameters,
                                  reference.free_parameters[static_cast<std::size_t>(step)]));
  }
  return drift;
}

}  // namespace hpsim
