#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "base/dtype.h"
#include "baseline/plain_tensor.h"
#include "scenario/scenario.h"

namespace hpsim {

/// In which dtypes, and in what order, the gradients of data ranks and micro-batches become G:
///   a rank's own of a micro-batch     rounded to `compute`
///   added up until they are reduced   `reduce`, after each addition
///   times `prescale`                  `reduce`
///   added over the ranks of a replica, then over replicas, then over parts of samples: `reduce`,
///                                     outputs that wait for the replicas add up in it
///   times `scale`                     `reduce`
///   stored, and added to what earlier micro-batches of the step stored: `parameter`
/// What is added over no replicas has none to wait for, but its neighbours in a row may have.
struct GradientStages {
  /// Micro-batches that are reduced together.
  struct Segment {
    std::int64_t first = 0;
    std::int64_t end = 0;
    bool adds_replicas = true;  ///< else its sums wait
  };
  /// Data ranks whose samples make one rank's gradient: several where TP or EP cut the parameter
  /// along a data dim.
  using Source = std::vector<std::int64_t>;

  DType carrier = DType::Float32;
  DType compute = DType::Float32;
  DType reduce = DType::Float32;
  DType parameter = DType::Float32;
  double prescale = 1;
  double scale = 1;
  bool may_wait = false;        ///< sums are stored, or add up in `reduce` first
  bool splits_samples = false;  ///< ranks hold parts of the gradient of one sample
  std::vector<std::vector<Source>> replicas;
  std::vector<Segment> segments;

  /// Whether any of this rounds more than the carrier does.
  [[nodiscard]] bool is_emulated() const {
    return compute != carrier || reduce != carrier || parameter != carrier;
  }
};

/// `partial_dims`: mesh dims along which the gradient of `p` is a term of a sum.
[[nodiscard]] GradientStages gradient_stages(const Scenario& scenario, int p,
                                             const MeshDims& partial_dims);

/// Follows the stages with the numbers of one parameter, or a part of it:
///   block(source, m)             the gradient of a micro-batch of a rank, without k / F
///   rounded(sum, dtype, factor)  sum times factor is rounded to dtype
template <class T, class Block, class Rounded>
void follow_stages(const GradientStages& stages, std::int64_t rows, std::int64_t cols,
                   const Block& block, const Rounded& on_rounding) {
  using Tensor = PlainTensor<T>;
  const auto rounded = [&](const Tensor& sum, DType dtype, double factor) {
    if (dtype != stages.carrier) on_rounding(sum, dtype, factor);
  };
  // A power of two rounds nothing, but float16 may underflow.
  const auto product_rounded = [&](const Tensor& sum, double product, double by) {
    int exponent = 0;
    const bool is_power = std::abs(std::frexp(by, &exponent)) == 0.5;
    if (!is_power || stages.reduce == DType::Float16) rounded(sum, stages.reduce, product);
  };
  const double whole_factor = stages.prescale * stages.scale;
  std::vector<Tensor> totals;
  for (const auto& replica : stages.replicas) {
    std::vector<Tensor> sums(stages.segments.size(), Tensor(rows, cols));
    for (const GradientStages::Source& source : replica) {
      for (std::size_t i = 0; i < sums.size(); ++i) {
        Tensor own(rows, cols);
        for (std::int64_t m = stages.segments[i].first; m < stages.segments[i].end; ++m) {
          const Tensor gradient = block(source, m);
          rounded(gradient, stages.compute, 1);
          own.map() += gradient.map();
          rounded(own, stages.reduce, 1);
        }
        product_rounded(own, stages.prescale, stages.prescale);
        sums[i].map() += own.map();
      }
    }
    Tensor waiting(rows, cols);
    std::size_t num_totals = 0;
    for (std::size_t i = 0; i < sums.size(); ++i) {
      if (replica.size() > 1) rounded(sums[i], stages.reduce, stages.prescale);
      waiting.map() += sums[i].map();
      const bool has_waited = i > 0 && !stages.segments[i - 1].adds_replicas;
      if (has_waited) rounded(waiting, stages.reduce, stages.prescale);
      if (!stages.segments[i].adds_replicas) continue;
      if (totals.size() <= num_totals) totals.emplace_back(rows, cols);
      totals[num_totals++].map() += waiting.map();
      waiting.map().setZero();
    }
  }
  Tensor stored(rows, cols);
  for (std::size_t i = 0; i < totals.size(); ++i) {
    if (stages.replicas.size() > 1) rounded(totals[i], stages.reduce, stages.prescale);
    if (stages.splits_samples) rounded(totals[i], stages.reduce, stages.prescale);
    product_rounded(totals[i], whole_factor, stages.scale);
    rounded(totals[i], stages.parameter, whole_factor);
    stored.map() += totals[i].map();
    if (i > 0) rounded(stored, stages.parameter, whole_factor);
    if (i > 0 && stages.may_wait) rounded(stored, stages.reduce, whole_factor);
  }
}

}  // namespace hpsim
