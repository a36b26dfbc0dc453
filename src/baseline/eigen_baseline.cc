#include "baseline/eigen_baseline.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/check.h"
#include "base/confidence.h"
#include "base/dtype.h"
#include "baseline/exact_arithmetic.h"
#include "baseline/expert_routes.h"
#include "baseline/module_parameters.h"
#include "baseline/reference_pass.h"
#include "baseline/sample_data.h"
#include "baseline/tracked_arithmetic.h"
#include "baseline/tracked_optimizer.h"
#include "scenario/module_layouts.h"

namespace hpsim {
namespace {

/// Losses and norms, and of every parameter gradient, value after the update and state.
std::int64_t count_compared(const Scenario& scenario) {
  std::int64_t elems = 0;
  for (const ParameterSpec& parameter : scenario.parameters)
    elems += num_elems(parameter.shape);
  return scenario.training.steps *
         (elems * (2 + scenario.training.optimizer.num_state_tensors()) + 2);
}

double spread_of(double variance, const Rounding& rounding) {
  return rounding.confidence * std::sqrt(variance);
}

/// The 2-norm. Errors of elements are joined as if all pulled the same way, |delta norm| <=
/// |delta G|; the sum of squares itself is made in float64, whatever the dtype.
TrackedScalar norm_of(const std::vector<TrackedTensor>& gradients) {
  TrackedSum squares;
  double inherited = 0;
  for (const TrackedTensor& gradient : gradients) {
    const auto square = gradient.value.map().array().square();
    squares.sum += square.sum();
    squares.sum_of_squares += square.square().sum();
    squares.count += static_cast<double>(gradient.value.elems());
    if (!gradient.is_exact()) inherited += gradient.variance_map().sum();
  }
  constexpr double kUnit = 0x1p-53 * 0x1p-53 * 2 / 3;  // the run's sum and the baseline's
  const double of_sum =
      kUnit * squares.count * (squares.sum_of_squares + squares.sum * squares.sum);
  const double norm = std::sqrt(squares.sum);
  // d norm = d sum / (2 norm).
  return {norm, inherited + (squares.sum == 0 ? 0 : of_sum / (4 * squares.sum))};
}

/// Parameters and optimizer state between steps.
struct TrackedState {
  std::vector<TrackedTensor> parameters;
  std::vector<std::vector<TrackedTensor>> state;  ///< [parameter][state tensor]
  /// Likewise: see TrackedUpdate. Nothing for a parameter: none.
  std::vector<std::vector<std::vector<double>>> scatter;
};

struct TrackedStep {
  TrackedScalar loss;
  TrackedScalar grad_norm;
  std::vector<TrackedTensor> gradients;
  std::vector<ExpertRoutes> routes;
  TrackedState after;
};

bool is_certain(const TrackedStep& step) {
  return std::none_of(step.routes.begin(), step.routes.end(),
                      [](const ExpertRoutes& routes) { return routes.near_tie.has_value(); });
}

TrackedTensor exact_tensor(const ParameterSpec& parameter, const std::vector<double>& values) {
  const MatrixSize size = matrix_size(parameter);
  HPSIM_CHECK(static_cast<std::int64_t>(values.size()) == size.rows * size.cols,
              "\"{}\" has {} values, not {}", parameter.name, values.size(), size.rows * size.cols);
  TrackedTensor tensor{PlainTensor<double>(size.rows, size.cols), {}};
  std::copy(values.begin(), values.end(), tensor.value.data.begin());
  return tensor;
}

/// Optimizer state that is not given is zero.
TrackedState exact_state(const Scenario& scenario,
                         const std::vector<std::vector<double>>& parameters,
                         const std::vector<std::vector<std::vector<double>>>& state,
                         const std::vector<std::vector<std::vector<double>>>& scatter) {
  TrackedState result;
  HPSIM_CHECK(parameters.size() == scenario.parameters.size(), "{} parameters, not {}",
              parameters.size(), scenario.parameters.size());
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const ParameterSpec& parameter = scenario.parameters[i];
    const MatrixSize size = matrix_size(parameter);
    result.parameters.push_back(exact_tensor(parameter, parameters[i]));
    std::vector<TrackedTensor>& own = result.state.emplace_back();
    for (const auto& tensors : state)
      own.push_back(exact_tensor(parameter, tensors.at(i)));
    result.scatter.emplace_back();
    for (const auto& tensors : scatter)
      result.scatter.back().push_back(tensors.at(i));
    while (static_cast<int>(own.size()) < scenario.training.optimizer.num_state_tensors()) {
      own.push_back({PlainTensor<double>(size.rows, size.cols), {}});
    }
  }
  return result;
}

TrackedStep run_step(const Scenario& scenario, std::int64_t step, const Rounding& rounding,
                     const TrackedState& before, bool updates) {
  TrackedArithmetic arithmetic(rounding);
  auto pass = ReferencePass<TrackedArithmetic>(scenario, step, arithmetic, before.parameters).run();
  TrackedStep result;
  result.loss = pass.loss;
  result.grad_norm = norm_of(pass.gradients);
  const std::vector<MeshDims> averaged = averaged_dims(scenario);
  for (std::size_t i = 0; updates && i < before.parameters.size(); ++i) {
    const RankMeans ranks{
        .num_ranks = scenario.mesh.size(averaged[i]),
        .num_samples = scenario.training.global_batch * num_positions(scenario.model),
        .scatter = &before.scatter[i]};
    TrackedUpdate update =
        update_tracked(scenario.training.optimizer, step, rounding, before.parameters[i],
                       before.state[i], pass.gradients[i], ranks);
    result.after.parameters.push_back(std::move(update.parameter));
    result.after.state.push_back(std::move(update.state));
    result.after.scatter.push_back(std::move(update.scatter));
  }
  result.gradients = std::move(pass.gradients);
  result.routes = std::move(pass.routes);
  return result;
}

ReferenceScalar to_reference(const TrackedScalar& scalar, const Rounding& rounding) {
  return {scalar.value, spread_of(scalar.variance, rounding)};
}

/// What underflow may lose besides: less than the smallest normal number.
double underflow_of(const Scenario& scenario) {
  return scenario.numerics.dtype == DType::Float64 ? 0x1p-1022 : 0x1p-126;
}

ReferenceTensor to_reference(const Scenario& scenario, TrackedTensor tensor,
                             const Rounding& rounding) {
  const double underflow = underflow_of(scenario);
  ReferenceTensor result{std::move(tensor.value.data), std::move(tensor.variance)};
  result.spread.resize(result.value.size());
  for (std::size_t i = 0; i < result.value.size(); ++i) {
    const double variance = result.spread[i];
    const bool is_zero = variance == 0 && result.value[i] == 0;
    result.spread[i] = is_zero ? 0 : spread_of(variance, rounding) + underflow;
  }
  return result;
}

ReferenceStep to_reference(const Scenario& scenario, TrackedStep step, const Rounding& rounding) {
  ReferenceStep result;
  result.loss = to_reference(step.loss, rounding);
  result.grad_norm = to_reference(step.grad_norm, rounding);
  result.state.resize(static_cast<std::size_t>(scenario.training.optimizer.num_state_tensors()));
  for (std::size_t i = 0; i < step.gradients.size(); ++i) {
    result.gradients.push_back(to_reference(scenario, std::move(step.gradients[i]), rounding));
    result.parameters.push_back(
        to_reference(scenario, std::move(step.after.parameters[i]), rounding));
    for (std::size_t s = 0; s < result.state.size(); ++s) {
      result.state[s].push_back(
          to_reference(scenario, std::move(step.after.state[i][s]), rounding));
    }
  }
  for (ExpertRoutes& routes : step.routes)
    result.routes.push_back(std::move(routes.experts));
  return result;
}

/// Whether errors are so large that a variance, which is first order in them, no longer bounds what
/// they do in the next steps: the limit of VACUOUS_BOUND.
bool is_large(const ReferenceScalar& scalar) {
  return !(scalar.spread <= std::abs(scalar.value) / 8);
}

ReferenceRun run_derived(const Scenario& scenario, const std::vector<TrainingState>& held) {
  ReferenceRun result;
  result.unit_roundoff = unit_roundoff(scenario.numerics.dtype);
  result.confidence = confidence_multiplier(count_compared(scenario));
  result.initial = draw_parameters(scenario);
  HPSIM_CHECK(held.empty() || static_cast<std::int64_t>(held.size()) >= scenario.training.steps,
              "{} states held for {} steps", held.size(), scenario.training.steps);
  const Rounding judged{result.unit_roundoff, result.confidence, false};
  const Rounding free{result.unit_roundoff, result.confidence, true};
  TrackedState state = exact_state(scenario, result.initial, {}, {});
  bool is_lost = false;
  for (std::int64_t step = 0; step < scenario.training.steps; ++step) {
    const bool is_last = step + 1 == scenario.training.steps;
    const bool is_held = step > 0 && !held.empty();
    // Before step 0 nothing has been rounded yet, so the free training is judged like the rest.
    TrackedStep done =
        run_step(scenario, step, step == 0 ? judged : free, state, !(is_held && is_last));
    result.losses.push_back(to_reference(done.loss, judged));
    result.grad_norms.push_back(to_reference(done.grad_norm, judged));
    is_lost = is_lost || !is_certain(done) ||
              (step > 0 && (is_large(result.losses.back()) || is_large(result.grad_norms.back())));
    if (is_lost) {
      constexpr double kUnbounded = std::numeric_limits<double>::infinity();
      result.losses.back().spread = result.grad_norms.back().spread = kUnbounded;
    }
    if (is_held) {
      state = std::move(done.after);
      done = {};
      const TrainingState& before = held[static_cast<std::size_t>(step)];
      done = run_step(scenario, step, judged,
                      exact_state(scenario, before.parameters, before.state, before.scatter), true);
    } else if (!is_last) {
      state = done.after;
    }
    require_certain(scenario, step, done.routes);
    result.steps.push_back(to_reference(scenario, std::move(done), judged));
  }
  return result;
}

template <class T>
ReferenceTensor exact_reference(const PlainTensor<T>& tensor) {
  return {std::vector<double>(tensor.data.begin(), tensor.data.end()),
          std::vector<double>(tensor.data.size())};
}

/// The norm of exact gradients: only the sum of squares and the root round.
template <class T>
ReferenceScalar exact_norm(const std::vector<PlainTensor<T>>& gradients, double confidence) {
  std::vector<TrackedTensor> values;
  for (const PlainTensor<T>& gradient : gradients) {
    values.push_back({PlainTensor<double>(gradient.rows, gradient.cols,
                                          {gradient.data.begin(), gradient.data.end()}),
                      {}});
  }
  return to_reference(norm_of(values), Rounding{.confidence = confidence});
}

template <class T>
ReferenceRun run_exact(const Scenario& scenario) {
  ReferenceRun result;
  result.exact = true;
  result.unit_roundoff = unit_roundoff(scenario.numerics.dtype);
  result.confidence = confidence_multiplier(count_compared(scenario));
  result.initial = draw_parameters(scenario);
  const auto num_states = static_cast<std::size_t>(scenario.training.optimizer.num_state_tensors());
  std::vector<PlainTensor<T>> parameters;
  std::vector<std::vector<PlainTensor<T>>> state;  // [parameter][state tensor]
  for (std::size_t i = 0; i < scenario.parameters.size(); ++i) {
    const MatrixSize size = matrix_size(scenario.parameters[i]);
    const std::vector<double>& values = result.initial[i];
    parameters.emplace_back(size.rows, size.cols, std::vector<T>(values.begin(), values.end()));
    state.emplace_back(num_states, PlainTensor<T>(size.rows, size.cols));
  }
  for (std::int64_t step = 0; step < scenario.training.steps; ++step) {
    ExactArithmetic<T> arithmetic(scenario, step);
    const auto pass =
        ReferencePass<ExactArithmetic<T>>(scenario, step, arithmetic, parameters).run();
    ReferenceStep& reference = result.steps.emplace_back();
    reference.loss.value = static_cast<double>(pass.loss);
    reference.grad_norm = exact_norm(pass.gradients, result.confidence);
    reference.state.resize(num_states);
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      arithmetic.update(scenario.parameters[i].name, parameters[i], state[i], pass.gradients[i]);
      reference.gradients.push_back(exact_reference(pass.gradients[i]));
      reference.parameters.push_back(exact_reference(parameters[i]));
      for (std::size_t s = 0; s < num_states; ++s) {
        reference.state[s].push_back(exact_reference(state[i][s]));
      }
    }
    result.losses.push_back(reference.loss);
    result.grad_norms.push_back(reference.grad_norm);
  }
  return result;
}

}  // namespace

ReferenceRun run_baseline(const Scenario& scenario, const std::vector<TrainingState>& held) {
  if (!scenario.is_exact()) return run_derived(scenario, held);
  return scenario.numerics.dtype == DType::Float64 ? run_exact<double>(scenario)
                                                   : run_exact<float>(scenario);
}

}  // namespace hpsim
