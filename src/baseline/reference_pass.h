#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "baseline/expert_routes.h"
#include "baseline/module_parameters.h"
#include "baseline/sample_data.h"
#include "model/model_spec.h"
#include "scenario/scenario.h"

namespace hpsim {

/// Loss of the whole batch, G of every parameter, and where rows went.
template <class Arithmetic>
struct PassResult {
  typename Arithmetic::Scalar loss{};
  std::vector<typename Arithmetic::Tensor> gradients;  ///< like Scenario::parameters
  std::vector<ExpertRoutes> routes;                    ///< like experts_modules
};

/// One forward and backward pass of the whole batch, in the arithmetic of the derived or of the
/// exact mode, with one micro-batch. A model is walked operation by operation, every activation a
/// matrix with one row per position of every sample; gradients of an activation, or of a tied
/// parameter, are added over those that read it.
///   l_d = s / n of a data rank for local_mean, s for sum;  losses[t] = (1/D) sum l_d, or sum l_d
///   G = (k/F) sum over d of the gradient of l_d
/// n is the count of one data rank, so the sum over ranks is one sum over all samples.
template <class Arithmetic>
class ReferencePass {
 public:
  using Tensor = typename Arithmetic::Tensor;

  /// `parameters` are like Scenario::parameters, each of its matrix_size.
  ReferencePass(const Scenario& scenario, std::int64_t step, Arithmetic& arithmetic,
                const std::vector<Tensor>& parameters)
      : scenario_(scenario), step_(step), arithmetic_(arithmetic), parameters_(parameters) {}

  [[nodiscard]] PassResult<Arithmetic> run() {
    result_.gradients.resize(parameters_.size());
    if (scenario_.model.is_elementwise()) {
      for (std::size_t i = 0; i < parameters_.size(); ++i)
        run_elementwise(i);
    } else {
      run_modules();
    }
    return std::move(result_);
  }

 private:
  [[nodiscard]] bool is_mean() const {
    return scenario_.training.loss_normalization == LossNormalization::LocalMean;
  }
  /// n of one data rank, for terms of `sample_terms` per sample; 1 for sums.
  [[nodiscard]] double local_divisor(std::int64_t sample_terms) const {
    return is_mean() ? mean_divisor(scenario_, scenario_.local_batch() * sample_terms) : 1;
  }
  /// What the sum of all terms is divided by in losses[t].
  [[nodiscard]] double loss_divisor(std::int64_t sample_terms) const {
    const double ranks = is_mean() ? mean_divisor(scenario_, scenario_.num_data_ranks()) : 1;
    return ranks * local_divisor(sample_terms);
  }

  void scale(Tensor& gradient, std::size_t index) {
    arithmetic_.scale_gradient(gradient, gradient_factor(scenario_, static_cast<int>(index)),
                               gradient_divisor(scenario_));
  }

  // Elementwise: s = sum of (w x - t)² / 2, gradient x (w x - t). Elements do not meet, so they are
  // taken in blocks that fit the cache.
  void run_elementwise(std::size_t index) {
    constexpr std::int64_t kBlockElems = std::int64_t{1} << 16;
    const std::string& name = scenario_.parameters[index].name;
    const Tensor& weight = parameters_[index];
    const std::int64_t elems = num_elems(scenario_.parameters[index].shape);
    const std::int64_t batch = scenario_.training.global_batch;
    const std::int64_t block = std::max<std::int64_t>(1, kBlockElems / batch);
    Tensor& gradient = result_.gradients[index];
    gradient = arithmetic_.zeros(1, elems);
    typename Arithmetic::Sum sum{};
    for (std::int64_t begin = 0; begin < elems; begin += block) {
      const std::int64_t count = std::min(block, elems - begin);
      const auto samples = [&](const char* suffix, const FillSpec& fill) {
        return arithmetic_.constant(
            batch, count, draw_samples(scenario_, name + suffix, fill, step_, elems, begin, count));
      };
      const Tensor x = samples("/input", scenario_.data.input);
      const Tensor target = samples("/target", scenario_.data.target);
      Tensor error;
      arithmetic_.piece("the output of \"" + name + "\"", [&] {
        const Tensor part = arithmetic_.slice(weight, begin, count);
        error = arithmetic_.difference(arithmetic_.scaled_columns(x, part), target);
      });
      arithmetic_.piece("the loss", [&] { arithmetic_.add_squares(sum, error); });
      arithmetic_.piece("the gradient of \"" + name + "\"", [&] {
        error = arithmetic_.scaled(error, 1 / local_divisor(elems));
        arithmetic_.assign(gradient, begin, arithmetic_.column_products(x, error));
      });
    }
    arithmetic_.piece("the loss", [&] {
      arithmetic_.add(result_.loss, arithmetic_.finish(sum, 0.5 / loss_divisor(elems)));
    });
    arithmetic_.piece("the gradient of \"" + name + "\"", [&] { scale(gradient, index); });
  }

