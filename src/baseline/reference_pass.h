#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "baseline/expert_routes.h"
#include "baseline/loss_sums.h"
#include "baseline/module_parameters.h"
#include "baseline/parameter_gradients.h"
#include "baseline/pass_dtypes.h"
#include "baseline/row_blocks.h"
#include "baseline/sample_data.h"
#include "model/model_spec.h"
#include "scenario/gradients.h"
#include "scenario/precision.h"
#include "scenario/scenario.h"

namespace hpsim {

/// Loss of the whole batch, G of every parameter, and where rows went.
template <class Arithmetic>
struct PassResult {
  typename Arithmetic::Scalar loss{};
  typename Arithmetic::Scalar global_loss{};           ///< mean over all terms
  std::vector<typename Arithmetic::Tensor> gradients;  ///< like Scenario::parameters; empty: none
  std::vector<ExpertRoutes> routes;                    ///< like experts_modules
};

/// One forward and backward pass of the whole batch, in the arithmetic of the derived or of the
/// exact mode. A model is walked operation by operation, every activation a matrix with one row per
/// position of every sample; gradients of an activation, or of a tied parameter, are added over
/// those that read it.
///   G = (k/F) sum over data ranks d and micro-batches m of the gradient of their s / divisor
///   losses[t] = (1/D) sum of the s / divisor for local_mean, else their sum
/// The divisor (scenario/gradients.h) is a factor of rows, so that sums over ranks and
/// micro-batches are one sum over all samples: what they add is what they round (GradientStages).
/// Rows that are not valid, or pass by a part that is not active, have zeros in place of their
/// gradients.
///
/// Numbers are rounded to dtypes narrower than the carrier where the run does: after every
/// operation, where its output is handed on in another dtype, where one is read in another dtype,
/// and backward likewise.
template <class Arithmetic>
class ReferencePass {
 public:
  using Tensor = typename Arithmetic::Tensor;
  using Block = typename ParameterGradients<Arithmetic>::Block;

  /// `parameters` are like Scenario::parameters, each of its matrix_size.
  ReferencePass(const Scenario& scenario, std::int64_t step, Arithmetic& arithmetic,
                const std::vector<Tensor>& parameters)
      : scenario_(scenario),
        step_(step),
        arithmetic_(arithmetic),
        parameters_(parameters),
        dtypes_(scenario),
        carrier_(dtypes_.carrier()),
        of_parameters_(scenario, arithmetic) {}

  /// See ParameterGradients.
  void watch(int p, typename ParameterGradients<Arithmetic>::Watcher watcher) {
    of_parameters_.watch(p, std::move(watcher));
  }

  [[nodiscard]] PassResult<Arithmetic> run() {
    result_.gradients.resize(parameters_.size());
    gather_parameters();
    if (scenario_.model.is_elementwise()) {
      for (std::size_t i = 0; i < parameters_.size(); ++i)
        run_elementwise(i);
    } else {
      run_modules();
    }
    return std::move(result_);
  }

 private:
  // Roundings: none where the dtype holds all numbers of the one before.

  void round(Tensor& tensor, DType from, DType to) {
    if (promoted(from, to) != to) arithmetic_.round(tensor, to);
  }

  /// Casts parameters to the dtype in which they are computed with.
  void gather_parameters() {
    for (std::size_t i = 0; dtypes_.is_emulated() && i < parameters_.size(); ++i) {
      const int p = static_cast<int>(i);
      const DType held = parameter_dtype(scenario_, p);
      const DType dtype = compute_dtype(scenario_, p);
      gathered_.push_back(parameters_[i]);
      if (promoted(held, dtype) == dtype) continue;
      arithmetic_.piece("the gathered \"" + scenario_.parameters[i].name + "\"",
                        [&] { arithmetic_.cast(gathered_.back(), dtype); });
    }
  }

  [[nodiscard]] bool has_gradient_now(int p) const { return has_gradient(scenario_, p, step_); }

