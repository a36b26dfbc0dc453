#include "model/model_spec.h"

#include "base/check.h"

namespace hpsim {

std::string_view name_of(ModuleType type) {
  switch (type) {
    case ModuleType::Linear:
      return "linear";
    case ModuleType::Relu:
      return "relu";
    case ModuleType::Tanh:
      return "tanh";
    case ModuleType::Silu:
      return "silu";
    case ModuleType::Gelu:
      return "gelu";
  }
  HPSIM_CHECK(false, "unknown module type {}", static_cast<int>(type));
  return {};
}

const std::string& module_name(const ModelSpec& model, int module) {
  const auto at = static_cast<std::size_t>(module);
  return model.is_elementwise() ? model.elementwise.at(at).name : model.modules.at(at).name;
}

std::int64_t output_features(const ModelSpec& model) {
  for (std::size_t i = model.modules.size(); i-- > 0;) {
    if (model.modules[i].type == ModuleType::Linear) return model.modules[i].out_features;
  }
  HPSIM_CHECK(false, "a model of {} modules without a linear", model.modules.size());
  return 0;
}

std::int64_t features_before_module(const ModelSpec& model, int module) {
  HPSIM_CHECK(module >= 0 && module <= static_cast<int>(model.modules.size()), "module {} of {}",
              module, model.modules.size());
  for (int before = module; before-- > 0;) {
    const ModuleSpec& spec = model.modules[static_cast<std::size_t>(before)];
    if (spec.type == ModuleType::Linear) return spec.out_features;
  }
  for (const ModuleSpec& spec : model.modules) {
    if (spec.type == ModuleType::Linear) return spec.in_features;
  }
  HPSIM_CHECK(false, "a model of {} modules without a linear", model.modules.size());
  return 0;
}

std::vector<std::int64_t> features_along(const ModelSpec& model) {
  std::vector<std::int64_t> features = {features_before_module(model, 0)};
  for (const ModuleSpec& module : model.modules) {
    features.push_back(module.type == ModuleType::Linear ? module.out_features : features.back());
  }
  return features;
}

}  // namespace hpsim