  void run_modules() {
    const std::vector<ModuleSpec>& modules = scenario_.model.modules;
    index_parameters();
    const std::vector<std::int64_t> features = features_along(scenario_.model);
    activations_.resize(modules.size() + 1);
    gradients_.resize(modules.size() + 1);
    activations_[0] = samples("input", scenario_.data.input, features.front());
    if (modules.front().type == ModuleType::Embedding) arithmetic_.set_tokens(activations_[0]);
    for (std::size_t m = 0; m < modules.size(); ++m) {
      arithmetic_.piece("the output of \"" + modules[m].name + "\"",
                        [&] { activations_[m + 1] = forward(m); });
    }
    if (scenario_.training.loss == LossKind::Mse) {
      run_mse(features.back());
    } else {
      run_cross_entropy();
    }
    for (std::size_t m = modules.size(); m-- > 0;)
      backward(m);
  }

  /// Counts how many modules use a parameter, too.
  void index_parameters() {
    module_parameters_ = parameters_by_module(scenario_.model, scenario_.parameters);
    needs_gradient_ = needed_gradients(scenario_.model, module_parameters_);
    users_left_.resize(scenario_.parameters.size());
    has_gradient_.resize(scenario_.parameters.size());
    for (const ModuleParameters& own : module_parameters_) {
      for (const int p : own.all())
        ++users_left_[static_cast<std::size_t>(p)];
    }
  }

  [[nodiscard]] Tensor samples(const char* name, const FillSpec& fill, std::int64_t features) {
    const std::int64_t positions = num_positions(scenario_.model);
    const std::int64_t elems = positions * features;
    return arithmetic_.constant(scenario_.training.global_batch * positions, features,
                                draw_samples(scenario_, name, fill, step_, elems, 0, elems));
  }

  // s = sum of (y - t)² over samples, positions and features, gradient of y 2 (y - t).
  void run_mse(std::int64_t features) {
    const Tensor target = samples("target", scenario_.data.target, features);
    const std::int64_t sample_terms = num_positions(scenario_.model) * features;
    arithmetic_.piece("the loss", [&] {
      const Tensor error = arithmetic_.difference(activations_.back(), target);
      typename Arithmetic::Sum sum{};
      arithmetic_.add_squares(sum, error);
      result_.loss = arithmetic_.finish(sum, 1 / loss_divisor(sample_terms));
      gradients_.back() = arithmetic_.scaled(error, 2 / local_divisor(sample_terms));
    });
  }

  // s = sum over samples and positions of -log softmax(y)[t].
  void run_cross_entropy() {
    if constexpr (Arithmetic::kIsExact) {
      HPSIM_CHECK(false, "cross_entropy is not exact");
    } else {
      const Tensor target = samples("target", scenario_.data.target, 1);
      const std::int64_t sample_terms = num_positions(scenario_.model);
      typename Arithmetic::Sum sum{};
      arithmetic_.add_terms(sum, arithmetic_.cross_entropy(activations_.back(), target));
      result_.loss = arithmetic_.finish(sum, 1 / loss_divisor(sample_terms));
      gradients_.back() =
          arithmetic_.scaled(arithmetic_.cross_entropy_gradient(activations_.back(), target),
                             1 / local_divisor(sample_terms));
    }
  }

  [[nodiscard]] std::size_t input_index(std::size_t module, std::size_t input) const {
    return static_cast<std::size_t>(inputs_of(scenario_.model, static_cast<int>(module)).at(input));
  }
  [[nodiscard]] const Tensor& input(std::size_t module, std::size_t input = 0) const {
    return activations_[input_index(module, input)];
  }
  [[nodiscard]] const Tensor& weight(std::size_t module, std::size_t index = 0) const {
    return parameter(module_parameters_[module].weights.at(index));
  }
  [[nodiscard]] const Tensor* bias(std::size_t module) const {
    const int bias = module_parameters_[module].bias;
    return bias < 0 ? nullptr : &parameter(bias);
  }

