#pragma once

#include <vector>

#include "scenario/scenario.h"
#include "trace/contributions.h"
#include "trace/reference_run.h"

namespace hpsim {

/// The terms of a gradient, in float64, from `parameters`, which the run held before that step: one
/// forward and backward pass of the whole batch, in which the gradient of that parameter is
/// computed again for the rows of each term.
/// \pre contribution_cost(scenario, request) numbers fit memory
[[nodiscard]] Contributions contributions_to(const Scenario& scenario,
                                             const ContributionRequest& request,
                                             const std::vector<std::vector<double>>& parameters);

/// Numbers that contributions_to makes: terms times elements of the parameter.
[[nodiscard]] double contribution_cost(const Scenario& scenario,
                                       const ContributionRequest& request);

/// Loss and gradients of one step, from `parameters`, with their bounds for k = `confidence`:
/// nothing is updated. It says what a training would compute that differs from the one that is
/// asked for. In exact mode there are no bounds, as everywhere.
[[nodiscard]] ReferenceStep gradients_of_step(const Scenario& scenario, std::int64_t step,
                                              const std::vector<std::vector<double>>& parameters,
                                              double confidence);

}  // namespace hpsim
