#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "scenario/scenario.h"

namespace hpsim::test {

/// Scenarios built without the JSON reader, with the format's defaults: uniform data, one step of
/// sgd with lr 0.1, mse, local_mean, two samples per data rank. Callers change what they need and,
/// if they change the mesh or the model, call `finish_scenario` again.

[[nodiscard]] ModuleSpec linear(std::string name, std::int64_t in, std::int64_t out,
                                bool bias = true);
[[nodiscard]] ModuleSpec activation(std::string name, ModuleType type,
                                    bool tanh_approximation = false);

[[nodiscard]] ModelSpec modules_model(std::vector<ModuleSpec> modules);
[[nodiscard]] ModelSpec elementwise_model(std::vector<ElementwiseSpec> parameters);

/// Mesh (fsdp: num_ranks), fsdp_shard_dim 0.
[[nodiscard]] Scenario fsdp_scenario(ModelSpec model, std::int64_t num_ranks);
/// Mesh (rep: replicas, fsdp: shards), both data dims.
[[nodiscard]] Scenario hsdp_scenario(ModelSpec model, std::int64_t replicas, std::int64_t shards);

/// Derives what the reader derives: parameters, units (one per module), global_batch if it is 0.
void finish_scenario(Scenario& scenario);

/// Exact mode with its defaults: integer data of max 2, lr 0.0625, round_to and clamp of the init.
void make_exact(Scenario& scenario);

}  // namespace hpsim::test
