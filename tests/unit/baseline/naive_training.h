#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "naive_ops.h"
#include "scenario/scenario.h"
#include "trace/training_state.h"

namespace hpsim::test {

/// What is wrong with a naive training on purpose.
enum class Fault {
  None,
  OneTerm,            ///< one sample's term of the first parameter's first gradient is off by 1e-3
  Doubled,            ///< the gradient of the last parameter is twice too large
  MissingSample,      ///< the last sample gives no gradient
  Bfloat16Reduction,  ///< gradients pass through bfloat16 before ranks add them up
  Bfloat16Accumulation,  ///< micro-batches add up in bfloat16
  MissingMicroBatches,   ///< the mean of losses is not divided by the number of micro-batches
  Float16Storage,        ///< gradients pass through float16 before they are stored
};

/// What one step computed.
struct NaiveStep {
  double loss = 0;
  double grad_norm = 0;
  std::vector<std::vector<double>> gradients;  ///< G, like Scenario::parameters; empty: none
  TrainingState after;
};

/// A training of T in plain loops, written apart from the baseline and the rank engine: every data
/// rank its samples, every sum in a random order (or one after the other), products fused with sums
/// or not. What a correct distributed run may compute, and no more exact than it must be. T is the
/// carrier: numbers of narrower dtypes are rounded to them at every stage.
template <class T>
class NaiveTraining {
 public:
  NaiveTraining(const Scenario& scenario, std::uint32_t seed, Fault fault = Fault::None);

  [[nodiscard]] TrainingState state() const;
  [[nodiscard]] NaiveStep step();

 private:
  using Values = std::vector<T>;

  [[nodiscard]] Values draw(const std::string& name, const FillSpec& fill, DType dtype,
                            std::int64_t first, std::int64_t elems) const;
  /// Of a sample of this step.
  [[nodiscard]] Values draw_sample(const std::string& name, const FillSpec& fill,
                                   std::int64_t sample, std::int64_t elems) const;
  /// Of the micro-batch of a rank.
  [[nodiscard]] std::int64_t first_sample(std::int64_t rank, std::int64_t micro_batch) const;
  [[nodiscard]] std::int64_t num_valid(std::int64_t rank, std::int64_t micro_batch) const;
  [[nodiscard]] T mean_factor(double count) const;
  /// What multiplies every loss term.
  [[nodiscard]] T loss_factor(std::int64_t rank, std::int64_t micro_batch,
                              std::int64_t terms) const;

  /// The rank's rows of every sample of a micro-batch.
  [[nodiscard]] NaiveTensor<T> draw_rows(const std::string& name, const FillSpec& spec,
                                         std::int64_t rank, std::int64_t micro_batch,
                                         std::int64_t features) const;
  /// Loss of the rank's outputs y, and the gradient of y.
  [[nodiscard]] T run_mse(std::int64_t rank, std::int64_t micro_batch, const NaiveTensor<T>& y,
                          NaiveTensor<T>& dy);
  [[nodiscard]] T run_cross_entropy(std::int64_t rank, std::int64_t micro_batch,
                                    const NaiveTensor<T>& y, NaiveTensor<T>& dy);
  /// Fills the rank's gradients of a micro-batch and returns its loss.
  [[nodiscard]] T run_rank(std::int64_t rank, std::int64_t micro_batch,
                           std::vector<Values>& gradients);
  [[nodiscard]] T run_rank_modules(std::int64_t rank, std::int64_t micro_batch,
                                   std::vector<Values>& gradients);
  [[nodiscard]] T run_rank_elementwise(std::int64_t rank, std::int64_t micro_batch,
                                       std::vector<Values>& gradients);
  /// G out of [rank][micro-batch].
  [[nodiscard]] Values reduce(std::size_t parameter,
                              const std::vector<std::vector<Values>>& gradients);
  [[nodiscard]] double norm_of(const std::vector<Values>& gradients) const;
  void update(std::size_t parameter, Values gradient);

  const Scenario& scenario_;
  Fault fault_;
  NaiveOps<T> ops_;
  std::int64_t step_ = 0;
  std::vector<Values> parameters_;
  std::vector<std::vector<Values>> state_;  ///< [state tensor][parameter]
  std::vector<std::int64_t> num_updates_;
};

}  // namespace hpsim::test