  /// Adds to losses; that of a model is one number, where all terms have one divisor.
  void finish_losses(LossSums<Arithmetic>& sums, double numerator) {
    const bool is_sum = scenario_.model.is_elementwise();
    arithmetic_.piece("the loss", [&] {
      bool is_first = !is_sum;
      for (const auto& part : sums.parts(numerator)) {
        if (is_first) {
          result_.loss = part;
        } else {
          arithmetic_.add(result_.loss, part);
        }
        is_first = false;
      }
    });
    const auto mean = sums.mean(numerator);
    if (is_sum) {
      arithmetic_.add(result_.global_loss, mean);
    } else {
      result_.global_loss = mean;
    }
  }

  // Elementwise: s = sum of (w x - t)² / 2, gradient x (w x - t). Elements do not meet, so they are
  // taken in blocks that fit the cache.
  void run_elementwise(std::size_t index) {
    constexpr std::int64_t kBlockElems = std::int64_t{1} << 16;
    const std::string& name = scenario_.parameters[index].name;
    const int p = static_cast<int>(index);
    const std::int64_t elems = num_elems(scenario_.parameters[index].shape);
    const std::int64_t batch = scenario_.training.global_batch;
    const std::int64_t block = std::max<std::int64_t>(1, kBlockElems / batch);
    const ElementwiseDTypes dtypes = elementwise_dtypes(scenario_, p);
    LossSums<Arithmetic> sums(arithmetic_, loss_rows(scenario_, step_, elems, p));
    const bool has_gradient = has_gradient_now(p);
    Tensor& gradient = result_.gradients[index];
    if (has_gradient) gradient = arithmetic_.zeros(1, elems);
    for (std::int64_t begin = 0; begin < elems; begin += block) {
      const std::int64_t count = std::min(block, elems - begin);
      const auto samples = [&](const char* suffix, const FillSpec& fill) {
        return arithmetic_.constant(
            batch, count, draw_samples(scenario_, name + suffix, fill, step_, elems, begin, count));
      };
      Tensor x = samples("/input", scenario_.data.input);
      const Tensor target = samples("/target", scenario_.data.target);
      Tensor error;
      arithmetic_.piece("the output of \"" + name + "\"", [&] {
        round(x, scenario_.numerics.dtype, dtypes.input);
        const Tensor part = arithmetic_.slice(parameter(p), begin, count);
        Tensor product = arithmetic_.scaled_columns(x, part);
        round(product, carrier_, dtypes.product);
        round(product, dtypes.product, dtypes.given);
        error = loss_error(product, dtypes.given, target);
      });
      arithmetic_.piece("the loss", [&] {
        sums.add(error, [&](auto& sum, const Tensor& part) { arithmetic_.add_squares(sum, part); });
      });
      if (has_gradient) {
        arithmetic_.piece("the gradient of \"" + name + "\"",
                          [&] { error = sums.scaled(error, 1); });
      }
      arithmetic_.set_dtype(carrier_);
      if (!has_gradient) continue;
      arithmetic_.piece("the gradient of \"" + name + "\"", [&] {
        round(error, carrier_, dtypes.given);
        round(error, dtypes.given, dtypes.product);
        of_parameters_.set_terms(p);
        Tensor part = arithmetic_.column_products(x, error);
        arithmetic_.clear_term_rounding();
        of_parameters_.finish(part, p, {of_parameters_.block_of(p, x, error, column_products)}, 1);
        arithmetic_.assign(gradient, begin, part);
      });
    }
    arithmetic_.set_dtype(loss_dtype(scenario_));
    finish_losses(sums, 0.5);
    arithmetic_.set_dtype(carrier_);
  }

  [[nodiscard]] static Tensor column_products(Arithmetic& arithmetic, const Tensor& a,
                                              const Tensor& b) {
    return arithmetic.column_products(a, b);
  }

