#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "scenario/scenario.h"
#include "trace/contributions.h"
#include "trace/reference_run.h"

namespace hpsim {

/// What explanations ask of the baseline once a check has failed; empty functions: nobody answers,
/// and what would need them is not sought.
struct CauseSources {
  using Tensors = std::vector<std::vector<double>>;

  /// Numbers that `contributions` would make.
  std::function<double(const ContributionRequest&)> cost;
  /// The terms of a gradient, from the parameters held before its step.
  std::function<Contributions(const ContributionRequest&, const Tensors& parameters)> contributions;
  /// Loss and gradients that another scenario has in a step, from these parameters.
  std::function<ReferenceStep(const Scenario&, std::int64_t step, const Tensors& parameters)>
      gradients;
};

}  // namespace hpsim
