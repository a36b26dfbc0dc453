#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/check.h"
#include "baseline/expert_routes.h"
#include "baseline/gradient_stages.h"
#include "baseline/module_parameters.h"
#include "baseline/row_blocks.h"
#include "baseline/sample_data.h"
#include "model/model_spec.h"
#include "scenario/gradients.h"
#include "scenario/module_layouts.h"
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
  using Plain = PlainTensor<typename Arithmetic::Number>;

  /// `parameters` are like Scenario::parameters, each of its matrix_size.
  ReferencePass(const Scenario& scenario, std::int64_t step, Arithmetic& arithmetic,
                const std::vector<Tensor>& parameters)
      : scenario_(scenario),
        step_(step),
        arithmetic_(arithmetic),
        parameters_(parameters),
        carrier_(carrier_dtype(scenario)),
        is_emulated_(is_emulated(scenario)) {}

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
  /// The values of one gradient from samples of one data rank's micro-batch: rows [first, first +
  /// count).
  using Block = std::function<Plain(std::int64_t first, std::int64_t count)>;

  // Roundings: none where the dtype holds all numbers of the one before.

  void round(Tensor& tensor, DType from, DType to) {
    if (promoted(from, to) != to) arithmetic_.round(tensor, to);
  }

  /// Casts parameters to the dtype in which they are computed with.
  void gather_parameters() {
    for (std::size_t i = 0; is_emulated_ && i < parameters_.size(); ++i) {
      const int p = static_cast<int>(i);
      const DType held = parameter_dtype(scenario_, p);
      const DType dtype = compute_dtype(scenario_, p);
      gathered_.push_back(parameters_[i]);
      if (promoted(held, dtype) == dtype) continue;
      arithmetic_.piece("the gathered \"" + scenario_.parameters[i].name + "\"",
                        [&] { arithmetic_.cast(gathered_.back(), dtype); });
    }
    if (is_emulated_) partial_dims_ = partial_dims(scenario_);
  }

  [[nodiscard]] bool has_gradient_now(int p) const { return has_gradient(scenario_, p, step_); }

  /// Times k / F, and what the stages of a gradient round, if they round more than the carrier.
  void finish_gradient(Tensor& gradient, int p, const std::vector<Block>& blocks,
                       std::int64_t positions) {
    if (!is_emulated_) return scale(gradient, p);
    const GradientStages stages =
        gradient_stages(scenario_, p, partial_dims_[static_cast<std::size_t>(p)]);
    if (!stages.is_emulated()) return scale(gradient, p);
    const double factor = stages.prescale * stages.scale;
    const Plain& whole = Arithmetic::values(gradient);
    std::vector<double> variance;
    if constexpr (!Arithmetic::kIsExact) variance.resize(whole.data.size());
    const auto on_rounding = [&](const Plain& sum, DType dtype, double sum_factor) {
      if constexpr (Arithmetic::kIsExact) {
        arithmetic_.check_rounding(sum, dtype, sum_factor);
      } else {
        // Rounded in units of sum_factor, then still times the rest of the factor.
        for (std::size_t i = 0; sum_factor != 0 && i < variance.size(); ++i) {
          const double rest = factor / sum_factor;
          variance[i] += rest * rest * rounding_variance(dtype, sum.data[i] * sum_factor);
        }
      }
    };
    const std::int64_t count = scenario_.micro_batch_size() * positions;
    const auto block = [&](const GradientStages::Source& source, std::int64_t m) {
      Plain sum(whole.rows, whole.cols);
      for (const Block& use : blocks) {
        Plain own(whole.rows, whole.cols);
        for (const std::int64_t rank : source) {
          const std::int64_t index = rank * scenario_.training.micro_batches + m;
          own.map() += use(index * count, count).map();
        }
        // Several modules that use a parameter: their gradients are rounded one by one, and so is
        // what they add up to.
        if (blocks.size() > 1 && stages.compute != carrier_) on_rounding(own, stages.compute, 1);
        sum.map() += own.map();
      }
      return sum;
    };
    follow_stages<typename Arithmetic::Number>(stages, whole.rows, whole.cols, block, on_rounding);
    scale(gradient, p);
    if constexpr (!Arithmetic::kIsExact) {
      for (std::size_t i = 0; i < variance.size(); ++i)
        gradient.variance[i] += variance[i];
    }
  }

  void scale(Tensor& gradient, int p) {
    arithmetic_.scale_gradient(gradient, gradient_factor(scenario_, p),
                               gradient_divisor(scenario_));
  }

  /// Where ranks hold parts of what a gradient is of one sample, each is rounded, too.
  void set_gradient_terms(int p) {
    if (!is_emulated_) return;
    const GradientStages stages =
        gradient_stages(scenario_, p, partial_dims_[static_cast<std::size_t>(p)]);
    if (!stages.splits_samples) return;
    if (stages.compute != carrier_) arithmetic_.set_term_rounding(stages.compute, 2);
    if (stages.compute == carrier_ && stages.reduce != carrier_) {
      arithmetic_.set_term_rounding(stages.reduce, 2);
    }
  }

  /// Factors of rows: `numerator` over their divisors.
  [[nodiscard]] static std::vector<double> row_factors(const LossRows& rows, double numerator) {
    std::vector<double> factors;
    for (const double divisor : rows.divisors)
      factors.push_back(divisor == 0 ? 0 : numerator / divisor);
    return factors;
  }
  [[nodiscard]] Tensor scaled(const Tensor& x, const LossRows& rows, double numerator) {
    if (rows.is_uniform()) return arithmetic_.scaled(x, numerator / rows.groups[0].divisor);
    return arithmetic_.scaled_rows(x, row_factors(rows, numerator));
  }

  using Sums = std::vector<typename Arithmetic::Sum>;

  /// Per group of rows, calls add(sum, its rows of the tensor).
  template <class Add>
  void add_to_sums(Sums& sums, const Tensor& tensor, const LossRows& rows, const Add& add) {
    sums.resize(rows.groups.size());
    for (std::size_t i = 0; i < sums.size(); ++i) {
      if (rows.is_uniform()) {
        add(sums[i], tensor);
      } else {
        add(sums[i], arithmetic_.rows(tensor, rows.groups[i].rows));
      }
    }
  }

  /// Adds them to losses, each times `numerator`.
  void finish_losses(const Sums& sums, const LossRows& rows, double numerator, bool is_first) {
    arithmetic_.piece("the loss", [&] {
      for (std::size_t i = 0; i < sums.size(); ++i) {
        const double divisor = rows.num_ranks * rows.groups[i].divisor;
        const auto term = arithmetic_.finish(sums[i], numerator / divisor);
        if (is_first && i == 0) {
          result_.loss = term;
        } else {
          arithmetic_.add(result_.loss, term);
        }
      }
    });
    typename Arithmetic::Sum all{};
    for (const auto& sum : sums)
      arithmetic_.add_sum(all, sum);
    const auto term = arithmetic_.finish(all, numerator / rows.all_terms);
    if (is_first) {
      result_.global_loss = term;
    } else {
      arithmetic_.add(result_.global_loss, term);
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
    const LossRows rows = loss_rows(scenario_, step_, elems, p);
    const bool has_gradient = has_gradient_now(p);
    Tensor& gradient = result_.gradients[index];
    if (has_gradient) gradient = arithmetic_.zeros(1, elems);
    Sums sums;
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
        add_to_sums(sums, error, rows,
                    [&](auto& sum, const Tensor& part) { arithmetic_.add_squares(sum, part); });
      });
      if (has_gradient) {
        arithmetic_.piece("the gradient of \"" + name + "\"",
                          [&] { error = scaled(error, rows, 1); });
      }
      arithmetic_.set_dtype(carrier_);
      if (!has_gradient) continue;
      arithmetic_.piece("the gradient of \"" + name + "\"", [&] {
        round(error, carrier_, dtypes.given);
        round(error, dtypes.given, dtypes.product);
        set_gradient_terms(p);
        Tensor part = arithmetic_.column_products(x, error);
        arithmetic_.clear_term_rounding();
        finish_gradient(part, p, {block_of(x, error, column_products)}, 1);
        arithmetic_.assign(gradient, begin, part);
      });
    }
    arithmetic_.set_dtype(loss_dtype(scenario_));
    finish_losses(sums, rows, 0.5, false);
    arithmetic_.set_dtype(carrier_);
  }

  [[nodiscard]] static Tensor column_products(Arithmetic& arithmetic, const Tensor& a,
                                              const Tensor& b) {
    return arithmetic.column_products(a, b);
  }

  /// Of what a function of two tensors with one row per position makes of some rows.
  template <class Function>
  [[nodiscard]] Block block_of(const Tensor& a, const Tensor& b, const Function& function) {
    if (!is_emulated_) return {};
    return [this, a = std::make_shared<const Tensor>(a), b = std::make_shared<const Tensor>(b),
            function](std::int64_t first, std::int64_t count) {
      Arithmetic arithmetic = arithmetic_.without_rounding();
      return Arithmetic::values(function(arithmetic, arithmetic_.block(*a, first, count),
                                         arithmetic_.block(*b, first, count)));
    };
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
    if (is_emulated_) {
      arithmetic_.piece("the gradient of the loss",
                        [&] { round(*gradients_.back(), carrier_, dtypes_.back().given); });
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
    if (!is_emulated_) return;
    dtypes_ = module_dtypes(scenario_);
    layouts_ = module_layouts(scenario_);
  }

  [[nodiscard]] Tensor samples(const char* name, const FillSpec& fill, std::int64_t features) {
    const std::int64_t positions = num_positions(scenario_.model);
    const std::int64_t elems = positions * features;
    return arithmetic_.constant(scenario_.training.global_batch * positions, features,
                                draw_samples(scenario_, name, fill, step_, elems, 0, elems));
  }

  [[nodiscard]] DType given_dtype(std::size_t activation) const {
    if (!is_emulated_) return carrier_;
    return activation == 0 ? input_dtype(scenario_) : dtypes_[activation - 1].given;
  }

  // s = sum of (y - t)² over samples, positions and features, gradient of y 2 (y - t).
  void run_mse(std::int64_t features) {
    const Tensor target = samples("target", scenario_.data.target, features);
    const LossRows rows = loss_rows(scenario_, step_, features);
    Sums sums;
    arithmetic_.piece("the loss", [&] {
      const Tensor error =
          loss_error(activations_.back(), given_dtype(activations_.size() - 1), target);
      add_to_sums(sums, error, rows,
                  [&](auto& sum, const Tensor& part) { arithmetic_.add_squares(sum, part); });
      gradients_.back() = scaled(error, rows, 2);
    });
    finish_losses(sums, rows, 1, true);
  }

  // s = sum over samples and positions of -log softmax(y)[t].
  void run_cross_entropy() {
    if constexpr (Arithmetic::kIsExact) {
      HPSIM_CHECK(false, "cross_entropy is not exact");
    } else {
      const Tensor target = samples("target", scenario_.data.target, 1);
      const LossRows rows = loss_rows(scenario_, step_, 1);
      const DType dtype = loss_dtype(scenario_);
      Tensor y = activations_.back();
      round(y, given_dtype(activations_.size() - 1), dtype);
      arithmetic_.set_dtype(dtype);
      Sums sums;
      add_to_sums(sums, arithmetic_.cross_entropy(y, target), rows,
                  [&](auto& sum, const Tensor& part) { arithmetic_.add_terms(sum, part); });
      finish_losses(sums, rows, 1, true);
      gradients_.back() = scaled(arithmetic_.cross_entropy_gradient(y, target), rows, 1);
    }
  }

  [[nodiscard]] std::size_t input_index(std::size_t module, std::size_t input) const {
    return static_cast<std::size_t>(inputs_of(scenario_.model, static_cast<int>(module)).at(input));
  }
  /// As the module reads it.
  [[nodiscard]] const Tensor& input(std::size_t module, std::size_t input = 0) {
    const std::size_t index = input_index(module, input);
    if (!is_emulated_) return activations_[index];
    const DType from = given_dtype(index);
    const DType dtype = dtypes_[module].inputs[input];
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
    Tensor y;
    if (is_emulated_) {
      const ModuleDTypes& dtypes = dtypes_[module];
      const bool is_partial = has_partial(layouts_[module].output);
      set_terms(module, is_partial, dtypes.output);
      y = forward(module);
      arithmetic_.clear_term_rounding();
      round(y, carrier_, dtypes.output);
      round(y, dtypes.output, dtypes.given);
    } else {
      y = forward(module);
    }
    for (const Bypass& bypass : bypasses_) {
      if (bypass.last != static_cast<int>(module)) continue;
      const auto source = static_cast<std::size_t>(bypass.source);
      arithmetic_.replace_rows(y, activations_[source], bypass.rows, bypass_dtypes(bypass));
    }
    return y;
  }

  /// Dtypes to which what passes by may be rounded.
  [[nodiscard]] std::vector<DType> bypass_dtypes(const Bypass& bypass) const {
    std::vector<DType> result;
    if (!is_emulated_) return result;
    DType dtype = given_dtype(static_cast<std::size_t>(bypass.source));
    const ModuleDTypes& first = dtypes_[static_cast<std::size_t>(bypass.first)];
    const ModuleDTypes& last = dtypes_[static_cast<std::size_t>(bypass.last)];
    for (const DType next : {first.inputs.at(0), last.output, last.given}) {
      if (promoted(dtype, next) != next) result.push_back(next);
      dtype = next;
    }
    return result;
  }

  /// The same of its gradient, on the way back.
  [[nodiscard]] std::vector<DType> gradient_dtypes(const Bypass& bypass) const {
    if (!is_emulated_) return {};
    std::vector<DType> result;
    const ModuleDTypes& first = dtypes_[static_cast<std::size_t>(bypass.first)];
    const ModuleDTypes& last = dtypes_[static_cast<std::size_t>(bypass.last)];
    DType dtype = last.given;
    for (const DType next :
         {last.output, first.inputs.at(0), given_dtype(static_cast<std::size_t>(bypass.source))}) {
      if (promoted(dtype, next) != next) result.push_back(next);
      dtype = next;
    }
    return result;
  }

  [[nodiscard]] static bool has_partial(const std::vector<Placement>& layout) {
    return std::any_of(layout.begin(), layout.end(), [](const Placement& placement) {
      return std::holds_alternative<Partial>(placement);
    });
  }

  /// Where a sum is made of terms of ranks, or of what experts send back.
  void set_terms(std::size_t module, bool is_partial, DType dtype) {
    const bool is_exchange = scenario_.model.modules[module].type == ModuleType::Experts;
    if ((is_partial || is_exchange) && dtype != carrier_) arithmetic_.set_term_rounding(dtype, 1);
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
    if (is_emulated_) {
      arithmetic_.piece("the gradient of the output of \"" + name + "\"",
                        [&] { round(dy, dtypes_[module].given, dtypes_[module].output); });
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
        const Plain& values = Arithmetic::values(dy);
        Tensor passed = arithmetic_.zeros(values.rows, values.cols);
        arithmetic_.replace_rows(passed, dy, bypass->rows, gradient_dtypes(*bypass));
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
      if (is_emulated_) set_terms(module, true, dtypes_[module].inputs[0]);
      auto gradients =
          arithmetic_.experts_gradients(spec, input(module, 0), input(module, 1), weight(module, 0),
                                        weight(module, 1), weight(module, 2), dy);
      arithmetic_.clear_term_rounding();
      pass_on(module, 0, std::move(gradients[0]));
      pass_on(module, 1, std::move(gradients[1]));
      const std::vector<int>& weights = module_parameters_[module].weights;
      for (std::size_t i = 0; i < weights.size(); ++i) {
        add_gradient(weights[i], experts_block(module, dy, 2 + i),
                     [&] { return std::move(gradients[2 + i]); });
      }
    }
  }

  [[nodiscard]] Block experts_block(std::size_t module, const Tensor& dy, std::size_t index) {
    if (!is_emulated_) return {};
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
      add_gradient(index, block_of(dy, input(module), compute), [&] {
        set_gradient_terms(index);
        Tensor gradient = compute(arithmetic_, dy, input(module));
        arithmetic_.clear_term_rounding();
        return gradient;
      });
    }
    if (own.bias < 0) return;
    const auto compute = [](Arithmetic& arithmetic, const Tensor& of_y, const Tensor& /*same*/) {
      return arithmetic.bias_gradient(of_y);
    };
    add_gradient(own.bias, block_of(dy, dy, compute), [&] {
      set_gradient_terms(own.bias);
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
    if (is_emulated_) {
      const bool is_partial = has_partial(layouts_[module].input_gradients.at(0));
      set_terms(module, is_partial, dtypes_[module].inputs[0]);
    }
    Tensor dx = arithmetic_.input_gradient(dy, weight(module));
    arithmetic_.clear_term_rounding();
    pass_on(module, 0, std::move(dx));
  }

  /// Adds to the gradient of what a module reads, where a parameter before it needs it; one that is
  /// the gradient of its output is rounded already.
  void pass_on(std::size_t module, std::size_t input, Tensor gradient, bool is_output = false) {
    const std::size_t activation = input_index(module, input);
    if (!needs_gradient_[activation]) return;
    if (is_emulated_) {
      const DType dtype = dtypes_[module].inputs[input];
      round(gradient, is_output ? dtypes_[module].output : carrier_, dtype);
      round(gradient, dtype, given_dtype(activation));
    }
    add_to(activation, std::move(gradient));
  }

  void add_to(std::size_t activation, Tensor gradient) {
    std::optional<Tensor>& whole = gradients_[activation];
    if (whole) {
      whole = arithmetic_.sum(*whole, gradient);
      if (is_emulated_) round(*whole, carrier_, given_dtype(activation));
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
    if (is_emulated_) blocks_[i].push_back(std::move(block));
    arithmetic_.piece("the gradient of \"" + scenario_.parameters[i].name + "\"", [&] {
      Tensor term = compute();
      result_.gradients[i] =
          is_first ? std::move(term) : arithmetic_.sum(result_.gradients[i], term);
      if (--users_left_[i] > 0) return;
      finish_gradient(result_.gradients[i], index, blocks_[i], num_positions(scenario_.model));
      blocks_[i].clear();
    });
  }

  [[nodiscard]] const Tensor& parameter(int index) const {
    const auto i = static_cast<std::size_t>(index);
    return is_emulated_ ? gathered_[i] : parameters_[i];
  }

  const Scenario& scenario_;
  std::int64_t step_;
  Arithmetic& arithmetic_;
  const std::vector<Tensor>& parameters_;
  DType carrier_;
  bool is_emulated_;  ///< else nothing is rounded but by arithmetic
  std::vector<Tensor> gathered_;
  std::vector<MeshDims> partial_dims_;
  std::vector<ModuleDTypes> dtypes_;
  std::vector<ModuleLayout> layouts_;
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
