// Gradients of the float64 program against central differences of its losses. The tolerance is
// computed: the truncation error from two widths, the rounding error from the losses' own bounds.

#include <algorithm>
#include <cmath>
#include <vector>

#include "baseline/eigen_baseline.h"
#include "support/catch.h"
#include "support/scenarios.h"

namespace hpsim {
namespace {

using test::activation;
using test::linear;

constexpr double kUnit = 0x1p-53;

/// The second of two steps, judged from the given parameters.
ReferenceStep step_from(const Scenario& scenario, const TrainingState& state) {
  return run_baseline(scenario, {state, state}).steps[1];
}

struct Difference {
  double value = 0;
  double tolerance = 0;
};

/// (L(w + h) - L(w - h)) / 2h in one element. Its truncation error is about a third of its
/// difference to the one of width 2h; the losses are off by their bounds.
Difference central_difference(const Scenario& scenario, TrainingState state, std::size_t parameter,
                              std::size_t element) {
  constexpr double kWidth = 0x1p-16;
  const auto quotient = [&](double h) {
    const double centre = state.parameters[parameter][element];
    state.parameters[parameter][element] = centre + h;
    const ReferenceScalar above = step_from(scenario, state).loss;
    state.parameters[parameter][element] = centre - h;
    const ReferenceScalar below = step_from(scenario, state).loss;
    state.parameters[parameter][element] = centre;
    const double rounding =
        above.spread + below.spread + 4 * kUnit * (std::abs(above.value) + std::abs(below.value));
    return Difference{(above.value - below.value) / (2 * h), rounding / (2 * h)};
  };
  const Difference narrow = quotient(kWidth);
  const Difference wide = quotient(2 * kWidth);
  return {narrow.value, std::abs(narrow.value - wide.value) + narrow.tolerance + wide.tolerance};
}

void check_gradients(ModelSpec model, LossNormalization normalization) {
  Scenario scenario = test::fsdp_scenario(std::move(model), 2);
  scenario.numerics.dtype = DType::Float64;
  scenario.training.steps = 2;
  scenario.training.global_batch = 6;
  scenario.training.loss_normalization = normalization;
  // The gradient of the reported loss: avg for the mean over ranks, sum for sums.
  if (normalization == LossNormalization::Sum) scenario.fully_shard.reduce_op = ReduceOp::Sum;
  TrainingState state;
  state.parameters = run_baseline(scenario).initial;
  const ReferenceStep step = step_from(scenario, state);
  for (std::size_t p = 0; p < scenario.parameters.size(); ++p) {
    const std::vector<double>& gradient = step.gradients[p].value;
    double largest = 0;
    double largest_tolerance = 0;
    for (std::size_t i = 0; i < gradient.size(); ++i) {
      const Difference difference = central_difference(scenario, state, p, i);
      INFO(scenario.parameters[p].name << " element " << i);
      CHECK(std::abs(difference.value - gradient[i]) <= difference.tolerance);
      largest = std::max(largest, std::abs(gradient[i]));
      largest_tolerance = std::max(largest_tolerance, difference.tolerance);
    }
    // A gradient that is wrong by one part in a thousand would be seen.
    CHECK(largest_tolerance < 1e-3 * largest);
  }
}

TEST_CASE("gradients of every module type are derivatives of the loss") {
  const std::vector<ModuleSpec> activations = {
      activation("a", ModuleType::Relu), activation("a", ModuleType::Tanh),
      activation("a", ModuleType::Silu), activation("a", ModuleType::Gelu),
      activation("a", ModuleType::Gelu, true)};
  for (const auto normalization : {LossNormalization::LocalMean, LossNormalization::Sum}) {
    for (const ModuleSpec& spec : activations) {
      INFO(name_of(spec.type) << (spec.tanh_approximation ? " tanh" : ""));
      ModuleSpec last = spec;
      last.name += "2";
      check_gradients(
          test::modules_model({linear("l0", 5, 6), spec, linear("l1", 6, 4, false), last}),
          normalization);
    }
    check_gradients(test::modules_model({activation("first", ModuleType::Tanh), linear("l0", 5, 3),
                                         linear("l1", 3, 7)}),
                    normalization);
    check_gradients(test::elementwise_model({{"a", {3, 2}}, {"b", {5}}}), normalization);
  }
}

}  // namespace
}  // namespace hpsim
