#include "support/scenarios.h"

#include <utility>

namespace hpsim::test {

ModuleSpec linear(std::string name, std::int64_t in, std::int64_t out, bool bias) {
  ModuleSpec spec;
  spec.name = std::move(name);
  spec.type = ModuleType::Linear;
  spec.in_features = in;
  spec.out_features = out;
  spec.bias = bias;
  return spec;
}

ModuleSpec activation(std::string name, ModuleType type, bool tanh_approximation) {
  ModuleSpec spec;
  spec.name = std::move(name);
  spec.type = type;
  spec.tanh_approximation = tanh_approximation;
  return spec;
}

ModelSpec modules_model(std::vector<ModuleSpec> modules) {
  ModelSpec model;
  model.modules = std::move(modules);
  return model;
}

ModelSpec elementwise_model(std::vector<ElementwiseSpec> parameters) {
  ModelSpec model;
  model.elementwise = std::move(parameters);
  return model;
}

Scenario fsdp_scenario(ModelSpec model, std::int64_t num_ranks) {
  Scenario scenario;
  scenario.name = "built";
  scenario.file = "built.json";
  scenario.mesh = Mesh({num_ranks}, {"fsdp"});
  scenario.roles.fsdp_shard_dim = 0;
  scenario.data.data_dims = {0};
  scenario.model = std::move(model);
  finish_scenario(scenario);
  return scenario;
}

Scenario hsdp_scenario(ModelSpec model, std::int64_t replicas, std::int64_t shards) {
  Scenario scenario;
  scenario.name = "built";
  scenario.file = "built.json";
  scenario.mesh = Mesh({replicas, shards}, {"rep", "fsdp"});
  scenario.roles.dp_replicate_dim = 0;
  scenario.roles.fsdp_shard_dim = 1;
  scenario.data.data_dims = {0, 1};
  scenario.model = std::move(model);
  finish_scenario(scenario);
  return scenario;
}

void finish_scenario(Scenario& scenario) {
  scenario.parameters = list_parameters(scenario.model);
  scenario.units = assign_units(scenario.model, scenario.parameters, {}, false);
  if (scenario.training.global_batch == 0) {
    scenario.training.global_batch = 2 * scenario.num_data_ranks();
  }
}

void make_exact(Scenario& scenario) {
  scenario.numerics.mode = NumericsSpec::Mode::Exact;
  for (FillSpec* fill : {&scenario.data.init, &scenario.data.input, &scenario.data.target}) {
    fill->kind = FillSpec::Kind::Integer;
    fill->max = 2;
    fill->scale = 1;
  }
  OptimizerSpec& optimizer = scenario.training.optimizer;
  optimizer.lr = 0.0625;
  optimizer.round_to = scenario.data.init.scale;
  optimizer.clamp = static_cast<double>(scenario.data.init.max) * scenario.data.init.scale;
}

}  // namespace hpsim::test
