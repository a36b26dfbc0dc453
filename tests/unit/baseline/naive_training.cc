#include "naive_training.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace hpsim::test {
namespace {

template <class T>
T activate(const ModuleSpec& spec, T x) {
  switch (spec.type) {
    case ModuleType::Relu:
      return x > 0 ? x : T(0);
    case ModuleType::Tanh:
      return std::tanh(x);
    case ModuleType::Silu:
      return x / (1 + std::exp(-x));
    default:
      break;
  }
  if (!spec.tanh_approximation) return T(0.5) * x * (1 + std::erf(x * T(M_SQRT1_2)));
  return T(0.5) * x * (1 + std::tanh(T(M_2_SQRTPI * M_SQRT1_2) * (x + T(0.044715) * x * x * x)));
}

template <class T>
T activation_slope(const ModuleSpec& spec, T x) {
  switch (spec.type) {
    case ModuleType::Relu:
      return x > 0 ? T(1) : T(0);
    case ModuleType::Tanh: {
      const T y = std::tanh(x);
      return 1 - y * y;
    }
    case ModuleType::Silu: {
      const T s = 1 / (1 + std::exp(-x));
      return s + x * s * (1 - s);
    }
    default:
      break;
  }
  if (!spec.tanh_approximation) {
    return T(0.5) * (1 + std::erf(x * T(M_SQRT1_2))) +
           x * std::exp(-x * x / 2) * T(0.5 * M_2_SQRTPI * M_SQRT1_2);
  }
  const T c = T(M_2_SQRTPI * M_SQRT1_2);
  const T t = std::tanh(c * (x + T(0.044715) * x * x * x));
  return T(0.5) * (1 + t) + T(0.5) * x * (1 - t * t) * c * (1 + T(3 * 0.044715) * x * x);
}

std::vector<double> widen(const auto& values) {
  return {values.begin(), values.end()};
}

}  // namespace

template <class T>
NaiveTraining<T>::NaiveTraining(const Scenario& scenario, std::uint32_t seed, Fault fault)
    : scenario_(scenario),
      fault_(fault),
      random_(seed),
      shuffles_(seed % 4 != 0),
      fuses_(seed % 2 != 0) {
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
template <class A, class B>
T NaiveTraining<T>::dot(std::int64_t count, const A& a, const B& b) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  if (shuffles_) std::shuffle(order.begin(), order.end(), random_);
  T sum = 0;
  for (const std::int64_t i : order) {
    sum = fuses_ ? std::fma(a(i), b(i), sum) : sum + a(i) * b(i);
  }
  return sum;
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
std::size_t NaiveTraining<T>::first_parameter(std::size_t module) const {
  std::size_t p = 0;
  while (scenario_.parameters[p].module != static_cast<int>(module))
    ++p;
  return p;
}

template <class T>
std::vector<std::vector<std::vector<T>>> NaiveTraining<T>::forward(std::int64_t rank) {
  const auto& modules = scenario_.model.modules;
  const std::int64_t rows = scenario_.local_batch();
  std::vector<std::vector<Values>> inputs(modules.size() + 1);
  for (std::int64_t b = 0; b < rows; ++b) {
    inputs[0].push_back(
        draw("input", scenario_.data.input, rank * rows + b, modules[0].in_features));
  }
  for (std::size_t m = 0; m < modules.size(); ++m) {
    const ModuleSpec& spec = modules[m];
    for (const Values& x : inputs[m]) {
      Values y = x;
      if (spec.type == ModuleType::Linear) {
        const std::size_t p = first_parameter(m);
        y.assign(static_cast<std::size_t>(spec.out_features), T(0));
        for (std::int64_t o = 0; o < spec.out_features; ++o) {
          const T* w = parameters_[p].data() + o * spec.in_features;
          y[o] = dot(
              spec.in_features, [&](auto i) { return x[i]; }, [&](auto i) { return w[i]; });
          if (spec.bias) y[o] += parameters_[p + 1][o];
        }
      } else {
        for (T& value : y)
          value = activate(spec, value);
      }
      inputs[m + 1].push_back(std::move(y));
    }
  }
  return inputs;
}

template <class T>
void NaiveTraining<T>::backward_linear(std::size_t module, bool is_faulty,
                                       const std::vector<Values>& x, std::vector<Values>& dy,
                                       std::vector<Values>& gradients) {
  const ModuleSpec& spec = scenario_.model.modules[module];
  const auto rows = static_cast<std::int64_t>(x.size());
  const std::size_t p = first_parameter(module);
  const T one_term = is_faulty ? T(1.001) : T(1);
  for (std::int64_t o = 0; o < spec.out_features; ++o) {
    for (std::int64_t i = 0; i < spec.in_features; ++i) {
      gradients[p][o * spec.in_features + i] = dot(
          rows, [&](auto b) { return dy[b][o] * (b + o + i == 0 ? one_term : T(1)); },
          [&](auto b) { return x[b][i]; });
    }
    if (spec.bias) {
      gradients[p + 1][o] = dot(
          rows, [&](auto b) { return dy[b][o]; }, [](auto) { return T(1); });
    }
  }
  std::vector<Values> dx = x;
  for (std::int64_t b = 0; b < rows; ++b) {
    for (std::int64_t i = 0; i < spec.in_features; ++i) {
      dx[b][i] = dot(
          spec.out_features, [&](auto o) { return dy[b][o]; },
          [&](auto o) { return parameters_[p][o * spec.in_features + i]; });
    }
  }
  dy = std::move(dx);
}

template <class T>
T NaiveTraining<T>::run_rank_modules(std::int64_t rank, std::vector<Values>& gradients) {
  const auto& modules = scenario_.model.modules;
  const std::int64_t rows = scenario_.local_batch();
  const std::vector<std::vector<Values>> inputs = forward(rank);
  const auto outputs = static_cast<std::int64_t>(inputs.back()[0].size());
  const T factor = mean_factor(static_cast<double>(rows * outputs));
  std::vector<Values> dy = inputs.back();
  Values errors;
  for (std::int64_t b = 0; b < rows; ++b) {
    const Values target = draw("target", scenario_.data.target, rank * rows + b, outputs);
    const bool is_missing =
        fault_ == Fault::MissingSample && rank * rows + b + 1 == scenario_.training.global_batch;
    for (std::int64_t o = 0; o < outputs; ++o) {
      errors.push_back(dy[b][o] - target[o]);
      dy[b][o] = is_missing ? T(0) : 2 * errors.back() * factor;
    }
  }
  const auto error_at = [&](auto i) { return errors[i]; };
  const T loss = dot(static_cast<std::int64_t>(errors.size()), error_at, error_at);
  for (std::size_t m = modules.size(); m-- > 0;) {
    if (modules[m].type == ModuleType::Linear) {
      const bool is_faulty = fault_ == Fault::OneTerm && m == 0 && rank == 0;
      backward_linear(m, is_faulty, inputs[m], dy, gradients);
      continue;
    }
    for (std::int64_t b = 0; b < rows; ++b) {
      for (std::size_t i = 0; i < dy[b].size(); ++i) {
        dy[b][i] *= activation_slope(modules[m], inputs[m][b][i]);
      }
    }
  }
  return loss * factor;
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
    loss += factor * dot(
                         static_cast<std::int64_t>(squares.size()),
                         [&](auto i) { return squares[i]; }, [](auto) { return T(1); });
    for (std::int64_t i = 0; i < elems; ++i) {
      gradients[p][i] =
          factor * dot(
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
      dot(
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
      gradient[i] = divisor * dot(
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
