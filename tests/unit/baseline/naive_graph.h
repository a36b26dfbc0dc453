#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "naive_ops.h"
#include "scenario/precision.h"
#include "scenario/scenario.h"

namespace hpsim::test {

/// A part [first, end) of modules that a rank leaves out: what it gives is what it takes.
struct NaivePart {
  int first = 0;
  int end = 0;
};

/// Those of `data.inactive` that a rank leaves out of a pass.
[[nodiscard]] std::vector<NaivePart> parts_left_out(const Scenario& scenario, std::int64_t step,
                                                    std::int64_t micro_batch, std::int64_t rank);

/// Forward and backward of a model's operations on the rows of one rank, numbers rounded to dtypes
/// narrower than T where module_dtypes says so.
template <class T>
class NaiveGraph {
 public:
  using Tensor = NaiveTensor<T>;

  /// `parameters` are like Scenario::parameters.
  NaiveGraph(const Scenario& scenario, NaiveOps<T>& ops,
             const std::vector<std::vector<T>>& parameters, std::vector<NaivePart> left_out = {})
      : scenario_(scenario),
        ops_(ops),
        parameters_(parameters),
        dtypes_(module_dtypes(scenario)),
        left_out_(std::move(left_out)) {}

  [[nodiscard]] Tensor forward(Tensor input);
  /// Fills `gradients`, which are like the parameters. If `is_faulty`, one term of the first
  /// parameter's first gradient (an embedding's: of row 0's token) is off by one part in 1000.
  void backward(Tensor dy, bool is_faulty, std::vector<std::vector<T>>& gradients);

 private:
  /// In the dtype in which the module reads it.
  [[nodiscard]] Tensor input(std::size_t module, std::size_t input = 0) const;
  [[nodiscard]] Tensor output(std::size_t module);
  [[nodiscard]] bool is_left_out(std::size_t module) const;
  /// The outermost part that is left out and ends with the module; null: none.
  [[nodiscard]] const NaivePart* part_before(std::size_t module) const;
  [[nodiscard]] DType dtype_of(std::size_t activation) const;
  void add_gradient(std::size_t activation, Tensor term);
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
  std::vector<ModuleDTypes> dtypes_;
  std::vector<NaivePart> left_out_;
  std::vector<Tensor> activations_;
  std::vector<Tensor> gradients_;  ///< of activations
};

}  // namespace hpsim::test
