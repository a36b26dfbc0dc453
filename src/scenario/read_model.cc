#include <fmt/format.h>

#include <algorithm>

#include "scenario/check_modules.h"
#include "scenario/locate.h"
#include "scenario/pattern_matcher.h"
#include "scenario/sections.h"

namespace hpsim {
namespace {

constexpr std::size_t kMaxTensorDims = 64;

/// The shape of a parameter in which something is wrong is (1,).
std::optional<ModelSpec> read_elementwise(const ObjectReader& scenario) {
  Problems& problems = scenario.problems();
  if (!scenario.where("parameters").is_object()) return std::nullopt;
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
    if (at.is_object()) shape_at = ObjectReader(at, "Elementwise", problems).where("shape");
    const bool is_readable = !problems.is_bad(*shape_at.value) && shape_at.is_array();
    const Shape shape = is_readable ? shape_at.integers() : Shape{1};
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

/// Sizes in which something is wrong are 1. Nothing if it is unknown what some module computes, or
/// if there are too many to go on.
std::optional<ModelSpec> read_modules(const ObjectReader& scenario) {
  Problems& problems = scenario.problems();
  const auto modules = read_module_tree(scenario);
  if (!modules) return std::nullopt;
  if (!modules->empty() && !check_num_operations(scenario, *modules)) return std::nullopt;
  check_heads(*modules);
  check_experts(*modules);
  LoweredModel lowered = lower_modules(*modules);
  if (list_parameters(lowered.model).empty()) {
    if (scenario.is_bad("model")) return std::nullopt;
    problems.add(scenario.where("model"),
                 modules->empty()
                     ? "the model has no modules"
                     : fmt::format("none of the {} modules of the model has parameters",
                                   num_nodes(*modules)),
                 R"(add one, such as {"type": "linear", "in_features": 8, "out_features": 4})");
    return std::nullopt;
  }
  check_features(*modules);
  check_embeddings(lowered);
  lowered.model.positions = read_positions(scenario, *modules, lowered);
  check_numel(lowered);
  read_ties(lowered);
  return std::move(lowered.model);
}

/// A weight that two modules use is gathered and reduced by the unit of one of them.
void check_ties_in_units(const ObjectReader& scenario, const ModelSpec& model,
                         const std::vector<int>& ignored, const std::vector<ModelPart>& parts,
                         const std::vector<int>& owners) {
  if (model.is_elementwise()) return;
  const std::vector<ParameterSpec> parameters = list_parameters(model);
  std::vector<bool> gathers_weight(model.modules.size());
  std::vector<bool> gathers_bias(model.modules.size());
  for (int p = 0; p < static_cast<int>(parameters.size()); ++p) {
    if (std::binary_search(ignored.begin(), ignored.end(), p)) continue;
    const ParameterSpec& parameter = parameters[static_cast<std::size_t>(p)];
    const bool is_bias = parameter.kind == ParameterSpec::Kind::LinearBias;
    (is_bias ? gathers_bias : gathers_weight)[static_cast<std::size_t>(parameter.module)] = true;
  }
  const auto unit = [&](std::size_t module) {
    const int owner = owners[module];
    return owner < 0
               ? std::string("the root unit")
               : fmt::format("unit {}", in_quotes(parts[static_cast<std::size_t>(owner)].name));
  };
  for (std::size_t m = 0; m < model.modules.size(); ++m) {
    if (model.modules[m].tied_to < 0) continue;
    const auto first = static_cast<std::size_t>(model.modules[m].tied_to);
    const bool shares_bias = model.modules[m].ties_bias && gathers_bias[first];
    if (owners[m] == owners[first] || !(gathers_weight[first] || shares_bias)) continue;
    const std::string pointer = module_pointer(model, static_cast<int>(m)) + "/tied_to";
    const std::string name = in_quotes(model.modules[m].name);
    const std::string first_name = in_quotes(model.modules[first].name);
    scenario.problems().add(
        scenario.at().below(pointer),
        fmt::format("{} is in {}, but its weight is that of {}, in {}: a unit gathers and reduces "
                    "its own parameters when its own modules are done, so the gradient of a weight "
                    "in two units would be reduced twice, or before it is complete",
                    name, unit(m), first_name, unit(first)),
        fmt::format("name a unit that holds both, or let \"units\" name neither {} nor {}: both "
                    "are then in the root unit",
                    first_name, name));
    return;
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
  return read_modules(scenario);
}

std::vector<UnitSpec> read_units(const ObjectReader& scenario, const ModelSpec& model,
                                 const std::vector<int>& ignored) {
  const ObjectReader fully_shard = scenario.object("fully_shard", "FullyShard");
  const auto given = fully_shard.strings("units");
  const std::vector<std::string> patterns = given.value_or(std::vector<std::string>{});
  const std::vector<JsonCursor> elements = fully_shard.elements("units");
  const std::vector<ModelPart> parts = model_parts(model);
  PatternMatcher matcher(names_of(parts), model.is_elementwise() ? "parameter" : "module",
                         scenario.problems());
  for (std::size_t i = 0; i < patterns.size(); ++i)
    static_cast<void>(matcher.matches_of(patterns[i], elements[i]));
  if (!scenario.problems().empty()) return {};
  const std::vector<ParameterSpec> parameters = list_parameters(model);
  check_ties_in_units(scenario, model, ignored, parts,
                      unit_owners(model, parts, patterns, given.has_value()));
  return assign_units(model, parameters, patterns, given.has_value(), ignored);
}

}  // namespace hpsim
