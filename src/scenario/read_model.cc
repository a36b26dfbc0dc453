#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/check.h"
#include "scenario/pattern_matcher.h"
#include "scenario/sections.h"

namespace hpsim {
namespace {

constexpr std::size_t kMaxTensorDims = 64;

/// The shape of a parameter in which something is wrong is (1,).
std::optional<ModelSpec> read_elementwise(const ObjectReader& scenario) {
  Problems& problems = scenario.problems();
  if (!scenario.where("parameters").value->is_object()) return std::nullopt;
  ModelSpec model;
  const auto members = scenario.members("parameters");
  if (members.empty()) {
    problems.add(scenario.where("parameters"), "the model has no parameters",
                 "name at least one, such as \"weight\": [7, 8]");
    return std::nullopt;
  }
  for (const auto& [name, at] : members) {
    if (name.empty()) {
      problems.add_at_key(at, "a parameter has an empty name", "give it a name");
    }
    JsonCursor shape_at = at;
    if (at.value->is_object()) shape_at = ObjectReader(at, "Elementwise", problems).where("shape");
    const bool is_readable = !problems.is_bad(*shape_at.value) && shape_at.value->is_array();
    const Shape shape = is_readable ? shape_at.value->get<Shape>() : Shape{1};
    if (shape.empty()) {
      problems.add(shape_at, fmt::format("parameter {} is a scalar, of 0 dims", in_quotes(name)),
                   "fully_shard takes no scalar parameters; [1] has one element too");
    } else if (shape.size() > kMaxTensorDims) {
      problems.add(shape_at,
                   fmt::format("parameter {} has {} dims, the limit is {}", in_quotes(name),
                               shape.size(), kMaxTensorDims),
                   "PyTorch has the same limit");
    } else if (!checked_num_elems(shape)) {
      problems.add(shape_at,
                   fmt::format("parameter {} of shape {} has more than 2^63 - 1 elements",
                               in_quotes(name), to_string(shape)),
                   "make it smaller");
    }
    model.elementwise.push_back({name, shape});
  }
  const ObjectReader data = scenario.object("data", "Data");
  if (data.has("sample_shape")) {
    problems.add(data.where("sample_shape"),
                 "sample_shape is for models, but the scenario has \"parameters\"",
                 "leave it out: every parameter has inputs of its own shape");
  }
  return model;
}

ModuleType module_type_of(std::string_view name) {
  for (const ModuleType type : {ModuleType::Linear, ModuleType::Relu, ModuleType::Tanh,
                                ModuleType::Silu, ModuleType::Gelu}) {
    if (name_of(type) == name) return type;
  }
  HPSIM_CHECK(false, "module type \"{}\" passed the type check", name);
  return ModuleType::Linear;
}

ModuleSpec read_module(const ObjectReader& module, std::size_t index) {
  ModuleSpec spec;
  spec.name = module.string("name").value_or(std::to_string(index));
  spec.type = module_type_of(module.variant());
  if (spec.type == ModuleType::Linear) {
    spec.in_features = module.integer("in_features").value_or(1);
    spec.out_features = module.integer("out_features").value_or(1);
    spec.bias = module.boolean("bias").value_or(true);
  } else if (spec.type == ModuleType::Gelu) {
    spec.tanh_approximation = module.string("approximate") == "tanh";
  }
  return spec;
}

/// Names must be usable in fully qualified names, and unique.
void check_module_name(const ObjectReader& module, const ModuleSpec& spec, std::size_t index,
                       std::map<std::string, std::size_t>& indices) {
  Problems& problems = module.problems();
  if (module.is_bad("name")) return;
  const JsonCursor at = module.where("name");
  if (spec.name.empty() || spec.name.find('.') != std::string::npos) {
    problems.add(
        at,
        spec.name.empty()
            ? fmt::format("module {} has an empty name", index)
            : fmt::format("the name {} of module {} contains a dot", in_quotes(spec.name), index),
        "dots separate the parts of \"module.weight\"; leave \"name\" out to use the index");
  }
  const auto [entry, is_new] = indices.emplace(spec.name, index);
  if (is_new) return;
  problems.add(at,
               fmt::format("modules {} and {} both have the name {}", entry->second, index,
                           in_quotes(spec.name)),
               "give every module a name of its own; the default is its index");
}

/// out_features of a linear must be in_features of the next.
void check_features(const std::vector<ObjectReader>& readers, const ModelSpec& model) {
  std::optional<std::size_t> previous;
  for (std::size_t i = 0; i < model.modules.size(); ++i) {
    const ModuleSpec& module = model.modules[i];
    if (module.type != ModuleType::Linear) continue;
    if (previous && !readers[i].is_bad("in_features") &&
        !readers[*previous].is_bad("out_features")) {
      const ModuleSpec& before = model.modules[*previous];
      if (before.out_features != module.in_features) {
        readers[i].problems().add(
            readers[i].where("in_features"),
            fmt::format("{} takes {} features, but {} before it gives {}", in_quotes(module.name),
                        module.in_features, in_quotes(before.name), before.out_features),
            fmt::format("make both the same number: in_features {}, or out_features {} in {}",
                        before.out_features, module.in_features, in_quotes(before.name)));
      }
    }
    previous = i;
  }
}

/// The shape of a sample is that of the input of the first linear; elementwise functions before it
/// do not change it.
void check_sample_shape(const ObjectReader& scenario, const ModelSpec& model) {
  const ObjectReader data = scenario.object("data", "Data");
  const auto linear =
      std::find_if(model.modules.begin(), model.modules.end(),
                   [](const ModuleSpec& module) { return module.type == ModuleType::Linear; });
  if (linear == model.modules.end() || data.is_bad("sample_shape")) return;
  const std::string way_out =
      fmt::format("\"data\": {{\"sample_shape\": [{}]}}", linear->in_features);
  const auto shape = data.integers("sample_shape");
  if (!shape) {
    if (linear == model.modules.begin()) return;
    scenario.problems().add(
        data.where("sample_shape"),
        fmt::format("data.sample_shape is missing: the first module, {}, is no linear",
                    in_quotes(model.modules.front().name)),
        "add " + way_out);
  } else if (shape->size() != 1) {
    scenario.problems().add(
        data.where("sample_shape"),
        fmt::format("not supported yet: samples of {} dims, {}", shape->size(), to_string(*shape)),
        fmt::format("this version takes one dim, here {}", way_out));
  } else if (shape->back() != linear->in_features) {
    scenario.problems().add(
        data.where("sample_shape"),
        fmt::format("samples have {} features, but {} takes {}", shape->back(),
                    in_quotes(linear->name), linear->in_features),
        "write " + way_out + (linear == model.modules.begin() ? ", or leave it out" : ""));
  }
}

/// Sizes in which something is wrong are 1. Nothing if it is unknown what some module computes.
std::optional<ModelSpec> read_modules(const ObjectReader& scenario) {
  const std::vector<JsonCursor> elements = scenario.elements("model");
  Problems& problems = scenario.problems();
  std::vector<ObjectReader> readers;
  ModelSpec model;
  std::map<std::string, std::size_t> indices;
  for (const JsonCursor& at : elements) {
    if (!at.value->is_object()) return std::nullopt;
    ObjectReader reader(at, "Module", problems);
    if (reader.is_bad("type") || reader.variant().empty()) return std::nullopt;
    const std::size_t index = readers.size();
    ModuleSpec spec = read_module(reader, index);
    check_module_name(reader, spec, index, indices);
    readers.push_back(std::move(reader));
    model.modules.push_back(std::move(spec));
  }
  const bool has_linear =
      std::any_of(model.modules.begin(), model.modules.end(),
                  [](const ModuleSpec& module) { return module.type == ModuleType::Linear; });
  if (!has_linear) {
    if (scenario.is_bad("model")) return std::nullopt;
    problems.add(scenario.where("model"),
                 model.modules.empty()
                     ? "the model has no modules"
                     : fmt::format("none of the {} modules of the model has parameters",
                                   model.modules.size()),
                 R"(add one, such as {"type": "linear", "in_features": 8, "out_features": 4})");
    return std::nullopt;
  }
  check_features(readers, model);
  check_sample_shape(scenario, model);
  return model;
}

void check_numel(const ObjectReader& scenario, const ModelSpec& model) {
  const std::vector<JsonCursor> elements = scenario.elements("model");
  for (std::size_t i = 0; i < model.modules.size(); ++i) {
    const ModuleSpec& module = model.modules[i];
    if (module.type != ModuleType::Linear) continue;
    if (checked_num_elems({module.out_features, module.in_features})) continue;
    scenario.problems().add(
        elements[i],
        fmt::format("the weight of {}, {} * {}, has more than 2^63 - 1 elements",
                    in_quotes(module.name), module.out_features, module.in_features),
        "make it smaller");
  }
}

}  // namespace

std::optional<ModelSpec> read_model(const ObjectReader& scenario) {
  const bool has_parameters = scenario.has("parameters");
  const bool has_model = scenario.has("model");
  if (has_parameters == has_model) {
    scenario.problems().add(
        scenario.where(has_model ? "model" : "parameters"),
        has_model ? "both \"parameters\" and \"model\" are given"
                  : "neither \"parameters\" nor \"model\" is given",
        has_model ? "keep one: \"model\" computes, \"parameters\" is a layout without a model"
                  : R"(add "parameters": {"weight": [7, 8]}, or a "model")");
    return std::nullopt;
  }
  if (has_parameters) return read_elementwise(scenario);
  std::optional<ModelSpec> model = read_modules(scenario);
  if (model) check_numel(scenario, *model);
  return model;
}

std::vector<UnitSpec> read_units(const ObjectReader& scenario, const ModelSpec& model,
                                 const std::vector<int>& ignored) {
  const ObjectReader fully_shard = scenario.object("fully_shard", "FullyShard");
  const auto patterns = fully_shard.strings("units");
  const std::vector<JsonCursor> elements = fully_shard.elements("units");
  PatternMatcher matcher(unit_names(model), model.is_elementwise() ? "parameter" : "module",
                         scenario.problems());
  for (std::size_t i = 0; patterns && i < patterns->size(); ++i)
    static_cast<void>(matcher.matches_of((*patterns)[i], elements[i]));
  if (!scenario.problems().empty()) return {};
  return assign_units(model, list_parameters(model), patterns.value_or(std::vector<std::string>{}),
                      patterns.has_value(), ignored);
}

}  // namespace hpsim
