#include "naive_training.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/dtype.h"
#include "naive_graph.h"
#include "scenario/gradients.h"
#include "scenario/precision.h"

namespace hpsim::test {
namespace {

std::vector<double> widen(const auto& values) {
  return {values.begin(), values.end()};
}

template <class T>
void cast(DType dtype, std::vector<T>& values) {
  round_to(dtype, values.data(), static_cast<std::int64_t>(values.size()));
}

}  // namespace

template <class T>
NaiveTraining<T>::NaiveTraining(const Scenario& scenario, std::uint32_t seed, Fault fault)
    : scenario_(scenario), fault_(fault), ops_(seed) {
  for (std::size_t p = 0; p < scenario.parameters.size(); ++p) {
    const ParameterSpec& parameter = scenario.parameters[p];
    parameters_.push_back(draw(parameter.name, parameter_fill(scenario.data, parameter),
                               parameter_dtype(scenario, static_cast<int>(p)), 0,
                               num_elems(parameter.shape)));
  }
  num_updates_.resize(parameters_.size());
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
std::vector<T> NaiveTraining<T>::draw(const std::string& name, const FillSpec& spec, DType dtype,
                                      std::int64_t first, std::int64_t elems) const {
  std::vector<double> values(static_cast<std::size_t>(elems));
  fill(values.data(), elems, fill_key(name, scenario_.data.seed), first, spec);
  if (spec.kind != FillSpec::Kind::Token) cast(dtype, values);
  return {values.begin(), values.end()};
}

template <class T>
std::vector<T> NaiveTraining<T>::draw_sample(const std::string& name, const FillSpec& spec,
                                             std::int64_t sample, std::int64_t elems) const {
  return draw(name, spec, scenario_.numerics.dtype,
              (step_ * scenario_.training.global_batch + sample) * elems, elems);
}

template <class T>
std::int64_t NaiveTraining<T>::first_sample(std::int64_t rank, std::int64_t micro_batch) const {
  const std::int64_t pieces = scenario_.num_data_ranks() * scenario_.training.micro_batches;
  return (rank * scenario_.training.micro_batches + micro_batch) *
         (scenario_.training.global_batch / pieces);
}

template <class T>
std::int64_t NaiveTraining<T>::num_valid(std::int64_t rank, std::int64_t micro_batch) const {
  if (scenario_.data.tokens.empty()) {
    return scenario_.micro_batch_size() * num_positions(scenario_.model);
  }
  return scenario_.data
      .tokens[static_cast<std::size_t>(rank)][static_cast<std::size_t>(micro_batch)];
}

/// 1 / count; in exact mode 1 / the next power of two.
template <class T>
T NaiveTraining<T>::mean_factor(double count) const {
  double divisor = count;
  if (scenario_.is_exact()) {
    divisor = 1;
    while (divisor < count)
      divisor *= 2;
  }
  return static_cast<T>(1 / divisor);
}

template <class T>
T NaiveTraining<T>::loss_factor(std::int64_t rank, std::int64_t micro_batch,
                                std::int64_t terms) const {
  const std::int64_t num_ranks = scenario_.num_data_ranks();
  const std::int64_t num_micro_batches = scenario_.training.micro_batches;
  if (scenario_.training.loss_normalization == LossNormalization::Sum) return 1;
  if (scenario_.training.loss_normalization == LossNormalization::LocalMean) {
    const T own = mean_factor(static_cast<double>(num_valid(rank, micro_batch) * terms));
    if (fault_ == Fault::MissingMicroBatches) return own;
    return own * mean_factor(static_cast<double>(num_micro_batches));
  }
  std::int64_t all = 0;
  for (std::int64_t d = 0; d < num_ranks; ++d) {
    for (std::int64_t m = 0; m < num_micro_batches; ++m)
      all += num_valid(d, m) * terms;
  }
  return mean_factor(static_cast<double>(all));
}

template <class T>
NaiveTensor<T> NaiveTraining<T>::draw_rows(const std::string& name, const FillSpec& spec,
                                           std::int64_t rank, std::int64_t micro_batch,
                                           std::int64_t features) const {
  const std::int64_t positions = num_positions(scenario_.model);
  const std::int64_t samples = scenario_.micro_batch_size();
  NaiveTensor<T> rows(samples * positions, features);
  rows.data.clear();
  for (std::int64_t b = 0; b < samples; ++b) {
    const Values values =
        draw_sample(name, spec, first_sample(rank, micro_batch) + b, positions * features);
    rows.data.insert(rows.data.end(), values.begin(), values.end());
  }
  return rows;
}

template <class T>
T NaiveTraining<T>::run_mse(std::int64_t rank, std::int64_t micro_batch, const NaiveTensor<T>& y,
                            NaiveTensor<T>& dy) {
  const NaiveTensor<T> target =
      draw_rows("target", scenario_.data.target, rank, micro_batch, y.cols);
  const T factor = loss_factor(rank, micro_batch, y.cols);
  const std::int64_t count = num_valid(rank, micro_batch) * y.cols;
  Values errors;
  for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
    errors.push_back(y.data[i] - target.data[i]);
    dy.data[i] = 2 * errors.back() * factor;
  }
  std::fill(dy.data.begin() + count, dy.data.end(), T(0));
  const auto error_at = [&](auto i) { return errors[i]; };
  return ops_.dot(count, error_at, error_at) * factor;
}

template <class T>
T NaiveTraining<T>::run_cross_entropy(std::int64_t rank, std::int64_t micro_batch,
                                      const NaiveTensor<T>& y, NaiveTensor<T>& dy) {
  const NaiveTensor<T> target = draw_rows("target", scenario_.data.target, rank, micro_batch, 1);
  const T factor = loss_factor(rank, micro_batch, 1);
  const std::int64_t count = num_valid(rank, micro_batch);
  const NaiveTensor<T> losses = ops_.cross_entropy(y, target);
  dy = ops_.cross_entropy_gradient(y, target);
  for (T& value : dy.data)
    value *= factor;
  std::fill(dy.data.begin() + count * y.cols, dy.data.end(), T(0));
  return ops_.sum(count, [&](auto i) { return losses.data[i]; }) * factor;
}

template <class T>
T NaiveTraining<T>::run_rank_modules(std::int64_t rank, std::int64_t micro_batch,
                                     std::vector<Values>& gradients) {
  std::vector<Values> gathered = parameters_;
  for (std::size_t p = 0; p < gathered.size(); ++p)
    cast(compute_dtype(scenario_, static_cast<int>(p)), gathered[p]);
  NaiveGraph<T> graph(scenario_, ops_, gathered,
                      parts_left_out(scenario_, step_, micro_batch, rank));
  const std::int64_t features = features_along(scenario_.model).front();
  NaiveTensor<T> y =
      graph.forward(draw_rows("input", scenario_.data.input, rank, micro_batch, features));
  cast(loss_dtype(scenario_), y.data);
  NaiveTensor<T> dy = y;
  T loss = scenario_.training.loss == LossKind::Mse ? run_mse(rank, micro_batch, y, dy)
                                                    : run_cross_entropy(rank, micro_batch, y, dy);
  round_to(loss_dtype(scenario_), &loss, 1);
  const bool has_last =
      rank + 1 == scenario_.num_data_ranks() && micro_batch + 1 == scenario_.training.micro_batches;
  if (fault_ == Fault::MissingSample && has_last) {
    const std::int64_t elems = num_positions(scenario_.model) * y.cols;
    std::fill(dy.data.end() - elems, dy.data.end(), T(0));
  }
  cast(loss_dtype(scenario_), dy.data);
  graph.backward(std::move(dy), fault_ == Fault::OneTerm && rank == 0 && micro_batch == 0,
                 gradients);
  return loss;
}

template <class T>
T NaiveTraining<T>::run_rank_elementwise(std::int64_t rank, std::int64_t micro_batch,
                                         std::vector<Values>& gradients) {
  const std::int64_t rows = scenario_.micro_batch_size();
  T loss = 0;
  for (std::size_t p = 0; p < parameters_.size(); ++p) {
    const int index = static_cast<int>(p);
    if (!is_active(scenario_, index, step_, micro_batch, rank)) continue;
    const ElementwiseDTypes dtypes = elementwise_dtypes(scenario_, index);
    const auto elems = static_cast<std::int64_t>(parameters_[p].size());
    const T factor = loss_factor(rank, micro_batch, elems);
    Values weight = parameters_[p];
    cast(compute_dtype(scenario_, index), weight);
    std::vector<Values> inputs;
    std::vector<Values> errors;
    Values squares;
    for (std::int64_t b = 0; b < rows; ++b) {
      const std::string& name = scenario_.parameters[p].name;
      const std::int64_t sample = first_sample(rank, micro_batch) + b;
      inputs.push_back(draw_sample(name + "/input", scenario_.data.input, sample, elems));
      cast(dtypes.input, inputs.back());
      errors.push_back(draw_sample(name + "/target", scenario_.data.target, sample, elems));
      Values product(inputs.back());
      for (std::int64_t i = 0; i < elems; ++i)
        product[i] *= weight[i];
      cast(dtypes.product, product);
      cast(dtypes.given, product);
      cast(loss_dtype(scenario_), product);
      for (std::int64_t i = 0; i < elems; ++i) {
        errors[b][i] = product[i] - errors[b][i];
        squares.push_back(errors[b][i] * errors[b][i] * T(0.5));
        if (fault_ == Fault::MissingSample && sample + 1 == scenario_.training.global_batch) {
          errors[b][i] = 0;
        }
        errors[b][i] *= factor;
      }
      cast(loss_dtype(scenario_), errors[b]);
      cast(dtypes.given, errors[b]);
      cast(dtypes.product, errors[b]);
    }
    const bool is_planted = fault_ == Fault::OneTerm && p == 0 && rank == 0 && micro_batch == 0;
    const T one_term = is_planted ? T(1.001) : T(1);
    loss += factor * ops_.dot(
                         static_cast<std::int64_t>(squares.size()),
                         [&](auto i) { return squares[i]; }, [](auto) { return T(1); });
    for (std::int64_t i = 0; i < elems; ++i) {
      gradients[p][i] = ops_.dot(
          rows, [&](auto b) { return errors[b][i] * (b + i == 0 ? one_term : T(1)); },
          [&](auto b) { return inputs[b][i]; });
    }
  }
  round_to(loss_dtype(scenario_), &loss, 1);
  return loss;
}

template <class T>
T NaiveTraining<T>::run_rank(std::int64_t rank, std::int64_t micro_batch,
                             std::vector<Values>& gradients) {
  gradients.clear();
  for (const Values& values : parameters_)
    gradients.emplace_back(values.size());
  const T loss = scenario_.model.is_elementwise()
                     ? run_rank_elementwise(rank, micro_batch, gradients)
                     : run_rank_modules(rank, micro_batch, gradients);
  for (std::size_t p = 0; p < gradients.size(); ++p)
    cast(compute_dtype(scenario_, static_cast<int>(p)), gradients[p]);
  return loss;
}

template <class T>
std::vector<T> NaiveTraining<T>::reduce(std::size_t parameter,
                                        const std::vector<std::vector<Values>>& gradients) {
  const int p = static_cast<int>(parameter);
  const DType dtype = reduce_dtype(scenario_, p);
  const auto num_ranks = static_cast<std::size_t>(scenario_.num_data_ranks());
  const auto num_replicas = static_cast<std::size_t>(
      scenario_.roles.dp_replicate_dim ? scenario_.mesh.size(*scenario_.roles.dp_replicate_dim)
                                       : 1);
  const std::size_t num_shards = num_ranks / num_replicas;
  // k on what goes in, 1/F on what comes out.
  double divisor = 1;
  if (scenario_.fully_shard.gradient_divide_factor) {
    divisor = *scenario_.fully_shard.gradient_divide_factor;
  } else if (scenario_.fully_shard.reduce_op == ReduceOp::Avg) {
    divisor = static_cast<double>(num_ranks);
    if (scenario_.is_exact()) divisor = std::exp2(std::ceil(std::log2(divisor)));
  }
  const double before = predivision(dtype, divisor);
  const T prescale = T(scenario_.fully_shard.gradient_scaling_factor * before);
  const T scale = T(1 / (divisor * before));
  const std::size_t elems = parameters_[parameter].size();
  const auto add = [](Values& to, const Values& term) {
    for (std::size_t i = 0; i < to.size(); ++i)
      to[i] += term[i];
  };
  const auto sum = [&](std::size_t count, const auto& term) {
    Values result(elems);
    for (std::size_t i = 0; i < elems; ++i) {
      result[i] = ops_.sum(static_cast<std::int64_t>(count), [&](auto r) { return term(r)[i]; });
    }
    cast(dtype, result);
    return result;
  };
  Values stored(elems);
  std::vector<Values> own(num_ranks, Values(elems));
  std::vector<Values> waiting(num_replicas, Values(elems));
  for (std::int64_t m = 0; m < scenario_.training.micro_batches; ++m) {
    for (std::size_t rank = 0; rank < num_ranks; ++rank) {
      add(own[rank], gradients[rank][static_cast<std::size_t>(m)]);
      cast(fault_ == Fault::Bfloat16Accumulation ? DType::BFloat16 : dtype, own[rank]);
    }
    if (!scenario_.training.syncs_gradients(m)) continue;
    for (Values& values : own) {
      for (T& value : values)
        value *= prescale;
      cast(dtype, values);
      if (fault_ == Fault::Bfloat16Reduction) cast(DType::BFloat16, values);
    }
    for (std::size_t replica = 0; replica < num_replicas; ++replica) {
      add(waiting[replica], sum(num_shards, [&](auto r) -> const Values& {
            return own[replica * num_shards + static_cast<std::size_t>(r)];
          }));
      cast(dtype, waiting[replica]);
    }
    own.assign(num_ranks, Values(elems));
    if (!scenario_.training.does_all_reduce(m)) continue;
    Values whole = sum(num_replicas, [&](auto r) -> const Values& {
      return waiting[static_cast<std::size_t>(r)];
    });
    waiting.assign(num_replicas, Values(elems));
    for (T& value : whole)
      value *= scale;
    cast(dtype, whole);
    if (fault_ == Fault::Float16Storage) cast(DType::Float16, whole);
    cast(parameter_dtype(scenario_, p), whole);
    add(stored, whole);
    cast(parameter_dtype(scenario_, p), stored);
  }
  if (fault_ == Fault::Doubled && parameter + 1 == parameters_.size()) {
    for (T& value : stored)
      value *= 2;
  }
  return stored;
}

template <class T>
double NaiveTraining<T>::norm_of(const std::vector<Values>& gradients) const {
  const double p =
      scenario_.training.clip_grad_norm ? scenario_.training.clip_grad_norm->norm_type : 2;
  double sum = 0;
  double largest = 0;
  for (const Values& gradient : gradients) {
    for (const T value : gradient) {
      sum += std::pow(std::abs(static_cast<double>(value)), p);
      largest = std::max(largest, std::abs(static_cast<double>(value)));
    }
  }
  return std::isinf(p) ? largest : std::pow(sum, 1 / p);
}

template <class T>
void NaiveTraining<T>::update(std::size_t parameter, Values gradient) {
  const OptimizerSpec& spec = scenario_.training.optimizer;
  const double t = static_cast<double>(num_updates_[parameter] + 1);
  const DType dtype = parameter_dtype(scenario_, static_cast<int>(parameter));
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
        buffer = num_updates_[parameter] == 0 ? g : T(spec.momentum) * buffer + g;
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
  cast(dtype, weight);
  for (auto& tensors : state_)
    cast(dtype, tensors[parameter]);
  ++num_updates_[parameter];
}

template <class T>
NaiveStep NaiveTraining<T>::step() {
  const auto num_ranks = static_cast<std::size_t>(scenario_.num_data_ranks());
  const auto num_micro_batches = static_cast<std::size_t>(scenario_.training.micro_batches);
  // [parameter][rank][micro-batch]
  std::vector<std::vector<std::vector<Values>>> terms(
      parameters_.size(),
      std::vector<std::vector<Values>>(num_ranks, std::vector<Values>(num_micro_batches)));
  Values losses;
  for (std::size_t rank = 0; rank < num_ranks; ++rank) {
    for (std::size_t m = 0; m < num_micro_batches; ++m) {
      std::vector<Values> gradients;
      losses.push_back(
          run_rank(static_cast<std::int64_t>(rank), static_cast<std::int64_t>(m), gradients));
      for (std::size_t p = 0; p < gradients.size(); ++p)
        terms[p][rank][m] = std::move(gradients[p]);
    }
  }
  NaiveStep result;
  const bool is_mean = scenario_.training.loss_normalization == LossNormalization::LocalMean;
  const T share = is_mean ? mean_factor(static_cast<double>(num_ranks)) : T(1);
  result.loss = static_cast<double>(share * ops_.sum(static_cast<std::int64_t>(losses.size()),
                                                     [&](auto r) { return losses[r]; }));
  std::vector<Values> whole;
  for (std::size_t p = 0; p < parameters_.size(); ++p) {
    const bool has = has_gradient(scenario_, static_cast<int>(p), step_);
    whole.push_back(has ? reduce(p, terms[p]) : Values{});
    result.gradients.push_back(widen(whole.back()));
  }
  result.grad_norm = norm_of(whole);
  if (const auto& clip = scenario_.training.clip_grad_norm) {
    const double factor = std::min(1.0, clip->max_norm / (result.grad_norm + 1e-6));
    for (std::size_t p = 0; p < whole.size(); ++p) {
      for (T& value : whole[p])
        value *= T(factor);
      cast(parameter_dtype(scenario_, static_cast<int>(p)), whole[p]);
    }
  }
  for (std::size_t p = 0; p < whole.size(); ++p) {
    if (has_gradient(scenario_, static_cast<int>(p), step_)) update(p, std::move(whole[p]));
  }
  result.after = state();
  ++step_;
  return result;
}

template class NaiveTraining<float>;
template class NaiveTraining<double>;

}  // namespace hpsim::test
