#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "naive_ops.h"
#include "scenario/scenario.h"

namespace hpsim::test {

/// Forward and backward of a model's operations on the rows of one rank.
template <class T>
class NaiveGraph {
 public:
  using Tensor = NaiveTensor<T>;

  /// `parameters` are like Scenario::parameters.
  NaiveGraph(const Scenario& scenario, NaiveOps<T>& ops,
             const std::vector<std::vector<T>>& parameters)
      : scenario_(scenario), ops_(ops), parameters_(parameters) {}

  [[nodiscard]] Tensor forward(Tensor input);
  /// Fills `gradients`, which are like the parameters. If `is_faulty`, one term of the first
  /// parameter's first gradient (an embedding's: of row 0's token) is off by one part in 1000.
  void backward(Tensor dy, bool is_faulty, std::vector<std::vector<T>>& gradients);

 private:
  [[nodiscard]] const Tensor& input(std::size_t module, std::size_t input = 0) const;
  [[nodiscard]] std::int64_t parameter_of(std::size_t module, bool is_bias) const;
  [[nodiscard]] Tensor weight(std::size_t module) const;
  /// w1, w2 or w3 of experts, their matrices under one another.
  [[nodiscard]] Tensor expert_weight(std::size_t module, const std::string& name) const;
  [[nodiscard]] std::int64_t parameter_named(const std::string& name) const;
  [[nodiscard]] const T* bias(std::size_t module) const;
  [[nodiscard]] Tensor weight_gradient(std::size_t module, const Tensor& dy);
  [[nodiscard]] std::vector<Tensor> input_gradients(std::size_t module, const Tensor& dy);
  /// Likewise, and adds those of the weights to `gradients`.
  [[nodiscard]] std::vector<Tensor> experts_gradients(std::size_t module, const Tensor& dy,
                                                      std::vector<std::vector<T>>& gradients);

  const Scenario& scenario_;
  NaiveOps<T>& ops_;
  const std::vector<std::vector<T>>& parameters_;
  std::vector<Tensor> activations_;
};

}  // namespace hpsim::test
