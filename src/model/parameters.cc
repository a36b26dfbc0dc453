#include "model/parameters.h"

namespace hpsim {

std::vector<ParameterSpec> list_parameters(const ModelSpec& model) {
  std::vector<ParameterSpec> parameters;
  int index = 0;
  for (const ElementwiseSpec& spec : model.elementwise) {
    parameters.push_back({spec.name, spec.shape, ParameterSpec::Kind::Elementwise, index++});
  }
  for (const ModuleSpec& module : model.modules) {
    if (module.type == ModuleType::Linear) {
      parameters.push_back({module.name + ".weight",
                            {module.out_features, module.in_features},
                            ParameterSpec::Kind::LinearWeight,
                            index});
      if (module.bias) {
        parameters.push_back(
            {module.name + ".bias", {module.out_features}, ParameterSpec::Kind::LinearBias, index});
      }
    }
    ++index;
  }
  return parameters;
}

std::vector<std::string> names_of(const std::vector<ParameterSpec>& parameters) {
  std::vector<std::string> names;
  for (const ParameterSpec& parameter : parameters)
    names.push_back(parameter.name);
  return names;
}

}  // namespace hpsim
