#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "scenario/scenario.h"
#include "trace/training_state.h"

namespace hpsim::test {

/// What is wrong with a naive training on purpose.
enum class Fault {
  None,
  OneTerm,        ///< one sample's term of the first parameter's first gradient is off by 1e-3
  Doubled,        ///< the gradient of the last parameter is twice too large
  MissingSample,  ///< the last sample gives no gradient
};

/// What one step computed, in the scenario's dtype.
struct NaiveStep {
  double loss = 0;
  double grad_norm = 0;
  std::vector<std::vector<double>> gradients;  ///< G, like Scenario::parameters
  TrainingState after;
};

/// A training of T in plain loops, written apart from the baseline and the rank engine: every data
/// rank its samples, every sum in a random order (or one after the other), products fused with sums
/// or not. What a correct distributed run may compute, and no more exact than it must be.
template <class T>
class NaiveTraining {
 public:
  NaiveTraining(const Scenario& scenario, std::uint32_t seed, Fault fault = Fault::None);

  [[nodiscard]] TrainingState state() const;
  [[nodiscard]] NaiveStep step();

 private:
  using Values = std::vector<T>;

  /// Sum of a(i) b(i) over i < count, in some order.
  template <class A, class B>
  [[nodiscard]] T dot(std::int64_t count, const A& a, const B& b);
  [[nodiscard]] Values draw(const std::string& name, const FillSpec& fill, std::int64_t sample,
                            std::int64_t elems) const;
  [[nodiscard]] T mean_factor(double count) const;

  /// Of the module's weight, which its bias follows.
  [[nodiscard]] std::size_t first_parameter(std::size_t module) const;
  /// [module][sample]: what goes into each module, and last the output.
  [[nodiscard]] std::vector<std::vector<Values>> forward(std::int64_t rank);
  /// Turns dy of the output into dy of the input x.
  void backward_linear(std::size_t module, bool is_faulty, const std::vector<Values>& x,
                       std::vector<Values>& dy, std::vector<Values>& gradients);
  /// Fills the rank's gradients and returns its loss.
  [[nodiscard]] T run_rank(std::int64_t rank, std::vector<Values>& gradients);
  [[nodiscard]] T run_rank_modules(std::int64_t rank, std::vector<Values>& gradients);
  [[nodiscard]] T run_rank_elementwise(std::int64_t rank, std::vector<Values>& gradients);
  void update(std::size_t parameter, const Values& gradient);

  const Scenario& scenario_;
  Fault fault_;
  std::mt19937 random_;
  bool shuffles_;
  bool fuses_;
  std::int64_t step_ = 0;
  std::vector<Values> parameters_;
  std::vector<std::vector<Values>> state_;  ///< [state tensor][parameter]
};

}  // namespace hpsim::test