  [[nodiscard]] Tensor forward(std::size_t module) {
    const ModuleSpec& spec = scenario_.model.modules[module];
    switch (spec.type) {
      case ModuleType::Linear:
        return arithmetic_.linear(input(module), weight(module), bias(module));
      case ModuleType::Embedding:
        return arithmetic_.embedding(input(module), weight(module));
      case ModuleType::Add:
        return arithmetic_.sum(input(module, 0), input(module, 1));
      case ModuleType::LayerNorm:
      case ModuleType::RmsNorm:
      case ModuleType::AttentionCore:
      case ModuleType::SiluGate:
      case ModuleType::Experts:
        return forward_inexact(module);
      case ModuleType::Relu:
      case ModuleType::Tanh:
      case ModuleType::Silu:
      case ModuleType::Gelu:
        break;
    }
    return arithmetic_.activation(spec, input(module));
  }

  [[nodiscard]] Tensor forward_inexact(std::size_t module) {
    const ModuleSpec& spec = scenario_.model.modules[module];
    if constexpr (Arithmetic::kIsExact) {
      HPSIM_CHECK(false, "{} is not exact", name_of(spec.type));
      return {};
    } else {
      switch (spec.type) {
        case ModuleType::AttentionCore:
          return arithmetic_.attention(spec, num_positions(scenario_.model), input(module, 0),
                                       input(module, 1), input(module, 2));
        case ModuleType::SiluGate:
          return arithmetic_.silu_gate(input(module, 0), input(module, 1));
        case ModuleType::Experts:
          result_.routes.push_back(arithmetic_.route(spec, input(module, 1)));
          return arithmetic_.experts(spec, input(module, 0), input(module, 1), weight(module, 0),
                                     weight(module, 1), weight(module, 2));
        default:
          return arithmetic_.norm(spec, input(module), weight(module), bias(module));
      }
    }
  }

  /// Gives away the output and its gradient, which no other module reads any more.
  void backward(std::size_t module) {
    if (!needs_gradient_[module + 1]) return;
    const std::string& name = scenario_.model.modules[module].name;
    HPSIM_CHECK(gradients_[module + 1], "nothing reads the output of \"{}\"", name);
    const Tensor dy = std::move(*gradients_[module + 1]);
    gradients_[module + 1].reset();
    if (scenario_.model.modules[module].type == ModuleType::Experts) {
      backward_experts(module, dy);
    } else {
      backward_operation(module, dy);
    }
    activations_[module + 1] = {};
  }

  void backward_operation(std::size_t module, const Tensor& dy) {
    const std::string& name = scenario_.model.modules[module].name;
    backward_parameters(module, dy);
    const std::vector<int> inputs = inputs_of(scenario_.model, static_cast<int>(module));
    const bool is_needed = std::any_of(inputs.begin(), inputs.end(), [&](int i) {
      return needs_gradient_[static_cast<std::size_t>(i)];
    });
    if (is_needed) {
      arithmetic_.piece("the gradient of the input of \"" + name + "\"",
                        [&] { backward_inputs(module, dy); });
    }
  }

  /// Gradients of inputs and weights, which are made of the same numbers.
  void backward_experts(std::size_t module, const Tensor& dy) {
    const ModuleSpec& spec = scenario_.model.modules[module];
    if constexpr (Arithmetic::kIsExact) {
      HPSIM_CHECK(false, "{} is not exact", name_of(spec.type));
    } else {
      auto gradients =
          arithmetic_.experts_gradients(spec, input(module, 0), input(module, 1), weight(module, 0),
                                        weight(module, 1), weight(module, 2), dy);
      pass_on(module, 0, std::move(gradients[0]));
      pass_on(module, 1, std::move(gradients[1]));
      const std::vector<int>& weights = module_parameters_[module].weights;
      for (std::size_t i = 0; i < weights.size(); ++i)
        add_gradient(weights[i], [&] { return std::move(gradients[2 + i]); });
    }
  }

  void backward_parameters(std::size_t module, const Tensor& dy) {
    const ModuleParameters& own = module_parameters_[module];
    for (const int index : own.weights)
      add_gradient(index, [&] { return weight_gradient(module, dy); });
    if (own.bias >= 0) add_gradient(own.bias, [&] { return arithmetic_.bias_gradient(dy); });
  }

