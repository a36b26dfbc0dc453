#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "baseline/sample_data.h"
#include "model/model_spec.h"
#include "scenario/scenario.h"

namespace hpsim {

/// Loss of the whole batch and G of every parameter.
template <class Arithmetic>
struct PassResult {
  typename Arithmetic::Scalar loss{};
  std::vector<typename Arithmetic::Tensor> gradients;  ///< like Scenario::parameters
};

/// Rows and columns of a parameter as a matrix: a weight as it is, everything else one row.
struct MatrixSize {
  std::int64_t rows = 1;
  std::int64_t cols = 1;
};

[[nodiscard]] inline MatrixSize matrix_size(const ParameterSpec& parameter) {
  if (parameter.kind == ParameterSpec::Kind::LinearWeight) {
    return {parameter.shape[0], parameter.shape[1]};
  }
  return {1, num_elems(parameter.shape)};
}

/// One forward and backward pass of the whole batch, in the arithmetic of the derived or of the
/// exact mode, with one micro-batch:
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
  struct LinearIndex {
    int weight = -1;
    int bias = -1;
  };

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

  // Modules: s = sum of (y - t)² over samples and features, gradient of y 2 (y - t).
  void run_modules() {
    const std::vector<ModuleSpec>& modules = scenario_.model.modules;
    linears_ = index_linears();
    std::vector<Tensor> inputs(modules.size());
    Tensor x = samples("input", scenario_.data.input, features_before_module(scenario_.model, 0));
    for (std::size_t i = 0; i < modules.size(); ++i) {
      inputs[i] = std::move(x);
      arithmetic_.piece("the output of \"" + modules[i].name + "\"",
                        [&] { x = forward(i, inputs[i]); });
    }
    const std::int64_t outputs = output_features(scenario_.model);
    const Tensor target = samples("target", scenario_.data.target, outputs);
    Tensor dy;
    arithmetic_.piece("the loss", [&] {
      const Tensor error = arithmetic_.difference(x, target);
      typename Arithmetic::Sum sum{};
      arithmetic_.add_squares(sum, error);
      result_.loss = arithmetic_.finish(sum, 1 / loss_divisor(outputs));
      dy = arithmetic_.scaled(error, 2 / local_divisor(outputs));
    });
    for (std::size_t i = modules.size(); i-- > 0;)
      backward(i, inputs[i], dy);
  }

  [[nodiscard]] std::vector<LinearIndex> index_linears() {
    std::vector<LinearIndex> linears(scenario_.model.modules.size());
    for (int i = 0; i < static_cast<int>(scenario_.parameters.size()); ++i) {
      const ParameterSpec& parameter = scenario_.parameters[static_cast<std::size_t>(i)];
      LinearIndex& linear = linears[static_cast<std::size_t>(parameter.module)];
      (parameter.kind == ParameterSpec::Kind::LinearBias ? linear.bias : linear.weight) = i;
    }
    first_linear_ = 0;
    while (linears[first_linear_].weight < 0)
      ++first_linear_;
    return linears;
  }

  [[nodiscard]] Tensor samples(const char* name, const FillSpec& fill, std::int64_t features) {
    return arithmetic_.constant(scenario_.training.global_batch, features,
                                draw_samples(scenario_, name, fill, step_, features, 0, features));
  }

  [[nodiscard]] Tensor forward(std::size_t module, const Tensor& x) {
    const ModuleSpec& spec = scenario_.model.modules[module];
    if (spec.type != ModuleType::Linear) return arithmetic_.activation(spec, x);
    const LinearIndex linear = linears_[module];
    const Tensor* bias = linear.bias < 0 ? nullptr : &parameter(linear.bias);
    return arithmetic_.linear(x, parameter(linear.weight), bias);
  }

  /// Leaves in `dy` the gradient of the module's input, where a parameter before it needs it.
  void backward(std::size_t module, const Tensor& x, Tensor& dy) {
    const ModuleSpec& spec = scenario_.model.modules[module];
    if (spec.type == ModuleType::Linear) {
      const LinearIndex linear = linears_[module];
      store_gradient(linear.weight, [&] { return arithmetic_.weight_gradient(dy, x); });
      if (linear.bias >= 0) {
        store_gradient(linear.bias, [&] { return arithmetic_.bias_gradient(dy); });
      }
    }
    if (module <= first_linear_) return;
    arithmetic_.piece("the gradient of the input of \"" + spec.name + "\"", [&] {
      dy = spec.type == ModuleType::Linear
               ? arithmetic_.input_gradient(dy, parameter(linears_[module].weight))
               : arithmetic_.activation_gradient(spec, x, dy);
    });
  }

  template <class Compute>
  void store_gradient(int index, const Compute& compute) {
    const auto i = static_cast<std::size_t>(index);
    arithmetic_.piece("the gradient of \"" + scenario_.parameters[i].name + "\"", [&] {
      result_.gradients[i] = compute();
      scale(result_.gradients[i], i);
    });
  }

  [[nodiscard]] const Tensor& parameter(int index) const {
    return parameters_[static_cast<std::size_t>(index)];
  }

  const Scenario& scenario_;
  std::int64_t step_;
  Arithmetic& arithmetic_;
  const std::vector<Tensor>& parameters_;
  std::vector<LinearIndex> linears_;
  std::size_t first_linear_ = 0;
  PassResult<Arithmetic> result_;
};

}  // namespace hpsim
