#pragma once

#include <optional>
#include <string>
#include <vector>

#include "scenario/object_reader.h"
#include "scenario/scenario.h"

namespace hpsim {

// One function per section of the file. Each adds what is wrong to the problems of its reader and
// returns nothing if what it should return would be wrong.

/// `mesh`
[[nodiscard]] std::optional<Mesh> read_mesh(const ObjectReader& scenario);

/// `roles`, and roles by name: a dim takes the role that its name says unless `roles` says
/// otherwise.
///
///   mesh (dp, fsdp)                                dp is dp_replicate_dim
///   mesh (dp)                                      dp is fsdp_shard_dim
///   mesh (fsdp), {"fsdp_shard_dim": null}          no role: copies along fsdp, no data split
///   mesh (a, fsdp), {"fsdp_shard_dim": "a"}        refused: fsdp is left without a role
///   mesh (fsdp, shard)                             refused: two dims for one role
///   mesh (x)                                       refused: no role, asks for `roles`
[[nodiscard]] std::optional<Roles> read_roles(const ObjectReader& scenario, const Mesh& mesh);

/// `parameters` or `model`, and `data.sample_shape`. What it gives is sound enough to go on with
/// also where something is wrong.
[[nodiscard]] std::optional<ModelSpec> read_model(const ObjectReader& scenario);

/// What TP and EP make of a model.
struct Parallelism {
  std::vector<std::vector<Placement>> placements;  ///< like parameters, one per mesh dim
  std::vector<ParallelStyle> styles;               ///< per module, or elementwise parameter
};

/// `parallelize`, `placements`, and `placements` of elementwise parameters; placements override
/// styles for the mesh dims that they name.
///
///   mesh (fsdp, tp), {"w": {"tp": "Shard(0)"}}      [Replicate, Shard(0)] for w
///   {"w": {"fsdp": "Shard(0)"}}                     refused: fully_shard decides there
///   {"w": {"tp": "Partial(sum)"}}                   refused: parameters are never Partial
///   parallelize {"up": "colwise"}                   up.weight, up.bias [Replicate, Shard(0)]
///   parallelize {"down": "rowwise"}                 down.weight [Replicate, Shard(1)]
///   placements {"up.weight": {"tp": "Shard(0)"}}    refused: up.bias must be Shard(0) too
///   mesh (tp 2, ep 2), tp "Shard(0)",               [Shard(0), Shard(0)]: of parameters of modules
///     ep "StridedShard(0, 2)"                       cuts have one spelling
///   mesh (fsdp), parallelize {"up": "colwise"}      refused: no mesh dim is tp_dim
///   parallelize {"attn": "colwise"}                 wq, wk, wv colwise, wo rowwise
///   the same and {"attn.wo": "rowwise_sp"}          wo rowwise_sp: the inner part decides
[[nodiscard]] Parallelism read_parallelism(const ObjectReader& scenario, const Mesh& mesh,
                                           const Roles& roles, const ModelSpec& model);

/// What `fully_shard` cuts: `shard_size`, `shard_placement`, and whether the cuts are possible.
/// With shard_size below the size of its mesh dim, splits that dim: mesh, roles, data dims and
/// placements of the scenario then speak of the split mesh. \pre mesh, roles, model and fully_shard
/// are read
void read_cuts(const ObjectReader& scenario, Scenario& result);

/// `fully_shard` but `units`, `shard_size`, `shard_placement`, `mp_policy` and a number at
/// `reshard_after_forward`. Roles or parameters are missing if they could not be read; what depends
/// on them is then left unchecked.
[[nodiscard]] FullyShardSpec read_fully_shard(const ObjectReader& scenario,
                                              const std::optional<Roles>& roles,
                                              const std::optional<ModelSpec>& model);

/// A number k at `fully_shard.reshard_after_forward`, a divisor of the size n of the shard group.
///
///   n 8, k 2          true, post_forward_size 2        k 8    true
///   n 8, k 1          false, as in PyTorch             k 3    refused
/// \pre read_cuts has split the shard dim
void read_reshard_after_forward(const ObjectReader& scenario, Scenario& result);

/// `fully_shard.units`; a weight that modules of two units use is a mistake.
[[nodiscard]] std::vector<UnitSpec> read_units(const ObjectReader& scenario, const ModelSpec& model,
                                               const std::vector<int>& ignored);

/// Indices of the parameters that any of the patterns at `key` matches, ascending; a pattern that
/// matches none is a mistake.
[[nodiscard]] std::vector<int> read_parameter_patterns(const ObjectReader& reader,
                                                       std::string_view key,
                                                       const ModelSpec& model);

/// `numerics` but `parameter_dtypes`.
[[nodiscard]] NumericsSpec read_numerics(const ObjectReader& scenario);

/// `numerics.parameter_dtypes` and `fully_shard.mp_policy`. A dtype that changes nothing is left
/// out: param_dtype where parameters, and all that units take, have it; reduce_dtype where
/// gradients have it.
/// \pre model, parameters and numerics are read
void read_precision(const ObjectReader& scenario, Scenario& result);

/// `data`; defaults as for the mode. `data_dims` are those of fully_shard and ep unless given. The
/// input is tokens where the model begins with an embedding, the target where the loss is
/// cross_entropy.
[[nodiscard]] DataSpec read_data(const ObjectReader& scenario, const std::optional<Mesh>& mesh,
                                 const std::optional<Roles>& roles,
                                 const std::optional<ModelSpec>& model, NumericsSpec::Mode mode);

/// `training` but `global_batch`, `frozen`, `unfreeze_at` and `activation_checkpointing`; defaults
/// as for the mode and `init`.
[[nodiscard]] TrainingSpec read_training(const ObjectReader& scenario, NumericsSpec::Mode mode,
                                         const FillSpec& init);

/// `micro_batches`, `requires_gradient_sync` and `requires_all_reduce` of `training`.
void read_micro_batches(const ObjectReader& training, TrainingSpec& spec);

/// `training.global_batch`: given and a multiple of the number of data ranks times that of
/// micro-batches, or twice that product.
[[nodiscard]] std::int64_t read_global_batch(const ObjectReader& scenario,
                                             std::int64_t num_data_ranks,
                                             std::int64_t num_micro_batches);

/// `data.tokens`. \pre model, data_dims and `training` are read
void read_tokens_of_ranks(const ObjectReader& scenario, Scenario& result);

/// `training.frozen`, `training.unfreeze_at` and `frozen` of elementwise parameters as
/// TrainingSpec::trained_from.
///
///   3 steps, parameters a b c, frozen ["b", "c"], unfreeze_at {"c": 1}    0, 3, 1
///   unfreeze_at {"a": 1}                                                  refused: a is not frozen
///   frozen ["*"]                                                          refused: nothing trained
/// \pre model, parameters and `training` are read
[[nodiscard]] std::vector<std::int64_t> read_trained_from(const ObjectReader& scenario,
                                                          const Scenario& result);

/// `training.activation_checkpointing`: parts of the model, by first module; a part that two
/// patterns name comes once.
///
///   repeat blocks 2, ["blocks.*"]             blocks.0, blocks.1
///   the same, ["blocks"]                      blocks, as one part
///   ["blocks", "blocks.0"]                    refused: one lies in the other
///   ["**"]                                    likewise
[[nodiscard]] std::vector<RecomputedSpec> read_recomputed(const ObjectReader& scenario,
                                                          const ModelSpec& model);

/// `faults`; what depends on the mesh, the model or `training.steps` is left unchecked if they are
/// wrong. \pre parameters and units are read
[[nodiscard]] std::vector<FaultSpec> read_faults(const ObjectReader& scenario,
                                                 const std::optional<Mesh>& mesh,
                                                 const Scenario& result);

}  // namespace hpsim
