#include "shrink/feature_sizes.h"

#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <set>
#include <string>

namespace hpsim {
namespace {

using Json = nlohmann::ordered_json;
using Size = std::optional<std::int64_t>;  // nothing: not known yet

constexpr const char* kSizeKeys[] = {"in_features", "out_features", "dim", "hidden",
                                     "embedding_dim"};

std::string type_of(const Json& module) {
  return module.is_object() ? module.value("type", std::string()) : std::string();
}

/// The module says what it takes, or takes what is given.
void take(Json& module, const char* key, Size& size) {
  if (!module.contains(key) || !module[key].is_number_integer()) return;
  if (size) module[key] = *size;
  size = module[key].get<std::int64_t>();
}

Json* last_linear(Json& modules) {
  if (!modules.is_array() || modules.empty()) return nullptr;
  Json& last = modules.back();
  if (type_of(last) == "linear") return &last;
  return last.contains("modules") ? last_linear(last["modules"]) : nullptr;
}

void fit_list(Json& modules, Size& size);

/// A list that gives what it takes.
void fit_loop(Json& modules, Size& size) {
  const Size taken = size;
  fit_list(modules, size);
  if (!taken || size == taken) return;
  if (Json* const last = last_linear(modules)) (*last)["out_features"] = *taken;
  size = taken;
}

void fit_module(Json& module, Size& size) {
  const std::string type = type_of(module);
  if (type == "linear") {
    take(module, "in_features", size);
    if (module.contains("out_features") && module["out_features"].is_number_integer())
      size = module["out_features"].get<std::int64_t>();
  } else if (type == "embedding") {
    size.reset();
    take(module, "embedding_dim", size);
  } else if (type == "residual" && module.contains("modules")) {
    fit_loop(module["modules"], size);
  } else if (type == "sequential" && module.contains("modules")) {
    fit_list(module["modules"], size);
  } else if (type == "repeat" && module.contains("module")) {
    Json one = Json::array({module["module"]});
    fit_loop(one, size);
    module["module"] = one[0];
  } else {
    take(module, "dim", size);
  }
}

void fit_list(Json& modules, Size& size) {
  if (!modules.is_array()) return;
  for (Json& module : modules)
    fit_module(module, size);
}

/// The features of a sample, where it has any: those of tokens are positions.
Json* sample_features(Json& scenario) {
  if (!scenario.contains("model") || !scenario["model"].is_array() || scenario["model"].empty() ||
      type_of(scenario["model"][0]) == "embedding")
    return nullptr;
  const Json::json_pointer shape("/data/sample_shape");
  if (!scenario.contains(shape) || !scenario[shape].is_array() || scenario[shape].empty())
    return nullptr;
  Json& last = scenario[shape].back();
  return last.is_number_integer() ? &last : nullptr;
}

void each_module(Json& modules, const std::function<void(Json&)>& f) {
  if (!modules.is_array()) return;
  for (Json& module : modules) {
    if (!module.is_object()) continue;
    f(module);
    if (module.contains("modules")) each_module(module["modules"], f);
    if (!module.contains("module")) continue;
    Json one = Json::array({module["module"]});
    each_module(one, f);
    module["module"] = one[0];
  }
}

void fit_heads(Json& module) {
  std::int64_t heads = module.value("heads", std::int64_t{1});
  heads = std::gcd(heads, module.value("dim", heads));
  module["heads"] = heads;
  if (module.contains("kv_heads"))
    module["kv_heads"] = std::gcd(heads, module.value("kv_heads", heads));
}

}  // namespace

void fit_features(Json& scenario) {
  if (!scenario.contains("model")) return;
  Size size;
  if (const Json* const features = sample_features(scenario)) size = features->get<std::int64_t>();
  fit_list(scenario["model"], size);
}

std::vector<std::int64_t> feature_sizes(const Json& scenario) {
  std::set<std::int64_t, std::greater<>> sizes;
  if (!scenario.contains("model")) return {};
  Json modules = scenario["model"];
  each_module(modules, [&](const Json& module) {
    for (const char* const key : kSizeKeys) {
      if (module.contains(key) && module[key].is_number_integer())
        sizes.insert(module[key].get<std::int64_t>());
    }
  });
  return {sizes.begin(), sizes.end()};
}

void replace_feature_size(Json& scenario, std::int64_t size, std::int64_t smaller) {
  if (!scenario.contains("model")) return;
  each_module(scenario["model"], [&](Json& module) {
    for (const char* const key : kSizeKeys) {
      if (module.contains(key) && module[key] == size) module[key] = smaller;
    }
    if (type_of(module) == "attention") fit_heads(module);
  });
  if (Json* const features = sample_features(scenario)) {
    if (*features == size) *features = smaller;
  }
}

}  // namespace hpsim
