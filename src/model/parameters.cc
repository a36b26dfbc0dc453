#include "model/parameters.h"

namespace hpsim {
namespace {

void append_parameters(const ModuleSpec& module, int index,
                       std::vector<ParameterSpec>& parameters) {
  using Kind = ParameterSpec::Kind;
  const std::string weight = module.name + ".weight";
  const std::string bias = module.name + ".bias";
  switch (module.type) {
    case ModuleType::Linear:
      if (module.tied_to < 0) {
        const Shape shape = {module.out_features, module.in_features};
        parameters.push_back({weight, shape, Kind::LinearWeight, index});
      }
      if (module.bias && !module.ties_bias) {
        parameters.push_back({bias, {module.out_features}, Kind::LinearBias, index});
      }
      break;
    case ModuleType::Embedding:
      if (module.tied_to < 0) {
        const Shape shape = {module.in_features, module.out_features};
        parameters.push_back({weight, shape, Kind::EmbeddingWeight, index});
      }
      break;
    case ModuleType::LayerNorm:
      parameters.push_back({weight, {module.in_features}, Kind::NormWeight, index});
      parameters.push_back({bias, {module.in_features}, Kind::NormBias, index});
      break;
    case ModuleType::RmsNorm:
      parameters.push_back({weight, {module.in_features}, Kind::NormWeight, index});
      break;
    case ModuleType::Experts: {
      const Shape inwards = {module.num_experts, module.hidden, module.in_features};
      const Shape outwards = {module.num_experts, module.in_features, module.hidden};
      parameters.push_back({module.name + ".w1", inwards, Kind::ExpertWeight, index});
      parameters.push_back({module.name + ".w2", outwards, Kind::ExpertWeight, index});
      parameters.push_back({module.name + ".w3", inwards, Kind::ExpertWeight, index});
      break;
    }
    case ModuleType::Relu:
    case ModuleType::Tanh:
    case ModuleType::Silu:
    case ModuleType::Gelu:
    case ModuleType::AttentionCore:
    case ModuleType::SiluGate:
    case ModuleType::Add:
      break;
  }
}

}  // namespace

std::vector<ParameterSpec> list_parameters(const ModelSpec& model) {
  std::vector<ParameterSpec> parameters;
  int index = 0;
  for (const ElementwiseSpec& spec : model.elementwise) {
    parameters.push_back({spec.name, spec.shape, ParameterSpec::Kind::Elementwise, index++});
  }
  for (const ModuleSpec& module : model.modules)
    append_parameters(module, index++, parameters);
  return parameters;
}

std::vector<std::string> names_of(const std::vector<ParameterSpec>& parameters) {
  std::vector<std::string> names;
  for (const ParameterSpec& parameter : parameters)
    names.push_back(parameter.name);
  return names;
}

}  // namespace hpsim
