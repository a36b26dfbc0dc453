#include "baseline/module_parameters.h"

#include <algorithm>

namespace hpsim {

std::vector<int> ModuleParameters::all() const {
  std::vector<int> result = weights;
  if (bias >= 0) result.push_back(bias);
  return result;
}

std::vector<ModuleParameters> parameters_by_module(const ModelSpec& model,
                                                   const std::vector<ParameterSpec>& parameters) {
  std::vector<ModuleParameters> result(model.modules.size());
  for (int i = 0; i < static_cast<int>(parameters.size()); ++i) {
    const ParameterSpec& spec = parameters[static_cast<std::size_t>(i)];
    ModuleParameters& own = result[static_cast<std::size_t>(spec.module)];
    if (spec.kind == ParameterSpec::Kind::LinearBias ||
        spec.kind == ParameterSpec::Kind::NormBias) {
      own.bias = i;
    } else {
      own.weights.push_back(i);
    }
  }
  for (std::size_t m = 0; m < result.size(); ++m) {
    const int tied_to = model.modules[m].tied_to;
    if (tied_to < 0) continue;
    const ModuleParameters& owner = result[static_cast<std::size_t>(tied_to)];
    result[m].weights = owner.weights;
    if (model.modules[m].ties_bias) result[m].bias = owner.bias;
  }
  return result;
}

std::vector<bool> needed_gradients(const ModelSpec& model,
                                   const std::vector<ModuleParameters>& parameters,
                                   const std::function<bool(int)>& is_trained) {
  std::vector<bool> result(parameters.size() + 1, false);
  for (std::size_t m = 0; m < parameters.size(); ++m) {
    const std::vector<int> own = parameters[m].all();
    bool needs = std::any_of(own.begin(), own.end(), is_trained);
    for (const int input : inputs_of(model, static_cast<int>(m)))
      needs = needs || result[static_cast<std::size_t>(input)];
    result[m + 1] = needs;
  }
  return result;
}

MatrixSize matrix_size(const ParameterSpec& parameter) {
  using Kind = ParameterSpec::Kind;
  const Shape& shape = parameter.shape;
  if (parameter.kind == Kind::ExpertWeight) return {shape[0] * shape[1], shape[2]};
  if (parameter.kind == Kind::LinearWeight || parameter.kind == Kind::EmbeddingWeight) {
    return {shape[0], shape[1]};
  }
  return {1, num_elems(shape)};
}

}  // namespace hpsim
