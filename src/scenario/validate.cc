#include "scenario/validate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "scenario/locate.h"
#include "scenario/module_layouts.h"

namespace hpsim {
namespace {

bool is_power_of_two(double value) {
  int exponent = 0;
  return value != 0 && std::abs(std::frexp(value, &exponent)) == 0.5;
}

/// The powers of two around a positive number: `2 or 4`.
std::string powers_near(double value) {
  const double below = std::exp2(std::floor(std::log2(std::abs(value))));
  return fmt::format("{} or {}", below, 2 * below);
}

void need_power_of_two(const ObjectReader& reader, std::string_view key, double value,
                       bool zero_is_good) {
  if (is_power_of_two(value) || (zero_is_good && value == 0) || reader.is_bad(key)) return;
  reader.problems().add(reader.where(key),
                        fmt::format("exact mode needs a power of two{}, but {} is {}",
                                    zero_is_good ? " or 0" : "", key, value),
                        value == 0 ? "leave it out" : fmt::format("write {}", powers_near(value)));
}

void check_exact_data(const ObjectReader& data) {
  for (const char* key : {"init", "input", "target"}) {
    if (!data.has(key) || data.is_bad(key)) continue;
    const ObjectReader fill = data.object(key, "Fill");
    if (fill.variant() == "integer") {
      need_power_of_two(fill, "scale", fill.number("scale").value_or(1), false);
    } else {
      data.problems().add(
          fill.where("kind"),
          fmt::format("exact mode needs integer data, but {} is {}", key, fill.variant()),
          fmt::format(R"(write "{}": {{"kind": "integer", "max": 2}}, or leave it out)", key));
    }
  }
}

/// A module whose type is wrong is left out.
void check_exact_module(const ObjectReader& module, const std::string& name) {
  if (module.variant().empty()) return;
  constexpr std::string_view kExact[] = {"linear",   "relu",       "embedding",
                                         "residual", "sequential", "repeat"};
  if (std::find(std::begin(kExact), std::end(kExact), module.variant()) == std::end(kExact)) {
    module.problems().add(
        module.where("type"),
        fmt::format("exact mode computes linear, relu and embedding, but {} is {}", in_quotes(name),
                    module.variant()),
        "use these, alone or in residual, sequential and repeat, or the mode \"derived\"");
  } else if (module.variant() == "repeat") {
    check_exact_module(module.object("module", "Module"), name + ".0");
  } else if (module.variant() == "residual" || module.variant() == "sequential") {
    const std::vector<JsonCursor> elements = module.elements("modules");
    for (std::size_t i = 0; i < elements.size(); ++i) {
      const ObjectReader child(elements[i], "Module", module.problems());
      check_exact_module(
          child, fmt::format("{}.{}", name, child.string("name").value_or(std::to_string(i))));
    }
  }
}

void check_exact_model(const Scenario& scenario, const ObjectReader& file) {
  if (scenario.model.is_elementwise()) return;
  const std::vector<JsonCursor> modules = file.elements("model");
  for (std::size_t i = 0; i < modules.size(); ++i) {
    const ObjectReader module(modules[i], "Module", file.problems());
    check_exact_module(module, module.string("name").value_or(std::to_string(i)));
  }
}

void check_exact_loss(const Scenario& scenario, const ObjectReader& training) {
  if (scenario.training.loss == LossKind::Mse || training.is_bad("loss")) return;
  training.problems().add(training.where("loss"),
                          "exact mode computes mse, but the loss is cross_entropy",
                          "use mse, or the mode \"derived\"");
}

void check_exact_clipping(const Scenario& scenario, const ObjectReader& training) {
  if (!scenario.training.clip_grad_norm || training.is_bad("clip_grad_norm")) return;
  training.problems().add(training.where("clip_grad_norm"),
                          "exact mode cannot clip: a norm has a root, and the factor a quotient, "
                          "that are rounded",
                          "leave \"clip_grad_norm\" out, or use the mode \"derived\"");
}

void check_exact_optimizer(const OptimizerSpec& spec, const ObjectReader& training) {
  if (!training.has("optimizer") || training.is_bad("optimizer")) return;
  const ObjectReader optimizer = training.object("optimizer", "Optimizer");
  if (spec.kind != OptimizerSpec::Kind::Sgd) {
    training.problems().add(
        optimizer.where("name"),
        fmt::format("exact mode needs sgd, but the optimizer is {}", optimizer.variant()),
        "use sgd, or the mode \"derived\"");
    return;
  }
  need_power_of_two(optimizer, "lr", spec.lr, true);
  need_power_of_two(optimizer, "momentum", spec.momentum, true);
  need_power_of_two(optimizer, "weight_decay", spec.weight_decay, true);
  const double round_to = spec.round_to.value_or(1);
  const double clamp = spec.clamp.value_or(1);
  need_power_of_two(optimizer, "round_to", round_to, false);
  if (!is_power_of_two(round_to) || std::fmod(clamp, round_to) == 0) return;
  training.problems().add(
      optimizer.where("clamp"),
      fmt::format("clamp {} is no multiple of round_to {}", clamp, round_to),
      fmt::format("write {}", round_to * std::max(1.0, std::floor(clamp / round_to))));
}

/// The largest activation of one sample, the scores of attention among them, as a double.
double activation_elems(const ModelSpec& model) {
  if (model.is_elementwise()) return 0;
  double positions = 1;
  for (const std::int64_t size : model.positions)
    positions *= static_cast<double>(size);
  double most = 0;
  for (const std::int64_t features : features_along(model))
    most = std::max(most, positions * static_cast<double>(features));
  for (const ModuleSpec& module : model.modules)
    most = std::max(most, positions * positions * static_cast<double>(module.heads));
  return most;
}

}  // namespace

void check_sizes(const Scenario& scenario, const ObjectReader& file) {
  constexpr double kMaxParameterElems = 0x1p53;
  constexpr double kMaxDataElems = 0x1p62;
  const auto as_double = [](std::int64_t value) { return static_cast<double>(value); };
  const std::optional<int> shard_dim = scenario.roles.fsdp_shard_dim;
  const std::int64_t num_shards = shard_dim ? scenario.mesh.size(*shard_dim) : 1;
  double parameter_elems = 0;
  double sample_elems = 1;
  for (int p = 0; p < static_cast<int>(scenario.parameters.size()); ++p) {
    const Shape& shape = scenario.parameters[static_cast<std::size_t>(p)].shape;
    const double elems = as_double(num_elems(shape));
    sample_elems = std::max(sample_elems, elems);
    double padded = elems;
    if (is_sharded(scenario, p)) {
      const ShardCut cut = shard_cut_of(scenario, p, num_shards);
      const double cells = as_double(num_cells(cut, shape));
      padded *= cut.is_ragged() ? as_double(cut.local_units.largest()) * as_double(num_shards) /
                                      as_double(cut.local_units.sum())
                                : (cells + as_double(num_shards) - 1) / cells;
    }
    parameter_elems += padded;
  }
  if (parameter_elems > kMaxParameterElems) {
    file.problems().add(
        file.where(scenario.model.is_elementwise() ? "parameters" : "model"),
        fmt::format("the parameters have {:.3g} elements, padded for {} shards; the limit is "
                    "2^53, about {:.3g}",
                    parameter_elems, num_shards, kMaxParameterElems),
        "make them smaller, or the mesh");
  }
  sample_elems = std::max(sample_elems, activation_elems(scenario.model));
  // The plan is a list: some ten steps per parameter and module in each optimizer step.
  constexpr double kMaxPlanned = 1e7;
  const double per_step = as_double(
      static_cast<std::int64_t>(scenario.parameters.size() + scenario.model.modules.size()));
  const std::int64_t num_passes = scenario.training.micro_batches;
  if (as_double(scenario.training.steps) * as_double(num_passes) * per_step > kMaxPlanned) {
    const ObjectReader training = file.object("training", "Training");
    file.problems().add(
        training.where(num_passes > scenario.training.steps ? "micro_batches" : "steps"),
        fmt::format(
            "{} steps of {}a model with {} parameters and modules; the limit of their product "
            "is {:.0f}",
            scenario.training.steps,
            num_passes > 1 ? fmt::format("{} micro-batches of ", num_passes) : "", per_step,
            kMaxPlanned),
        fmt::format("run fewer {}: the plan lists every one",
                    num_passes > 1 ? "steps or micro-batches" : "steps"));
  }
  const double data_elems =
      as_double(scenario.training.steps) * as_double(scenario.training.global_batch) * sample_elems;
  if (data_elems > kMaxDataElems) {
    const ObjectReader training = file.object("training", "Training");
    file.problems().add(
        training.where("global_batch"),
        fmt::format("{} steps of {} samples with up to {} elements are more than 2^62 elements",
                    scenario.training.steps, scenario.training.global_batch, sample_elems),
        "make one of the three smaller");
  }
}

void check_ties(const Scenario& scenario, const ObjectReader& file) {
  const ModelSpec& model = scenario.model;
  const bool has_ties = std::any_of(model.modules.begin(), model.modules.end(),
                                    [](const ModuleSpec& module) { return module.tied_to >= 0; });
  if (!has_ties || !file.problems().empty()) return;
  const std::vector<ModuleLayout> layouts = module_layouts(scenario);
  const auto splits = [&](std::size_t module, int mesh_dim) {
    return contains(split_dims(model, layouts[module]), mesh_dim);
  };
  for (std::size_t m = 0; m < model.modules.size(); ++m) {
    if (model.modules[m].tied_to < 0) continue;
    const auto owner = static_cast<std::size_t>(model.modules[m].tied_to);
    for (int dim = 0; dim < scenario.mesh.num_dims(); ++dim) {
      if (scenario.mesh.size(dim) == 1 || splits(m, dim) == splits(owner, dim)) continue;
      const auto [part, whole] = splits(m, dim) ? std::pair(m, owner) : std::pair(owner, m);
      const std::string name = scenario.mesh.name(dim);
      const std::string pointer = module_pointer(model, static_cast<int>(m)) + "/tied_to";
      file.problems().add(
          file.at().below(pointer),
          fmt::format("not supported yet: {} and {} share a weight, but along {} {} computes with "
                      "a part of the samples and {} with all: one gradient is a term of a sum, "
                      "the other the sum",
                      in_quotes(model.modules[owner].name), in_quotes(model.modules[m].name),
                      in_quotes(name), in_quotes(model.modules[part].name),
                      in_quotes(model.modules[whole].name)),
          fmt::format("keep {} out of data_dims, or leave \"tied_to\" out", in_quotes(name)));
      return;
    }
  }
}

void check_exact_mode(const Scenario& scenario, const ObjectReader& file) {
  const FullyShardSpec& spec = scenario.fully_shard;
  const ObjectReader fully_shard = file.object("fully_shard", "FullyShard");
  check_exact_data(file.object("data", "Data"));
  check_exact_model(scenario, file);
  check_exact_loss(scenario, file.object("training", "Training"));
  check_exact_clipping(scenario, file.object("training", "Training"));
  check_exact_optimizer(scenario.training.optimizer, file.object("training", "Training"));
  if (spec.gradient_scaling_factor != 0) {
    need_power_of_two(fully_shard, "gradient_scaling_factor", spec.gradient_scaling_factor, false);
  }
  if (spec.gradient_divide_factor) {
    need_power_of_two(fully_shard, "gradient_divide_factor", *spec.gradient_divide_factor, false);
  }
}

}  // namespace hpsim
