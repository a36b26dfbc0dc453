#include "random_scenario.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>
#include <vector>

#include "support/scenarios.h"

namespace hpsim::test {
namespace {

void draw_mesh(Dice& dice, Scenario& scenario) {
  static const std::vector<std::vector<std::string>> kNames = {
      {"fsdp"},        {"fsdp"},        {"rep"},       {"x"},        {"rep", "fsdp"},
      {"rep", "fsdp"}, {"fsdp", "rep"}, {"x", "fsdp"}, {"rep", "x"}, {"x", "y"}};
  const auto& names =
      kNames[static_cast<std::size_t>(dice.below(static_cast<std::int64_t>(kNames.size())))];
  std::vector<std::int64_t> shape = {1 + dice.below(8)};
  if (names.size() == 2) shape.push_back(1 + dice.below(8 / shape[0]));
  if (dice.one_in(2)) std::reverse(shape.begin(), shape.end());
  const std::int64_t num_ranks =
      std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
  std::vector<std::int64_t> ranks;
  if (dice.one_in(3)) {
    ranks.resize(static_cast<std::size_t>(num_ranks));
    std::iota(ranks.begin(), ranks.end(), std::int64_t{0});
    for (std::int64_t i = num_ranks - 1; i > 0; --i) {
      std::swap(ranks[static_cast<std::size_t>(i)],
                ranks[static_cast<std::size_t>(dice.below(i + 1))]);
    }
  }
  scenario.mesh = Mesh(shape, names, ranks);
  scenario.roles.fsdp_shard_dim = scenario.mesh.find("fsdp");
  scenario.roles.dp_replicate_dim = scenario.mesh.find("rep");
  scenario.fully_shard.shards_parameters =
      scenario.roles.fsdp_shard_dim.has_value() && !dice.one_in(6);
  const bool is_default = !dice.one_in(3);
  for (int dim = 0; dim < scenario.mesh.num_dims(); ++dim) {
    const bool has_role =
        dim == scenario.roles.fsdp_shard_dim || dim == scenario.roles.dp_replicate_dim;
    if (is_default ? has_role : dice.one_in(2)) scenario.data.data_dims.push_back(dim);
  }
}

std::int64_t draw_size(Dice& dice) {
  return dice.pick<std::int64_t>({1, 2, 3, 5, 7, 8, 11, 13});
}

ModelSpec draw_model(Dice& dice, bool is_exact) {
  ModelSpec model;
  if (dice.one_in(2)) {
    const std::int64_t count = 1 + dice.below(3);
    for (std::int64_t i = 0; i < count; ++i) {
      Shape shape(static_cast<std::size_t>(1 + dice.below(3)));
      for (std::int64_t& size : shape)
        size = draw_size(dice);
      model.elementwise.push_back({fmt::format("p{}", i), std::move(shape)});
    }
    return model;
  }
  // Exact integers grow with every layer.
  const std::int64_t num_linear = 1 + dice.below(is_exact ? 2 : 4);
  std::int64_t features = draw_size(dice);
  for (std::int64_t i = 0; i < num_linear; ++i) {
    if (i > 0 || dice.one_in(4)) {
      const auto type =
          is_exact
              ? ModuleType::Relu
              : dice.pick({ModuleType::Relu, ModuleType::Tanh, ModuleType::Silu, ModuleType::Gelu});
      model.modules.push_back(activation(fmt::format("a{}", i), type, dice.one_in(2)));
    }
    const std::int64_t out = draw_size(dice);
    model.modules.push_back(linear(fmt::format("l{}", i), features, out, dice.one_in(2)));
    features = out;
  }
  // The features of activations are those of the linear that follows or precedes them.
  return model;
}

void draw_units(Dice& dice, Scenario& scenario) {
  if (dice.one_in(2)) return;
  std::vector<std::string> names;
  for (const ModuleSpec& module : scenario.model.modules) {
    if (module.type == ModuleType::Linear) names.push_back(module.name);
  }
  for (const ElementwiseSpec& parameter : scenario.model.elementwise) {
    names.push_back(parameter.name);
  }
  std::vector<std::string> patterns;
  for (const std::string& name : names) {
    if (dice.one_in(2)) patterns.push_back(name);
  }
  scenario.units = assign_units(scenario.model, scenario.parameters, patterns, true);
}

void draw_fully_shard(Dice& dice, Scenario& scenario) {
  FullyShardSpec& spec = scenario.fully_shard;
  const bool is_exact = scenario.is_exact();
  spec.reshard_after_forward = dice.one_in(2);
  spec.reduce_op = dice.pick({ReduceOp::Avg, ReduceOp::Sum});
  if (dice.one_in(3)) spec.gradient_scaling_factor = is_exact ? 2 : dice.pick({2.0, 0.5, 3.0});
  if (dice.one_in(4)) spec.gradient_divide_factor = is_exact ? 4 : dice.pick({2.0, 7.0, 300.0});
  for (std::size_t p = 0; p < scenario.parameters.size(); ++p) {
    if (dice.one_in(4)) spec.replicate_params.push_back(static_cast<int>(p));
  }
}

void draw_training(Dice& dice, Scenario& scenario) {
  TrainingSpec& training = scenario.training;
  training.steps = 1 + dice.below(3);
  training.global_batch = scenario.num_data_ranks() * (1 + dice.below(3));
  training.loss_normalization = dice.pick(
      {LossNormalization::LocalMean, LossNormalization::LocalMean, LossNormalization::Sum});
  OptimizerSpec& optimizer = training.optimizer;
  if (scenario.is_exact()) {
    optimizer.momentum = dice.pick({0.0, 0.5});
    optimizer.nesterov = optimizer.momentum != 0 && dice.one_in(2);
    return;
  }
  optimizer.kind =
      dice.pick({OptimizerSpec::Kind::Sgd, OptimizerSpec::Kind::Adam, OptimizerSpec::Kind::AdamW});
  optimizer.lr = optimizer.kind == OptimizerSpec::Kind::Sgd ? 0.01 : 0.001;
  if (dice.one_in(3)) optimizer.weight_decay = 0.01;
  if (optimizer.kind == OptimizerSpec::Kind::Sgd) {
    optimizer.momentum = dice.pick({0.0, 0.9});
    optimizer.nesterov = optimizer.momentum != 0 && dice.one_in(2);
  }
}

}  // namespace

Scenario random_scenario(Dice& dice) {
  Scenario scenario;
  scenario.name = "random";
  scenario.file = "random.json";
  scenario.numerics.dtype = dice.pick({DType::Float32, DType::Float32, DType::Float64});
  if (dice.one_in(4)) make_exact(scenario);
  scenario.data.seed = static_cast<std::uint64_t>(dice.below(1000));
  draw_mesh(dice, scenario);
  scenario.model = draw_model(dice, scenario.is_exact());
  scenario.training.global_batch = scenario.num_data_ranks();
  finish_scenario(scenario);
  draw_units(dice, scenario);
  draw_fully_shard(dice, scenario);
  draw_training(dice, scenario);
  return scenario;
}

std::string describe(const Scenario& scenario) {
  std::string text = fmt::format(
      "mesh ({}) {}, data over ({})", fmt::join(scenario.mesh.shape(), ", "),
      scenario.mesh.num_dims() == 1 ? scenario.mesh.name(0) : scenario.mesh.names({0, 1}),
      scenario.mesh.names(scenario.data.data_dims));
  for (const ParameterSpec& parameter : scenario.parameters) {
    text += fmt::format(", {} {}", parameter.name, to_string(parameter.shape));
  }
  for (const ModuleSpec& module : scenario.model.modules) {
    text += fmt::format(", {}", name_of(module.type));
  }
  const FullyShardSpec& spec = scenario.fully_shard;
  text += fmt::format(
      "; {} units, shards {}, reshard {}, {}, k {}, F {}, replicated {}; {} steps, batch {}, "
      "optimizer {}, lr {}, momentum {}, {}{}, seed {}",
      scenario.units.size(), spec.shards_parameters, spec.reshard_after_forward,
      to_string(spec.reduce_op), spec.gradient_scaling_factor, gradient_divisor(scenario),
      spec.replicate_params.size(), scenario.training.steps, scenario.training.global_batch,
      static_cast<int>(scenario.training.optimizer.kind), scenario.training.optimizer.lr,
      scenario.training.optimizer.momentum, name_of(scenario.numerics.dtype),
      scenario.is_exact() ? " exact" : "", scenario.data.seed);
  return text;
}

}  // namespace hpsim::test
