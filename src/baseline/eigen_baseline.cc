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
#include "baseline/gradient_norm.h"
#include "baseline/module_parameters.h"
#include "baseline/reference_pass.h"
#include "baseline/sample_data.h"
#include "baseline/tracked_arithmetic.h"
#include "baseline/tracked_optimizer.h"
#include "scenario/gradients.h"
#include "scenario/module_layouts.h"
#include "scenario/precision.h"

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

double norm_type(const Scenario& scenario) {
  const std::optional<ClipSpec>& clip = scenario.training.clip_grad_norm;
  return clip ? clip->norm_type : 2;
}

/// How often the optimizer has updated a parameter before `step`.
std::int64_t num_updates(const Scenario& scenario, int p, std::int64_t step) {
  std::int64_t count = 0;
  for (std::int64_t before = 0; before < step; ++before)
    count += has_gradient(scenario, p, before) ? 1 : 0;
  return count;
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
  TrackedScalar global_loss;
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

/// Optimizer state that is not given, or is empty, is zero.
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
    for (const auto& tensors : state) {
      if (tensors.at(i).empty()) {
        own.push_back({PlainTensor<double>(size.rows, size.cols), {}});
      } else {
        own.push_back(exact_tensor(parameter, tensors[i]));
      }
    }
    result.scatter.emplace_back();
    for (const auto& tensors : scatter)
      result.scatter.back().push_back(tensors.at(i));
    while (static_cast<int>(own.size()) < scenario.training.optimizer.num_state_tensors()) {
      own.push_back({PlainTensor<double>(size.rows, size.cols), {}});
    }
  }
  return result;
}

/// Rounds to the dtype of a parameter what is stored of it; a mean of what ranks stored is rounded
/// once more.
void round_stored(TrackedUpdate& update, DType dtype, bool is_mean) {
  round_tracked(update.parameter, dtype);
  if (is_mean) round_tracked(update.parameter, dtype);
  for (TrackedTensor& tensor : update.state)
    round_tracked(tensor, dtype);
}

/// Adam's spread is the largest change that the gradient's interval allows, and where narrow dtypes
/// leave the gradient's sign open a run is off by all of it. What is rounded then comes on top, by
/// deviations, and is as large as the weight that the run may have: nine roundings of the carrier
/// (update_adam), and that to the parameter's dtype.
void round_at_ends(const TrackedTensor& before, DType carrier, DType dtype, double confidence,
                   TrackedTensor& parameter) {
  Rounding on_top;
  on_top.is_shared = true;
  for (std::size_t i = 0; i < parameter.variance.size(); ++i) {
    double& variance = parameter.variance[i];
    const double largest = std::abs(parameter.value.data[i]) + confidence * std::sqrt(variance);
    const double operand = std::abs(before.value.data[i]) + largest;
    variance = on_top.join(variance, 9 * rounding_variance(carrier, operand));
    if (dtype != carrier) variance = on_top.join(variance, rounding_variance(dtype, largest));
  }
}

/// Parameter `p` and its state after a step; without a gradient they stay as they are.
TrackedUpdate updated(const Scenario& scenario, int p, std::int64_t step, const Rounding& rounding,
                      const TrackedState& before, const TrackedTensor& gradient,
                      const ClipFactor& clip, std::int64_t num_ranks) {
  const auto i = static_cast<std::size_t>(p);
  if (!has_gradient(scenario, p, step)) {
    return {before.parameters[i], before.state[i], before.scatter[i]};
  }
  const RankMeans ranks{
      .num_ranks = num_ranks,
      .num_samples = scenario.training.global_batch * num_positions(scenario.model),
      .scatter = &before.scatter[i]};
  const DType dtype = parameter_dtype(scenario, p);
  const bool is_rounded = dtype != carrier_dtype(scenario);
  TrackedTensor direction = clipped(gradient, clip, rounding);
  if (clip.may_clip && is_rounded) round_tracked(direction, dtype);
  TrackedUpdate update =
      update_tracked(scenario.training.optimizer, num_updates(scenario, p, step), rounding,
                     before.parameters[i], before.state[i], direction, ranks);
  if (is_rounded) round_stored(update, dtype, num_ranks > 1);
  if (is_emulated(scenario) && scenario.training.optimizer.kind != OptimizerSpec::Kind::Sgd) {
    round_at_ends(before.parameters[i], carrier_dtype(scenario), dtype, rounding.confidence,
                  update.parameter);
  }
  return update;
}

