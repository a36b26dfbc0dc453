#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "baseline/gradient_stages.h"
#include "baseline/plain_tensor.h"
#include "baseline/tracked_arithmetic.h"
#include "scenario/module_layouts.h"
#include "scenario/precision.h"
#include "scenario/scenario.h"

namespace hpsim {

/// Makes G out of the gradient that the whole batch gives: times k / F, and what the stages of the
/// reduction round in narrow dtypes. For that each parameter has blocks, one of every module that
/// uses it, which compute the gradient of a part of the rows alone.
template <class Arithmetic>
class ParameterGradients {
 public:
  using Tensor = typename Arithmetic::Tensor;
  using Plain = PlainTensor<typename Arithmetic::Number>;
  /// The values of the gradient from rows [first, first + count); none where nobody needs them.
  using Block = std::function<Plain(std::int64_t first, std::int64_t count)>;

  /// Is given the blocks of a parameter, the rows that a sample has, and a tensor of the size that
  /// they make: all of the gradient, or, of elementwise parameters, the next part of it.
  using Watcher = std::function<void(const std::vector<Block>&, std::int64_t, const Plain&)>;

  ParameterGradients(const Scenario& scenario, Arithmetic& arithmetic)
      : scenario_(scenario), arithmetic_(arithmetic), is_emulated_(is_emulated(scenario)) {
    if (is_emulated_) partial_dims_ = partial_dims(scenario);
  }

  /// Calls `watcher` for parameter `p` once its blocks are known.
  void watch(int p, Watcher watcher) {
    watched_ = p;
    watcher_ = std::move(watcher);
  }

  /// Whether anybody computes parts of the gradient of `p`.
  [[nodiscard]] bool needs_blocks(int p) const { return is_emulated_ || p == watched_; }

  /// Where ranks hold parts of what a gradient is of one sample, each is rounded, too: the
  /// arithmetic's sums are of such terms, until that is ended.
  void set_terms(int p) {
    if (!is_emulated_) return;
    const GradientStages stages = stages_of(p);
    if (!stages.splits_samples) return;
    const DType dtype = stages.compute != stages.carrier ? stages.compute : stages.reduce;
    if (dtype != stages.carrier) arithmetic_.set_term_rounding(dtype, 2);
  }

  /// Of what function(arithmetic, a, b) makes of two tensors with one row per position.
  template <class Function>
  [[nodiscard]] Block block_of(int p, const Tensor& a, const Tensor& b, const Function& function) {
    if (!needs_blocks(p)) return {};
    return [this, a = std::make_shared<const Tensor>(a), b = std::make_shared<const Tensor>(b),
            function](std::int64_t first, std::int64_t count) {
      Arithmetic arithmetic = arithmetic_.without_rounding();
      return Arithmetic::values(function(arithmetic, arithmetic_.block(*a, first, count),
                                         arithmetic_.block(*b, first, count)));
    };
  }

  /// `positions` are rows of a sample.
  void finish(Tensor& gradient, int p, const std::vector<Block>& blocks, std::int64_t positions) {
    if (p == watched_) watcher_(blocks, positions, Arithmetic::values(gradient));
    std::vector<double> variance;
    if (is_emulated_) variance = stage_variance(Arithmetic::values(gradient), p, blocks, positions);
    arithmetic_.scale_gradient(gradient, gradient_factor(scenario_, p),
                               gradient_divisor(scenario_));
    if constexpr (!Arithmetic::kIsExact) {
      for (std::size_t i = 0; i < variance.size(); ++i)
        gradient.variance[i] += variance[i];
    }
  }

 private:
  [[nodiscard]] GradientStages stages_of(int p) const {
    return gradient_stages(scenario_, p, partial_dims_[static_cast<std::size_t>(p)]);
  }

  /// Of G, by roundings of narrow dtypes; empty: there are none, or they are only checked.
  [[nodiscard]] std::vector<double> stage_variance(const Plain& whole, int p,
                                                   const std::vector<Block>& blocks,
                                                   std::int64_t positions) {
    std::vector<double> variance;
    const GradientStages stages = stages_of(p);
    if (!stages.is_emulated()) return variance;
    if constexpr (!Arithmetic::kIsExact) variance.resize(whole.data.size());
    const double factor = stages.prescale * stages.scale;
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
        // Gradients of several modules are rounded one by one, and so is what they add up to.
        const bool is_rounded = blocks.size() > 1 && stages.compute != stages.carrier;
        if (is_rounded) on_rounding(own, stages.compute, 1);
        sum.map() += own.map();
      }
      return sum;
    };
    follow_stages<typename Arithmetic::Number>(stages, whole.rows, whole.cols, block, on_rounding);
    return variance;
  }

  const Scenario& scenario_;
  Arithmetic& arithmetic_;
  bool is_emulated_;
  int watched_ = -1;
  Watcher watcher_;
  std::vector<MeshDims> partial_dims_;
};

}  // namespace hpsim
