#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/ids.h"
#include "base/interval.h"
#include "layout/local_units.h"
#include "layout/placement.h"
#include "layout/shard_cut.h"
#include "mesh/mesh.h"
#include "model/model_spec.h"
#include "model/parameters.h"
#include "model/units.h"
#include "tensor/fill.h"

namespace hpsim {

/// Which mesh dim does what; nothing if no dim has the role.
struct Roles {
  std::optional<int> fsdp_shard_dim;       ///< parameters are cut along it; reduce-scatter
  std::optional<int> dp_replicate_dim;     ///< copies along it; all-reduce
  std::optional<int> shard_replicate_dim;  ///< the replicas that shard_size makes; all-reduce
  std::optional<int> tp_dim;               ///< tensor parallelism: see Scenario::placements
  std::optional<int> ep_dim;               ///< expert parallelism: the same, and data dim
};

/// `parallelize`: how tensor parallelism cuts a module (torch.distributed.tensor.parallel).
enum class ParallelStyle {
  Replicate,  ///< not cut
  Colwise,    ///< output features: weight and bias Shard(0), of embeddings Shard(1); gives
              ///< Shard(last)
  Rowwise,    ///< input features: weight Shard(1), of embeddings, whose input features are their
              ///< vocabulary, Shard(0); bias Replicate; gives Replicate
  RowwiseSp,  ///< the same, but gives the sequence, Shard(1)
  SequenceParallel,  ///< norms: not cut; takes and gives the sequence, Shard(1)
  Expert,            ///< experts: w1, w2, w3 Shard(0) along ep_dim, positions go to their experts
};

/// "replicate", "colwise", "rowwise", "rowwise_sp", "sequence_parallel", "expert"
[[nodiscard]] std::string_view name_of(ParallelStyle style);

/// Which tensor dims of a parameter fully_shard cuts.
struct ShardPlacement {
  std::vector<int> dims = {0};  ///< one, or the leading ones together
  LocalUnits local_units;       ///< relative sizes of a ragged cut; empty: by `chunking`
  bool operator==(const ShardPlacement&) const = default;
};

/// What copies that saw different samples agree on: the sum of their gradients, or, after each has
/// been updated by its own gradient, the mean of their weights.
enum class SyncObject { Grad, Weight };

/// `fully_shard`: what is cut, gathered and reduced, and when.
struct FullyShardSpec {
  bool shards_parameters = true;  ///< enable_param_shard, or what null infers from the roles
  bool reshard_after_forward = true;
  SyncObject sync_object = SyncObject::Grad;
  ReduceOp reduce_op = ReduceOp::Avg;
  double gradient_scaling_factor = 1;            ///< k: multiplies the first collective's input
  std::optional<double> gradient_divide_factor;  ///< replaces the divisor F
  std::vector<int> replicate_params;             ///< indices: never cut, all-reduce only
  std::vector<int> ignored_params;               ///< indices: the user reduces them
  std::int64_t min_shard_bytes = 0;              ///< smaller parameters are not cut
  Chunking chunking = Chunking::Ceil;
  Vocabulary vocabulary = Vocabulary::Ragged;
  std::vector<ShardPlacement> shard_placements;  ///< like parameters; empty: dim 0 of all
};

struct OptimizerSpec {
  enum class Kind { Sgd, Adam, AdamW };
  Kind kind = Kind::Sgd;
  double lr = 0.1;
  double weight_decay = 0;
  double momentum = 0;                ///< sgd
  bool nesterov = false;              ///< sgd
  double beta1 = 0.9, beta2 = 0.999;  ///< adam, adamw
  double eps = 1e-8;                  ///< adam, adamw
  std::optional<double> round_to;     ///< exact mode: weights to the nearest multiple, ties even
  std::optional<double> clamp;        ///< exact mode: then to [-clamp, clamp]