TrackedStep run_step(const Scenario& scenario, std::int64_t step, const Rounding& rounding,
                     const TrackedState& before) {
  TrackedArithmetic arithmetic(rounding);
  auto pass = ReferencePass<TrackedArithmetic>(scenario, step, arithmetic, before.parameters).run();
  TrackedStep result;
  result.loss = pass.loss;
  result.global_loss = pass.global_loss;
  result.grad_norm = norm_of(pass.gradients, norm_type(scenario));
  ClipFactor clip;
  if (const auto& spec = scenario.training.clip_grad_norm) {
    clip = clip_factor(*spec, result.grad_norm, rounding.confidence);
  }
  const std::vector<MeshDims> averaged = averaged_dims(scenario);
  for (std::size_t i = 0; i < before.parameters.size(); ++i) {
    TrackedUpdate update = updated(scenario, static_cast<int>(i), step, rounding, before,
                                   pass.gradients[i], clip, scenario.mesh.size(averaged[i]));
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
  return smallest_normal(carrier_dtype(scenario));
}

std::vector<double> copy_of(const AlignedVector<double>& values) {
  auto copy = zeroed_vector<double, std::allocator<double>>(values.size());
  std::copy(values.begin(), values.end(), copy.begin());
  return copy;
}

ReferenceTensor to_reference(const Scenario& scenario, TrackedTensor tensor,
                             const Rounding& rounding) {
  const double underflow = underflow_of(scenario);
  const bool is_exact = tensor.is_exact();
  ReferenceTensor result{copy_of(tensor.value.data), {}};
  tensor.value = {};
  result.spread = zeroed_vector<double, std::allocator<double>>(result.value.size());
  if (is_exact) return result;
  for (std::size_t i = 0; i < result.value.size(); ++i) {
    const double variance = tensor.variance[i];
    const bool is_zero = variance == 0 && result.value[i] == 0;
    result.spread[i] = is_zero ? 0 : spread_of(variance, rounding) + underflow;
  }
  return result;
}

ReferenceStep to_reference(const Scenario& scenario, TrackedStep step, const Rounding& rounding) {
  ReferenceStep result;
  result.loss = to_reference(step.loss, rounding);
  result.global_loss = to_reference(step.global_loss, rounding);
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

std::vector<std::vector<double>> values_of(const std::vector<TrackedTensor>& tensors) {
  std::vector<std::vector<double>> values;
  values.reserve(tensors.size());
  for (const TrackedTensor& tensor : tensors)
    values.push_back(copy_of(tensor.value.data));
  return values;
}

/// Whether errors are so large that a variance, which is first order in them, no longer bounds what
/// they do in the next steps: the limit of VACUOUS_BOUND.
bool is_large(const ReferenceScalar& scalar) {
  return !(scalar.spread <= std::abs(scalar.value) / 8);
}

ReferenceRun run_derived(const Scenario& scenario, const std::vector<TrainingState>& held) {
  ReferenceRun result;
  result.unit_roundoff = unit_roundoff(carrier_dtype(scenario));
  result.confidence = confidence_multiplier(count_compared(scenario));
  result.initial = draw_parameters(scenario);
  HPSIM_CHECK(held.empty() || static_cast<std::int64_t>(held.size()) >= scenario.training.steps,
              "{} states held for {} steps", held.size(), scenario.training.steps);
  const Rounding judged{result.unit_roundoff, result.confidence, false};
  const Rounding free{result.unit_roundoff, result.confidence, true};
  TrackedState state = exact_state(scenario, result.initial, {}, {});
  bool is_lost = false;
  for (std::int64_t step = 0; step < scenario.training.steps; ++step) {
    const bool is_held = step > 0 && !held.empty();
    // Before step 0 nothing has been rounded yet, so the free training is judged like the rest.
    TrackedStep done = run_step(scenario, step, step == 0 ? judged : free, state);
    result.free_parameters.push_back(values_of(done.after.parameters));
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
                      exact_state(scenario, before.parameters, before.state, before.scatter));
    } else {
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
ReferenceScalar exact_norm(const std::vector<PlainTensor<T>>& gradients, double p,
                           double confidence) {
  std::vector<TrackedTensor> values;
  values.reserve(gradients.size());
  for (const PlainTensor<T>& gradient : gradients) {
    values.push_back(
        {PlainTensor<double>(gradient.rows, gradient.cols,
                             AlignedVector<double>(gradient.data.begin(), gradient.data.end())),
         {}});
  }
  return to_reference(norm_of(values, p), Rounding{.confidence = confidence});
}

template <class T>
ReferenceRun run_exact(const Scenario& scenario) {
  ReferenceRun result;
  result.exact = true;
  result.unit_roundoff = unit_roundoff(carrier_dtype(scenario));
  result.confidence = confidence_multiplier(count_compared(scenario));
  result.initial = draw_parameters(scenario);
  const auto num_states = static_cast<std::size_t>(scenario.training.optimizer.num_state_tensors());
  std::vector<PlainTensor<T>> parameters;
  std::vector<std::vector<PlainTensor<T>>> state;  // [parameter][state tensor]
  for (std::size_t i = 0; i < scenario.parameters.size(); ++i) {
    const MatrixSize size = matrix_size(scenario.parameters[i]);
    const std::vector<double>& values = result.initial[i];
    parameters.emplace_back(size.rows, size.cols, AlignedVector<T>(values.begin(), values.end()));
    state.emplace_back(num_states, PlainTensor<T>(size.rows, size.cols));
  }
  for (std::int64_t step = 0; step < scenario.training.steps; ++step) {
    ExactArithmetic<T> arithmetic(scenario, step);
    const auto pass =
        ReferencePass<ExactArithmetic<T>>(scenario, step, arithmetic, parameters).run();
    ReferenceStep& reference = result.steps.emplace_back();
    reference.loss.value = static_cast<double>(pass.loss);
    reference.global_loss.value = static_cast<double>(pass.global_loss);
    reference.grad_norm = exact_norm(pass.gradients, norm_type(scenario), result.confidence);
    reference.state.resize(num_states);
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const int p = static_cast<int>(i);
      if (has_gradient(scenario, p, step)) {
        arithmetic.update(scenario.parameters[i].name, parameter_dtype(scenario, p),
                          num_updates(scenario, p, step), parameters[i], state[i],
                          pass.gradients[i]);
      }
      reference.gradients.push_back(exact_reference(pass.gradients[i]));
      reference.parameters.push_back(exact_reference(parameters[i]));
      for (std::size_t s = 0; s < num_states; ++s) {
        reference.state[s].push_back(exact_reference(state[i][s]));
      }
    }
    result.losses.push_back(reference.loss);
    result.grad_norms.push_back(reference.grad_norm);
    std::vector<std::vector<double>>& values = result.free_parameters.emplace_back();
    for (const ReferenceTensor& parameter : reference.parameters)
      values.push_back(parameter.value);
  }
  return result;
}

}  // namespace

ReferenceRun run_baseline(const Scenario& scenario, const std::vector<TrainingState>& held) {
  if (!scenario.is_exact()) return run_derived(scenario, held);
  return carrier_dtype(scenario) == DType::Float64 ? run_exact<double>(scenario)
                                                   : run_exact<float>(scenario);
}

}  // namespace hpsim
