#include "naive_training.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "naive_graph.h"

namespace hpsim::test {
namespace {

std::vector<double> widen(const auto& values) {
  return {values.begin(), values.end()};
}

}  // namespace

template <class T>
NaiveTraining<T>::NaiveTraining(const Scenario& scenario, std::uint32_t seed, Fault fault)
    : scenario_(scenario), fault_(fault), ops_(seed) {
  for (const ParameterSpec& parameter : scenario.parameters) {
    Values values(static_cast<std::size_t>(num_elems(parameter.shape)));
    fill(values.data(), num_elems(parameter.shape), fill_key(parameter.name, scenario.data.seed), 0,
         parameter_fill(scenario.data, parameter));
    parameters_.push_back(std::move(values));
  }
  state_.resize(static_cast<std::size_t>(scenario.training.optimizer.num_state_tensors()));
  for (auto& tensors : state_) {
    for (const Values& values : parameters_)
      tensors.emplace_back(values.size());
  }
}

template <class T>
TrainingState NaiveTraining<T>::state() const {
  TrainingState result;
  for (const Values& values : parameters_)
    result.parameters.push_back(widen(values));
  for (const auto& tensors : state_) {
    result.state.emplace_back();
    for (const Values& values : tensors)
      result.state.back().push_back(widen(values));
  }
  return result;
}

template <class T>
std::vector<T> NaiveTraining<T>::draw(const std::string& name, const FillSpec& spec,
                                      std::int64_t sample, std::int64_t elems) const {
  Values values(static_cast<std::size_t>(elems));
  fill(values.data(), elems, fill_key(name, scenario_.data.seed),
       (step_ * scenario_.training.global_batch + sample) * elems, spec);
  return values;
}

template <class T>
T NaiveTraining<T>::mean_factor(double count) const {
  if (scenario_.training.loss_normalization == LossNormalization::Sum) return 1;
  double divisor = count;
  if (scenario_.is_exact()) {
    divisor = 1;
    while (divisor < count)
      divisor *= 2;
  }
  return static_cast<T>(1 / divisor);
}

template <class T>
NaiveTensor<T> NaiveTraining<T>::draw_rows(const std::string& name, const FillSpec& spec,
                                           std::int64_t rank, std::int64_t features) const {
  const std::int64_t positions = num_positions(scenario_.model);
  const std::int64_t samples = scenario_.local_batch();
  NaiveTensor<T> rows(samples * positions, features);
  rows.data.clear();
  for (std::int64_t b = 0; b < samples; ++b) {
    const Values values = draw(name, spec, rank * samples + b, positions * features);
    rows.data.insert(rows.data.end(), values.begin(), values.end());
  }
  return rows;
}

template <class T>
T NaiveTraining<T>::run_mse(std::int64_t rank, const NaiveTensor<T>& y, NaiveTensor<T>& dy) {
  const NaiveTensor<T> target = draw_rows("target", scenario_.data.target, rank, y.cols);
  const T factor = mean_factor(static_cast<double>(y.rows * y.cols));
  Values errors;
  for (std::size_t i = 0; i < y.data.size(); ++i) {
    errors.push_back(y.data[i] - target.data[i]);
    dy.data[i] = 2 * errors.back() * factor;
  }
  const auto error_at = [&](auto i) { return errors[i]; };
  return ops_.dot(y.rows * y.cols, error_at, error_at) * factor;
}

template <class T>
T NaiveTraining<T>::run_cross_entropy(std::int64_t rank, const NaiveTensor<T>& y,
                                      NaiveTensor<T>& dy) {
  const NaiveTensor<T> target = draw_rows("target", scenario_.data.target, rank, 1);
  const T factor = mean_factor(static_cast<double>(y.rows));
  const NaiveTensor<T> losses = ops_.cross_entropy(y, target);
  dy = ops_.cross_entropy_gradient(y, target);
  for (T& value : dy.data)
    value *= factor;
  return ops_.sum(y.rows, [&](auto i) { return losses.data[i]; }) * factor;
}

template <class T>
T NaiveTraining<T>::run_rank_modules(std::int64_t rank, std::vector<Values>& gradients) {
  NaiveGraph<T> graph(scenario_, ops_, parameters_);
  const std::int64_t features = features_along(scenario_.model).front();
  const NaiveTensor<T> y = graph.forward(draw_rows("input", scenario_.data.input, rank, features));
  NaiveTensor<T> dy = y;
  const T loss = scenario_.training.loss == LossKind::Mse ? run_mse(rank, y, dy)
                                                          : run_cross_entropy(rank, y, dy);
  const bool has_last = rank + 1 == scenario_.num_data_ranks();
  if (fault_ == Fault::MissingSample && has_last) {
    const std::int64_t elems = num_positions(scenario_.model) * y.cols;
    std::fill(dy.data.end() - elems, dy.data.end(), T(0));
  }
  graph.backward(std::move(dy), fault_ == Fault::OneTerm && rank == 0, gradients);
  return loss;
}

template <class T>
T NaiveTraining<T>::run_rank_elementwise(std::int64_t rank, std::vector<Values>& gradients) {
  const std::int64_t rows = scenario_.local_batch();
  T loss = 0;
  for (std::size_t p = 0; p < parameters_.size(); ++p) {
    const auto elems = static_cast<std::int64_t>(parameters_[p].size());
    const T factor = mean_factor(static_cast<double>(rows * elems));
    std::vector<Values> inputs;
    std::vector<Values> errors;
    Values squares;
    for (std::int64_t b = 0; b < rows; ++b) {
      const std::string& name = scenario_.parameters[p].name;
      const std::int64_t sample = rank * rows + b;
      inputs.push_back(draw(name + "/input", scenario_.data.input, sample, elems));
      errors.push_back(draw(name + "/target", scenario_.data.target, sample, elems));
      for (std::int64_t i = 0; i < elems; ++i) {
        errors[b][i] = parameters_[p][i] * inputs[b][i] - errors[b][i];
        squares.push_back(errors[b][i] * errors[b][i] * T(0.5));
        if (fault_ == Fault::MissingSample && sample + 1 == scenario_.training.global_batch) {
          errors[b][i] = 0;
        }
      }
    }
    const T one_term = fault_ == Fault::OneTerm && p == 0 && rank == 0 ? T(1.001) : T(1);
    loss += factor * ops_.dot(
                         static_cast<std::int64_t>(squares.size()),
                         [&](auto i) { return squares[i]; }, [](auto) { return T(1); });
    for (std::int64_t i = 0; i < elems; ++i) {
      gradients[p][i] =
          factor * ops_.dot(
                       rows, [&](auto b) { return errors[b][i] * (b + i == 0 ? one_term : T(1)); },
                       [&](auto b) { return inputs[b][i]; });
    }
  }
  return loss;
}

template <class T>
T NaiveTraining<T>::run_rank(std::int64_t rank, std::vector<Values>& gradients) {
  gradients.clear();
  for (const Values& values : parameters_)
    gradients.emplace_back(values.size());
  return scenario_.model.is_elementwise() ? run_rank_elementwise(rank, gradients)
                                          : run_rank_modules(rank, gradients);
}

template <class T>
void NaiveTraining<T>::update(std::size_t parameter, const Values& gradient) {
  const OptimizerSpec& spec = scenario_.training.optimizer;
  const double t = static_cast<double>(step_ + 1);
  Values& weight = parameters_[parameter];
  for (std::size_t i = 0; i < weight.size(); ++i) {
    T g = gradient[i];
    if (spec.kind == OptimizerSpec::Kind::AdamW) {
      weight[i] *= T(1 - spec.lr * spec.weight_decay);
    } else {
      g += T(spec.weight_decay) * weight[i];
    }
    if (spec.kind == OptimizerSpec::Kind::Sgd) {
      if (spec.momentum != 0) {
        T& buffer = state_[0][parameter][i];
        buffer = step_ == 0 ? g : T(spec.momentum) * buffer + g;
        g = spec.nesterov ? g + T(spec.momentum) * buffer : buffer;
      }
      weight[i] -= T(spec.lr) * g;
    } else {
      T& m = state_[0][parameter][i];
      T& v = state_[1][parameter][i];
      m = m + T(1 - spec.beta1) * (g - m);
      v = T(spec.beta2) * v + T(1 - spec.beta2) * g * g;
      const T denominator = std::sqrt(v) / T(std::sqrt(1 - std::pow(spec.beta2, t))) + T(spec.eps);
      weight[i] -= T(spec.lr / (1 - std::pow(spec.beta1, t))) * m / denominator;
    }
    if (spec.round_to)
      weight[i] = std::nearbyint(weight[i] / T(*spec.round_to)) * T(*spec.round_to);
    if (spec.clamp) weight[i] = std::clamp(weight[i], T(-*spec.clamp), T(*spec.clamp));
  }
}

template <class T>
NaiveStep NaiveTraining<T>::step() {
  const std::int64_t num_ranks = scenario_.num_data_ranks();
  std::vector<std::vector<Values>> of_rank(static_cast<std::size_t>(num_ranks));
  Values losses;
  for (std::int64_t rank = 0; rank < num_ranks; ++rank) {
    losses.push_back(run_rank(rank, of_rank[static_cast<std::size_t>(rank)]));
  }
  NaiveStep result;
  result.loss = static_cast<double>(
      mean_factor(static_cast<double>(num_ranks)) *
      ops_.dot(
          num_ranks, [&](auto r) { return losses[r]; }, [](auto) { return T(1); }));
  // k on what goes in, 1/F on what comes out.
  const T scaling = T(scenario_.fully_shard.gradient_scaling_factor);
  T divisor = 1;
  if (scenario_.fully_shard.gradient_divide_factor) {
    divisor = T(1 / *scenario_.fully_shard.gradient_divide_factor);
  } else if (scenario_.fully_shard.reduce_op == ReduceOp::Avg) {
    double count = static_cast<double>(num_ranks);
    if (scenario_.is_exact()) count = std::exp2(std::ceil(std::log2(count)));
    divisor = T(1 / count);
  }
  double norm_square = 0;
  for (std::size_t p = 0; p < parameters_.size(); ++p) {
    Values gradient(parameters_[p].size());
    for (std::size_t i = 0; i < gradient.size(); ++i) {
      gradient[i] = divisor * ops_.dot(
                                  num_ranks, [&](auto r) { return of_rank[r][p][i] * scaling; },
                                  [](auto) { return T(1); });
      if (fault_ == Fault::Doubled && p + 1 == parameters_.size()) gradient[i] *= 2;
      norm_square += static_cast<double>(gradient[i]) * static_cast<double>(gradient[i]);
    }
    result.gradients.push_back(widen(gradient));
    update(p, gradient);
  }
  result.grad_norm = std::sqrt(norm_square);
  result.after = state();
  ++step_;
  return result;
}

template class NaiveTraining<float>;
template class NaiveTraining<double>;

}  // namespace hpsim::test