  /// y - t in the dtype of losses, in which arithmetic goes on; the caller ends that.
  [[nodiscard]] Tensor loss_error(Tensor y, DType given, const Tensor& target) {
    const DType dtype = loss_dtype(scenario_);
    round(y, given, dtype);
    arithmetic_.set_dtype(dtype);
    Tensor error = arithmetic_.difference(y, target);
    round(error, carrier_, dtype);
    return error;
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
                        [&] { activations_[m + 1] = output(m); });
    }
    if (scenario_.training.loss == LossKind::Mse) {
      run_mse(features.back());
    } else {
      run_cross_entropy();
    }
    arithmetic_.set_dtype(carrier_);
    if (dtypes_.is_emulated()) {
      arithmetic_.piece("the gradient of the loss", [&] {
        round(*gradients_.back(), carrier_, dtypes_.given(modules.size()));
      });
    }
    for (std::size_t m = modules.size(); m-- > 0;)
      backward(m);
  }

  /// Counts how many modules use a parameter, too.
  void index_parameters() {
    const std::size_t num_parameters = scenario_.parameters.size();
    module_parameters_ = parameters_by_module(scenario_.model, scenario_.parameters);
    needs_gradient_ = needed_gradients(scenario_.model, module_parameters_,
                                       [&](int p) { return is_ever_trained(scenario_, p); });
    users_left_.resize(num_parameters);
    has_term_.resize(num_parameters);
    blocks_.resize(num_parameters);
    for (int p = 0; p < static_cast<int>(num_parameters); ++p)
      has_gradient_.push_back(has_gradient_now(p));
    for (const ModuleParameters& own : module_parameters_) {
      for (const int p : own.all())
        ++users_left_[static_cast<std::size_t>(p)];
    }
    bypasses_ = bypasses(scenario_, step_);
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
    LossSums<Arithmetic> sums(arithmetic_, loss_rows(scenario_, step_, features));
    arithmetic_.piece("the loss", [&] {
      const Tensor error =
          loss_error(activations_.back(), dtypes_.given(activations_.size() - 1), target);
      sums.add(error, [&](auto& sum, const Tensor& part) { arithmetic_.add_squares(sum, part); });
      gradients_.back() = sums.scaled(error, 2);
    });
    finish_losses(sums, 1);
  }

  // s = sum over samples and positions of -log softmax(y)[t].
  void run_cross_entropy() {
    if constexpr (Arithmetic::kIsExact) {
      HPSIM_CHECK(false, "cross_entropy is not exact");
    } else {
      const Tensor target = samples("target", scenario_.data.target, 1);
      LossSums<Arithmetic> sums(arithmetic_, loss_rows(scenario_, step_, 1));
      const DType dtype = loss_dtype(scenario_);
      Tensor y = activations_.back();
      round(y, dtypes_.given(activations_.size() - 1), dtype);
      arithmetic_.set_dtype(dtype);
      sums.add(arithmetic_.cross_entropy(y, target),
               [&](auto& sum, const Tensor& part) { arithmetic_.add_terms(sum, part); });
      finish_losses(sums, 1);
      gradients_.back() = sums.scaled(arithmetic_.cross_entropy_gradient(y, target), 1);
    }
  }

  [[nodiscard]] std::size_t input_index(std::size_t module, std::size_t input) const {
    return static_cast<std::size_t>(inputs_of(scenario_.model, static_cast<int>(module)).at(input));
  }
  /// As the module reads it.
  [[nodiscard]] const Tensor& input(std::size_t module, std::size_t input = 0) {
    const std::size_t index = input_index(module, input);
    if (!dtypes_.is_emulated()) return activations_[index];
    const DType from = dtypes_.given(index);
    const DType dtype = dtypes_.of_module(module).inputs[input];
    if (promoted(from, dtype) == dtype) return activations_[index];
    const auto [cast, is_new] = casts_.try_emplace({module, input}, activations_[index]);
    if (is_new) arithmetic_.round(cast->second, dtype);
    return cast->second;
  }
  [[nodiscard]] const Tensor& weight(std::size_t module, std::size_t index = 0) const {
    return parameter(module_parameters_[module].weights.at(index));
  }
  [[nodiscard]] const Tensor* bias(std::size_t module) const {
    const int bias = module_parameters_[module].bias;
    return bias < 0 ? nullptr : &parameter(bias);
  }

  /// What the module hands on.
  [[nodiscard]] Tensor output(std::size_t module) {
    if (dtypes_.has_terms(module)) {
      // Terms are handed on as such, or added up before: in the dtype of fewer digits.
      const ModuleDTypes& dtypes = dtypes_.of_module(module);
      const bool is_given_narrower = unit_roundoff(dtypes.given) > unit_roundoff(dtypes.output);
      set_terms(is_given_narrower ? dtypes.given : dtypes.output);
    }
    Tensor y = forward(module);
    arithmetic_.clear_term_rounding();
    if (dtypes_.is_emulated()) {
      const ModuleDTypes& dtypes = dtypes_.of_module(module);
      round(y, carrier_, dtypes.output);
      round(y, dtypes.output, dtypes.given);
    }
    for (const Bypass& bypass : bypasses_) {
      if (bypass.last != static_cast<int>(module)) continue;
      const auto source = static_cast<std::size_t>(bypass.source);
      arithmetic_.replace_rows(y, activations_[source], bypass.rows, dtypes_.passing(bypass));
    }
    return y;
  }

  void set_terms(DType dtype) {
    if (dtype != carrier_) arithmetic_.set_term_rounding(dtype, 1);
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
          result_.routes.push_back(arithmetic_.route(spec, input(module, 1), rows_past(module)));
          return arithmetic_.experts(spec, input(module, 0), input(module, 1), weight(module, 0),
                                     weight(module, 1), weight(module, 2));
        default:
          return arithmetic_.norm(spec, input(module), weight(module), bias(module));
      }
    }
  }

  /// Rows that pass by the module, ascending.
  [[nodiscard]] std::vector<std::int64_t> rows_past(std::size_t module) const {
    std::vector<std::int64_t> rows;
    for (const Bypass& bypass : bypasses_) {
      const int m = static_cast<int>(module);
      if (bypass.first <= m && m <= bypass.last) {
        rows.insert(rows.end(), bypass.rows.begin(), bypass.rows.end());
      }
    }
    std::sort(rows.begin(), rows.end());
    return rows;
  }

  /// Gives away the output and its gradient, which no other module reads any more.
  void backward(std::size_t module) {
    if (!needs_gradient_[module + 1]) return;
    const std::string& name = scenario_.model.modules[module].name;
    HPSIM_CHECK(gradients_[module + 1], "nothing reads the output of \"{}\"", name);
    Tensor dy = std::move(*gradients_[module + 1]);
    gradients_[module + 1].reset();
    pass_by(module, dy);
    if (dtypes_.is_emulated()) {
      const ModuleDTypes& dtypes = dtypes_.of_module(module);
      arithmetic_.piece("the gradient of the output of \"" + name + "\"",
                        [&] { round(dy, dtypes.given, dtypes.output); });
    }
    if (scenario_.model.modules[module].type == ModuleType::Experts) {
      backward_experts(module, dy);
    } else {
      backward_operation(module, dy);
    }
    activations_[module + 1] = {};
  }

  /// Rows that pass by a part that ends here give their gradient to what they are, and none to the
  /// part: those around come first.
  void pass_by(std::size_t module, Tensor& dy) {
    for (auto bypass = bypasses_.rbegin(); bypass != bypasses_.rend(); ++bypass) {
      if (bypass->last != static_cast<int>(module)) continue;
      const auto source = static_cast<std::size_t>(bypass->source);
      if (needs_gradient_[source]) {
        const auto& values = Arithmetic::values(dy);
        Tensor passed = arithmetic_.zeros(values.rows, values.cols);
        arithmetic_.replace_rows(passed, dy, bypass->rows, dtypes_.passing_back(*bypass));
        add_to(source, std::move(passed));
      }
      arithmetic_.clear_rows(dy, bypass->rows);
    }
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
      if (dtypes_.has_gradient_terms(module)) set_terms(dtypes_.of_module(module).inputs[0]);
      auto gradients =
          arithmetic_.experts_gradients(spec, input(module, 0), input(module, 1), weight(module, 0),
                                        weight(module, 1), weight(module, 2), dy);
      arithmetic_.clear_term_rounding();
      pass_on(module, 0, std::move(gradients[0]));
      pass_on(module, 1, std::move(gradients[1]));
      const std::vector<int>& weights = module_parameters_[module].weights;
      for (std::size_t i = 0; i < weights.size(); ++i) {
        add_gradient(weights[i], experts_block(weights[i], module, dy, 2 + i),
                     [&] { return std::move(gradients[2 + i]); });
      }
    }
  }

  [[nodiscard]] Block experts_block(int p, std::size_t module, const Tensor& dy,
                                    std::size_t index) {
    if (!of_parameters_.needs_blocks(p)) return {};
    const auto x = std::make_shared<const Tensor>(input(module, 0));
    const auto logits = std::make_shared<const Tensor>(input(module, 1));
    const auto of_y = std::make_shared<const Tensor>(dy);
    return [this, module, x, logits, of_y, index](std::int64_t first, std::int64_t count) {
      Arithmetic arithmetic = arithmetic_.without_rounding();
      const auto part = [&](const Tensor& all) { return arithmetic_.block(all, first, count); };
      return arithmetic
          .experts_gradients(scenario_.model.modules[module], part(*x), part(*logits),
                             weight(module, 0), weight(module, 1), weight(module, 2), part(*of_y))
          .at(index)
          .value;
    };
  }

  void backward_parameters(std::size_t module, const Tensor& dy) {
    const ModuleParameters& own = module_parameters_[module];
    for (const int index : own.weights) {
      const auto compute = [this, module](Arithmetic& arithmetic, const Tensor& of_y,
                                          const Tensor& x) {
        return weight_gradient(arithmetic, module, of_y, x);
      };
      add_gradient(index, of_parameters_.block_of(index, dy, input(module), compute), [&] {
        of_parameters_.set_terms(index);
        Tensor gradient = compute(arithmetic_, dy, input(module));
        arithmetic_.clear_term_rounding();
        return gradient;
      });
    }
    if (own.bias < 0) return;
    const auto compute = [](Arithmetic& arithmetic, const Tensor& of_y, const Tensor& /*same*/) {
      return arithmetic.bias_gradient(of_y);
    };
    add_gradient(own.bias, of_parameters_.block_of(own.bias, dy, dy, compute), [&] {
      of_parameters_.set_terms(own.bias);
      Tensor gradient = arithmetic_.bias_gradient(dy);
      arithmetic_.clear_term_rounding();
      return gradient;
    });
  }

  [[nodiscard]] Tensor weight_gradient(Arithmetic& arithmetic, std::size_t module, const Tensor& dy,
                                       const Tensor& x) const {
    const ModuleSpec& spec = scenario_.model.modules[module];
    if (spec.type == ModuleType::Linear) return arithmetic.weight_gradient(dy, x);
    if (spec.type == ModuleType::Embedding) {
      return arithmetic.embedding_gradient(dy, x, spec.in_features);
    }
    if constexpr (Arithmetic::kIsExact) {
      HPSIM_CHECK(false, "{} is not exact", name_of(spec.type));
      return {};
    } else {
      return arithmetic.norm_weight_gradient(spec, x, dy);
    }
  }

  void backward_inputs(std::size_t module, const Tensor& dy) {
    const ModuleSpec& spec = scenario_.model.modules[module];
    switch (spec.type) {
      case ModuleType::Linear:
        return backward_linear(module, dy);
      case ModuleType::Add:
        pass_on(module, 0, dy, true);
        return pass_on(module, 1, dy, true);
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

  void backward_linear(std::size_t module, const Tensor& dy) {
    if (dtypes_.has_gradient_terms(module)) set_terms(dtypes_.of_module(module).inputs[0]);
    Tensor dx = arithmetic_.input_gradient(dy, weight(module));
    arithmetic_.clear_term_rounding();
    pass_on(module, 0, std::move(dx));
  }

  /// Adds to the gradient of what a module reads, where a parameter before it needs it; one that is
  /// the gradient of its output is rounded already.
  void pass_on(std::size_t module, std::size_t input, Tensor gradient, bool is_output = false) {
    const std::size_t activation = input_index(module, input);
    if (!needs_gradient_[activation]) return;
    if (dtypes_.is_emulated()) {
      const ModuleDTypes& dtypes = dtypes_.of_module(module);
      round(gradient, is_output ? dtypes.output : carrier_, dtypes.inputs[input]);
      round(gradient, dtypes.inputs[input], dtypes_.given(activation));
    }
    add_to(activation, std::move(gradient));
  }

  void add_to(std::size_t activation, Tensor gradient) {
    std::optional<Tensor>& whole = gradients_[activation];
    if (whole) {
      whole = arithmetic_.sum(*whole, gradient);
      round(*whole, carrier_, dtypes_.given(activation));
    } else {
      whole = std::move(gradient);
    }
  }

  /// Adds what a module gives to the gradient of a parameter; the last one completes it.
  template <class Compute>
  void add_gradient(int index, Block block, const Compute& compute) {
    const auto i = static_cast<std::size_t>(index);
    if (!has_gradient_[i]) return;
    const bool is_first = !has_term_[i];
    has_term_[i] = true;
    blocks_[i].push_back(std::move(block));
    arithmetic_.piece("the gradient of \"" + scenario_.parameters[i].name + "\"", [&] {
      Tensor term = compute();
      result_.gradients[i] =
          is_first ? std::move(term) : arithmetic_.sum(result_.gradients[i], term);
      if (--users_left_[i] > 0) return;
      of_parameters_.finish(result_.gradients[i], index, blocks_[i],
                            num_positions(scenario_.model));
      blocks_[i].clear();
    });
  }

  [[nodiscard]] const Tensor& parameter(int index) const {
    const auto i = static_cast<std::size_t>(index);
    return dtypes_.is_emulated() ? gathered_[i] : parameters_[i];
  }

  const Scenario& scenario_;
  std::int64_t step_;
  Arithmetic& arithmetic_;
  const std::vector<Tensor>& parameters_;
  PassDTypes dtypes_;
  DType carrier_;
  ParameterGradients<Arithmetic> of_parameters_;
  std::vector<Tensor> gathered_;  ///< like the parameters, in the dtypes that compute with them
  std::vector<Bypass> bypasses_;
  std::vector<ModuleParameters> module_parameters_;
  std::vector<int> users_left_;             ///< per parameter: modules whose gradient it lacks
  std::vector<bool> has_term_;              ///< per parameter: of some module
  std::vector<bool> has_gradient_;          ///< per parameter, in this step
  std::vector<std::vector<Block>> blocks_;  ///< per parameter: of the modules that use it
  std::vector<bool> needs_gradient_;        ///< per activation
  std::vector<Tensor> activations_;         ///< see ModuleSpec::inputs
  std::map<std::pair<std::size_t, std::size_t>, Tensor> casts_;  ///< by module and input
  std::vector<std::optional<Tensor>> gradients_;  ///< of activations, by those that read them
  PassResult<Arithmetic> result_;
};

}  // namespace hpsim
