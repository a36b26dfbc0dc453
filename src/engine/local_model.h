#pragma once

#include <cstdint>
#include <vector>

#include "engine/exactness.h"
#include "engine/rank_memory.h"
#include "engine/row_blocks.h"
#include "scenario/scenario.h"
#include "tensor/buffer.h"

namespace hpsim {

/// The model on one rank, for its own samples: activations, loss, gradients before reduction.
template <class T>
class LocalModel {
 public:
  /// `memory` and `arithmetic` must outlive this.
  LocalModel(const Scenario& scenario, Rank rank, RankMemory<T>& memory,
             ExactArithmetic& arithmetic);

  void enter_step(std::int64_t step) { step_ = step; }

  /// One module, or one elementwise parameter. \pre its parameters are whole
  void forward(int module);
  /// The local loss l = s/n (local_mean) or s (sum), one term per elementwise parameter: of the
  /// part that this rank holds, over the samples that it uses; and the gradient of the output.
  [[nodiscard]] std::vector<T> loss();
  /// Writes the gradients of the module's parameters. \pre RankMemory::begin_gradients(module)
  void backward(int module);

 private:
  void forward_elementwise(int parameter);
  void backward_elementwise(int parameter);
  [[nodiscard]] RowBlocks<T> bias_of(int module, bool of_gradient);
  /// Index in the global data of this rank's first element, for samples of `elems` elements.
  [[nodiscard]] std::int64_t first_element(std::int64_t elems) const;
  /// Samples, in the global batch, that an elementwise parameter uses on this rank: its own, or
  /// those of all ranks along data dims that cut the parameter.
  [[nodiscard]] std::vector<Interval> samples_of(int parameter) const;
  /// What the sum over `count` loss terms is divided by.
  [[nodiscard]] T loss_divisor(std::int64_t count) const;
  [[nodiscard]] std::int64_t input_elems(int module) const;

  const Scenario& scenario_;
  RankMemory<T>& memory_;
  ExactArithmetic& arithmetic_;
  std::int64_t batch_ = 0;         ///< samples of this rank in one step
  std::int64_t first_sample_ = 0;  ///< of this rank in the global batch
  int first_with_parameters_ = 0;  ///< module; nothing before it needs a gradient
  std::int64_t step_ = 0;          ///< optimizer step
  Coordinate coordinate_;
  std::vector<T> loss_terms_;
  std::vector<int> weight_of_;          ///< per module: its first parameter, -1 for none
  std::vector<Buffer<T>> activations_;  ///< [0]: input, [m + 1]: output of module m
  Buffer<T> output_gradient_;           ///< of the module whose backward comes next
  std::vector<Buffer<T>> inputs_;       ///< elementwise, per parameter
  std::vector<Buffer<T>> targets_;      ///< elementwise, per parameter
};

}  // namespace hpsim