  [[nodiscard]] Tensor weight_gradient(std::size_t module, const Tensor& dy) {
    const ModuleSpec& spec = scenario_.model.modules[module];
    if (spec.type == ModuleType::Linear) return arithmetic_.weight_gradient(dy, input(module));
    if (spec.type == ModuleType::Embedding) {
      return arithmetic_.embedding_gradient(dy, input(module), spec.in_features);
    }
    if constexpr (Arithmetic::kIsExact) {
      HPSIM_CHECK(false, "{} is not exact", name_of(spec.type));
      return {};
    } else {
      return arithmetic_.norm_weight_gradient(spec, input(module), dy);
    }
  }

  void backward_inputs(std::size_t module, const Tensor& dy) {
    const ModuleSpec& spec = scenario_.model.modules[module];
    switch (spec.type) {
      case ModuleType::Linear:
        return pass_on(module, 0, arithmetic_.input_gradient(dy, weight(module)));
      case ModuleType::Add:
        pass_on(module, 0, dy);
        return pass_on(module, 1, dy);
      case ModuleType::LayerNorm:
      case ModuleType::RmsNorm:
      case ModuleType::AttentionCore:
      case ModuleType::SiluGate:
        return backward_inexact(module, dy);
      case ModuleType::Embedding:
        HPSIM_CHECK(false, "tokens have no gradient");
        return;
      case ModuleType::Experts:
        HPSIM_CHECK(false, "see backward_experts");
        return;
      case ModuleType::Relu:
      case ModuleType::Tanh:
      case ModuleType::Silu:
      case ModuleType::Gelu:
        break;
    }
    pass_on(module, 0, arithmetic_.activation_gradient(spec, input(module), dy));
  }

  void backward_inexact(std::size_t module, const Tensor& dy) {
    const ModuleSpec& spec = scenario_.model.modules[module];
    if constexpr (Arithmetic::kIsExact) {
      HPSIM_CHECK(false, "{} is not exact", name_of(spec.type));
    } else if (spec.type == ModuleType::AttentionCore) {
      auto gradients =
          arithmetic_.attention_gradients(spec, num_positions(scenario_.model), input(module, 0),
                                          input(module, 1), input(module, 2), dy);
      for (std::size_t i = 0; i < gradients.size(); ++i)
        pass_on(module, i, std::move(gradients[i]));
    } else if (spec.type == ModuleType::SiluGate) {
      auto gradients = arithmetic_.silu_gate_gradients(input(module, 0), input(module, 1), dy);
      for (std::size_t i = 0; i < gradients.size(); ++i)
        pass_on(module, i, std::move(gradients[i]));
    } else {
      pass_on(module, 0, arithmetic_.norm_input_gradient(spec, input(module), weight(module), dy));
    }
  }

  /// Adds to the gradient of what a module reads, where a parameter before it needs it.
  void pass_on(std::size_t module, std::size_t input, Tensor gradient) {
    const std::size_t activation = input_index(module, input);
    if (!needs_gradient_[activation]) return;
    std::optional<Tensor>& whole = gradients_[activation];
    whole = whole ? arithmetic_.sum(*whole, gradient) : std::move(gradient);
  }

  /// Adds what a module gives to the gradient of a parameter; the last one completes it.
  template <class Compute>
  void add_gradient(int index, const Compute& compute) {
    const auto i = static_cast<std::size_t>(index);
    const bool is_first = !has_gradient_[i];
    has_gradient_[i] = true;
    arithmetic_.piece("the gradient of \"" + scenario_.parameters[i].name + "\"", [&] {
      Tensor term = compute();
      result_.gradients[i] =
          is_first ? std::move(term) : arithmetic_.sum(result_.gradients[i], term);
      if (--users_left_[i] == 0) scale(result_.gradients[i], i);
    });
  }

  [[nodiscard]] const Tensor& parameter(int index) const {
    return parameters_[static_cast<std::size_t>(index)];
  }

  const Scenario& scenario_;
  std::int64_t step_;
  Arithmetic& arithmetic_;
  const std::vector<Tensor>& parameters_;
  std::vector<ModuleParameters> module_parameters_;
  std::vector<int> users_left_;       ///< per parameter: modules whose gradient it still lacks
  std::vector<bool> has_gradient_;    ///< per parameter: of some module
  std::vector<bool> needs_gradient_;  ///< per activation
  std::vector<Tensor> activations_;   ///< see ModuleSpec::inputs
  std::vector<std::optional<Tensor>> gradients_;  ///< of activations, by those that read them
  PassResult<Arithmetic> result_;
};

}  // namespace hpsim
