#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "shrink/feature_sizes.h"
#include "shrink/reductions.h"

namespace hpsim {
namespace {

using Json = nlohmann::ordered_json;
using Pointer = Json::json_pointer;

std::string type_of(const Json& module) {
  return module.is_object() ? module.value("type", std::string()) : std::string();
}

/// Calls f(pointer, module) for every module, outer ones first.
template <class F>
void each_module(const Json& modules, const Pointer& at, const F& f) {
  for (std::size_t i = 0; i < modules.size(); ++i) {
    const Json& module = modules[i];
    f(at / i, module);
    if (module.contains("modules")) each_module(module["modules"], at / i / "modules", f);
    if (!module.contains("module")) continue;
    const Json& inner = module["module"];
    f(at / i / "module", inner);
    if (inner.contains("modules")) each_module(inner["modules"], at / i / "module" / "modules", f);
  }
}

/// A model that begins with something else than an embedding takes features beside positions.
void keep_sample_shape(Json& scenario, const Json& first_before) {
  if (type_of(first_before) != "embedding" || scenario["model"].empty() ||
      type_of(scenario["model"][0]) == "embedding")
    return;
  const Pointer shape("/data/sample_shape");
  if (scenario.contains(shape) && scenario[shape].is_array())
    scenario[shape].push_back(first_before.value("embedding_dim", 1));
}

/// A change of the model, after which its modules fit again.
Reduction model_reduction(std::string what, std::function<void(Json&)> change) {
  return {std::move(what), [change = std::move(change)](Json& scenario) {
            const Json first = scenario["model"][0];
            change(scenario);
            keep_sample_shape(scenario, first);
            fit_features(scenario);
          }};
}

void add_parts(const Json& modules, const Pointer& at, std::vector<Reduction>& reductions) {
  for (const auto& [begin, end] : parts_of(modules.size())) {
    if (begin == 0 && end == modules.size()) continue;
    reductions.push_back(model_reduction(
        fmt::format("{}: modules {} to {} left out", at.to_string(), begin, end - 1),
        [at, begin = begin, end = end](Json& scenario) {
          Json& list = scenario[at];
          list.erase(list.begin() + static_cast<std::ptrdiff_t>(begin),
                     list.begin() + static_cast<std::ptrdiff_t>(end));
        }));
  }
}

/// What is in the module, in its place.
void unwrap(Json& list, std::size_t index) {
  const Json module = list[index];
  const Json inner =
      module.contains("modules") ? module["modules"] : Json::array({module["module"]});
  list.erase(index);
  list.insert(list.begin() + static_cast<std::ptrdiff_t>(index), inner.begin(), inner.end());
}

Json linear_in_place_of(const Json& module) {
  Json linear = Json::object();
  if (module.contains("name")) linear["name"] = module["name"];
  linear["type"] = "linear";
  linear["in_features"] = module.at("dim");
  linear["out_features"] = module.at("dim");
  linear["bias"] = false;
  return linear;
}

/// Of a repeat of two: both, one after the other.
void write_out(Json& list, std::size_t index) {
  const Json inner = list[index]["module"];
  list[index] = inner;
  list.insert(list.begin() + static_cast<std::ptrdiff_t>(index), inner);
}

/// Of the module of a repeat that holds one other: that one.
void add_only_child(const Json& module, const Pointer& at, std::vector<Reduction>& reductions) {
  if (at.back() != "module" || !module.contains("modules") || module["modules"].size() != 1) return;
  reductions.push_back(
      model_reduction(fmt::format("{}: what is in it", at.to_string()), [at](Json& scenario) {
        const Json inner = scenario[at]["modules"][0];
        scenario[at] = inner;
      }));
}

void add_simpler(const Json& module, const Pointer& at, std::vector<Reduction>& reductions) {
  const std::string type = type_of(module);
  const bool is_element = at.back() != "module";
  add_only_child(module, at, reductions);
  if ((type == "residual" || type == "sequential" || type == "repeat") && is_element) {
    reductions.push_back(model_reduction(
        fmt::format("{}: what is in it", at.to_string()),
        [at](Json& scenario) { unwrap(scenario[at.parent_pointer()], std::stoul(at.back())); }));
  }
  if (type == "repeat" && module.contains("count") && module["count"].is_number_integer()) {
    const auto count = module["count"].get<std::int64_t>();
    for (const std::int64_t fewer : smaller_numbers(count, 1)) {
      reductions.push_back(
          model_reduction(fmt::format("{}/count: {} -> {}", at.to_string(), count, fewer),
                          [at, fewer](Json& scenario) { scenario[at / "count"] = fewer; }));
    }
    if (count == 2 && is_element) {
      reductions.push_back(
          model_reduction(fmt::format("{}: written out", at.to_string()), [at](Json& scenario) {
            write_out(scenario[at.parent_pointer()], std::stoul(at.back()));
          }));
    }
  }
  if ((type == "attention" || type == "mlp" || type == "moe") && module.contains("dim")) {
    reductions.push_back(
        model_reduction(fmt::format("{}: a linear", at.to_string()),
                        [at](Json& scenario) { scenario[at] = linear_in_place_of(scenario[at]); }));
  }
}

}  // namespace

std::vector<Reduction> module_reductions(const Json& scenario) {
  std::vector<Reduction> reductions;
  if (!scenario.contains("model") || !scenario["model"].is_array() || scenario["model"].empty())
    return reductions;
  const Pointer model("/model");
  add_parts(scenario["model"], model, reductions);
  each_module(scenario["model"], model, [&](const Pointer& at, const Json& module) {
    if (module.contains("modules")) add_parts(module["modules"], at / "modules", reductions);
  });
  each_module(scenario["model"], model,
              [&](const Pointer& at, const Json& module) { add_simpler(module, at, reductions); });
  return reductions;
}

}  // namespace hpsim
