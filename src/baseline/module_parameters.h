#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "model/model_spec.h"
#include "model/parameters.h"

namespace hpsim {

/// Parameters of a module: weights in their order, and a bias, -1: none.
struct ModuleParameters {
  std::vector<int> weights;
  int bias = -1;

  [[nodiscard]] std::vector<int> all() const;
};

/// Of every module; one that is tied has the weights of the other, and its bias with ties_bias.
[[nodiscard]] std::vector<ModuleParameters> parameters_by_module(
    const ModelSpec& model, const std::vector<ParameterSpec>& parameters);

/// Per activation whether it needs a gradient: if a parameter that is trained has a part in it.
[[nodiscard]] std::vector<bool> needed_gradients(const ModelSpec& model,
                                                 const std::vector<ModuleParameters>& parameters,
                                                 const std::function<bool(int)>& is_trained);

/// Rows and columns of a parameter as a matrix: a weight as it is, those of experts under one
/// another, everything else one row.
struct MatrixSize {
  std::int64_t rows = 1;
  std::int64_t cols = 1;
};

[[nodiscard]] MatrixSize matrix_size(const ParameterSpec& parameter);

}  // namespace hpsim