  /// 0 for plain sgd, 1 for sgd with momentum (the buffer), 2 for adam (exp_avg, exp_avg_sq).
  [[nodiscard]] int num_state_tensors() const {
    return kind == Kind::Sgd ? (momentum != 0 ? 1 : 0) : 2;
  }
};

enum class LossNormalization { LocalMean, Sum };

/// mse: mean over positions and features of (y - t)²; cross_entropy: mean over positions of
/// -log softmax(y)[t], t a token, features are classes.
enum class LossKind { Mse, CrossEntropy };

struct TrainingSpec {
  std::int64_t steps = 1;
  std::int64_t global_batch = 0;  ///< samples per optimizer step over all data ranks
  LossKind loss = LossKind::Mse;
  LossNormalization loss_normalization = LossNormalization::LocalMean;
  OptimizerSpec optimizer;
};

struct DataSpec {
  std::uint64_t seed = 0;
  FillSpec init;                      ///< of parameters; see `parameter_fill`
  bool init_bound_from_shape = true;  ///< uniform init with bound 1 / sqrt(last dim)
  FillSpec input;
  FillSpec target;
  MeshDims data_dims;  ///< the batch is split over them, row-major
};

struct NumericsSpec {
  enum class Mode { Derived, Exact };
  DType dtype = DType::Float32;  ///< float32 or float64
  Mode mode = Mode::Derived;
};

/// One of `faults`: what some ranks do wrong on purpose, before a collective.
struct FaultSpec {
  enum class Kind { Kill, Throw, Stall };
  Kind kind = Kind::Kill;
  std::vector<Rank> ranks;           ///< at least one
  std::optional<std::int64_t> step;  ///< optimizer step
  std::optional<std::int64_t> seq;   ///< of the collective, in the whole run; see place_faults
  std::string pointer;               ///< "/faults/0": where the file has it
};

/// "kill", "throw", "stall"
[[nodiscard]] std::string_view name_of(FaultSpec::Kind kind);

/// One experiment, complete and valid: defaults filled in, names resolved, patterns matched. With
/// shard_size below the size of the fsdp_shard_dim "dp", `mesh` has "dp.replicate" and "dp.shard"
/// in its place.
struct Scenario {
  std::string name;
  std::string description;
  std::string file;  ///< the argument as typed
  std::string hash;  ///< fnv1a64 of the canonical JSON, 16 hex digits
  Mesh mesh{{1}, {"fsdp"}};
  Roles roles;
  ModelSpec model;
  std::vector<ParameterSpec> parameters;  ///< list_parameters(model)
  /// TP and EP: what each mesh dim does to each parameter, like parameters; empty: Replicate.
  std::vector<std::vector<Placement>> placements;
  /// `parallelize`, per module, or elementwise parameter; empty: Replicate.
  std::vector<ParallelStyle> styles;
  std::vector<UnitSpec> units;  ///< assign_units(...), in the order of first use
  FullyShardSpec fully_shard;
  TrainingSpec training;
  DataSpec data;
  NumericsSpec numerics;
  std::vector<FaultSpec> faults;
  std::string expect;                         ///< JSON text of `expect`; empty if there is none
  std::shared_ptr<const std::string> source;  ///< text of the file; none if it was not read

  /// Ranks that see distinct data: product of the sizes of data_dims.
  [[nodiscard]] std::int64_t num_data_ranks() const { return mesh.size(data.data_dims); }
  /// Samples of one data rank in one optimizer step.
  [[nodiscard]] std::int64_t local_batch() const {
    return training.global_batch / num_data_ranks();
  }
  [[nodiscard]] bool is_exact() const { return numerics.mode == NumericsSpec::Mode::Exact; }
};

/// How the parameter is initialised: `data.init` with its bound resolved for this shape.
[[nodiscard]] FillSpec parameter_fill(const DataSpec& data, const ParameterSpec& parameter);

/// A count as a divisor of a mean or of the avg scale: itself, but in exact mode the next power of
/// two that is at least as large, so that the division is exact. 6 -> 6, in exact mode 8.
[[nodiscard]] double mean_divisor(const Scenario& scenario, std::int64_t count);

/// What TP and EP make of parameter `p`: one placement per mesh dim.
[[nodiscard]] std::vector<Placement> placements_of(const Scenario& scenario, int p);

/// Data dims along which TP or EP cut elementwise parameter `p`: a rank uses the samples of all
/// ranks there.
[[nodiscard]] MeshDims shared_data_dims(const Scenario& scenario, int p);

/// The fully_shard domain: mesh dims with a data-parallel role, or all of them where none has one.
[[nodiscard]] MeshDims fully_shard_domain(const Scenario& scenario);

/// Whether fully_shard leaves parameter `p` alone.
[[nodiscard]] bool is_ignored(const Scenario& scenario, int p);

/// Whether fully_shard cuts parameter `p`: sharding is on, and it is neither replicated nor ignored
/// nor smaller than min_shard_bytes (global shape, dtype of the run).
[[nodiscard]] bool is_sharded(const Scenario& scenario, int p);

/// How: `num_shards` pieces where `shard_placement` says, dim 0 by default.
[[nodiscard]] ShardCut shard_cut_of(const Scenario& scenario, int p, std::int64_t num_shards);

/// k for parameter `p`: 1 where fully_shard leaves it alone.
[[nodiscard]] double gradient_factor(const Scenario& scenario, int p);

/// F, what the sum of gradients over data ranks is divided by: gradient_divide_factor if given,
/// else mean_divisor(number of data ranks) for avg and 1 for sum.
[[nodiscard]] double gradient_divisor(const Scenario& scenario);

}  // namespace hpsim
