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
    case ModuleType::LayerNorm:
      return "layer_norm";
    case ModuleType::RmsNorm:
      return "rms_norm";
    case ModuleType::Embedding:
      return "embedding";
    case ModuleType::AttentionCore:
      return "attention_core";
    case ModuleType::SiluGate:
      return "silu_gate";
    case ModuleType::Add:
      return "add";
    case ModuleType::Experts:
      return "experts";
  }
  HPSIM_CHECK(false, "unknown module type {}", static_cast<int>(type));
  return {};
}

std::string_view name_of(ModuleGroup::Kind kind) {
  switch (kind) {
    case ModuleGroup::Kind::Attention:
      return "attention";
    case ModuleGroup::Kind::Mlp:
      return "mlp";
    case ModuleGroup::Kind::Moe:
      return "moe";
    case ModuleGroup::Kind::Residual:
      return "residual";
    case ModuleGroup::Kind::Sequential:
      return "sequential";
    case ModuleGroup::Kind::Repeat:
      return "repeat";
  }
  HPSIM_CHECK(false, "unknown kind of group {}", static_cast<int>(kind));
  return {};
}

const std::string& module_name(const ModelSpec& model, int module) {
  const auto at = static_cast<std::size_t>(module);
  return model.is_elementwise() ? model.elementwise.at(at).name : model.modules.at(at).name;
}

std::vector<int> inputs_of(const ModelSpec& model, int module) {
  const ModuleSpec& spec = model.modules.at(static_cast<std::size_t>(module));
  return spec.inputs.empty() ? std::vector<int>{module} : spec.inputs;
}

std::int64_t num_positions(const ModelSpec& model) {
  return num_elems(model.positions);
}

namespace {

/// Features that a module takes; 0 for modules that take any.
std::int64_t features_taken(const ModuleSpec& module) {
  return module.type == ModuleType::Embedding ? 1 : module.in_features;
}

bool has_output_features(const ModuleSpec& module) {
  return module.type == ModuleType::Linear || module.type == ModuleType::Embedding;
}

}  // namespace

std::vector<std::int64_t> features_along(const ModelSpec& model) {
  std::vector<std::int64_t> features = {0};
  for (const ModuleSpec& module : model.modules) {
    features[0] = features_taken(module);
    if (features[0] > 0) break;
  }
  HPSIM_CHECK(features[0] > 0, "a model of {} modules none of which takes a number of features",
              model.modules.size());
  for (int m = 0; m < static_cast<int>(model.modules.size()); ++m) {
    const ModuleSpec& module = model.modules[static_cast<std::size_t>(m)];
    features.push_back(has_output_features(module)
                           ? module.out_features
                           : features.at(static_cast<std::size_t>(inputs_of(model, m).at(0))));
  }
  return features;
}

std::vector<int> experts_modules(const ModelSpec& model) {
  std::vector<int> found;
  for (int m = 0; m < static_cast<int>(model.modules.size()); ++m) {
    if (model.modules[static_cast<std::size_t>(m)].type == ModuleType::Experts) found.push_back(m);
  }
  return found;
}

std::int64_t output_features(const ModelSpec& model) {
  return features_along(model).back();
}

}  // namespace hpsim
