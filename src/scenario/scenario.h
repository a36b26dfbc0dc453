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

/// `mp_policy` (torch.distributed.fsdp.MixedPrecisionPolicy), the same for all units: see
/// scenario/precision.h for what follows from it.
struct MixedPrecision {
  std::optional<DType> param_dtype;   ///< of gathered parameters and compute; none: their own
  std::optional<DType> reduce_dtype;  ///< of the reduction of gradients; none: that of compute
  std::optional<DType> output_dtype;  ///< of what a unit gives; none: that of compute
  bool cast_forward_inputs = true;    ///< what a unit takes becomes param_dtype
};

/// `fully_shard`: what is cut, gathered and reduced, and when.
struct FullyShardSpec {
  bool shards_parameters = true;  ///< enable_param_shard, or what null infers from the roles
  bool reshard_after_forward = true;
  /// reshard_after_forward k: between forward and backward a rank keeps 1/k of the whole, and k
  /// consecutive ranks of the shard group gather it again. 0: it keeps its shard. Divides the size
  /// of the shard group, and is neither 1 nor all of it.
  std::int64_t post_forward_size = 0;
  /// reshard_after_forward null, as fully_shard decides without being told: the root unit, which
  /// backward needs first, stays whole.
  bool keeps_root_after_forward = false;
  bool reshard_after_backward = true;  ///< but for the last micro-batch, which always does
  /// How many units ahead are gathered while one computes: right after a unit's own unshard, those
  /// of the next ones are begun (FSDP2's set_modules_to_forward_prefetch, ..._backward_prefetch).
  std::int64_t forward_prefetch = 0;
  std::int64_t backward_prefetch = 0;
  MixedPrecision mp_policy;
  bool fuses_collectives = true;  ///< comm_fusion: one per unit, group and dtype, or per parameter
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

/// What the loss terms s of a micro-batch of a data rank are divided by before their gradients add
/// up: LocalMean n M, n their number and M the micro-batches; GlobalTokens the number of all terms
/// of the optimizer step, on all data ranks; Sum 1.
enum class LossNormalization { LocalMean, GlobalTokens, Sum };

/// "local_mean", "global_tokens", "sum"
[[nodiscard]] std::string_view name_of(LossNormalization normalization);

/// mse: mean over positions and features of (y - t)²; cross_entropy: mean over positions of
/// -log softmax(y)[t], t a token, features are classes.
enum class LossKind { Mse, CrossEntropy };

/// `clip_grad_norm` (torch.nn.utils.clip_grad_norm_): gradients are multiplied by
/// min(1, max_norm / (norm + 1e-6)).
struct ClipSpec {
  double max_norm = 1;
  double norm_type = 2;  ///< p of the p-norm; infinity: the largest magnitude
};

/// One of `activation_checkpointing`: a part [first, end) of ModelSpec::modules of which forward
/// keeps what it takes only; backward computes it again (torch.utils.checkpoint).
struct RecomputedSpec {
  int first = 0;
  int end = 0;
};

/// `init_device`: on "cpu" every rank makes every parameter whole, one after another, and keeps its
/// shard; on "meta" parameters are made without storage, and every rank makes its shard only.
enum class InitDevice { Cpu, Meta };

/// "cpu", "meta"
[[nodiscard]] std::string_view name_of(InitDevice device);

struct TrainingSpec {
  std::int64_t steps = 1;
  std::int64_t global_batch = 0;   ///< samples per optimizer step over all data ranks
  std::int64_t micro_batches = 1;  ///< passes per optimizer step, whose gradients add up
  /// Per micro-batch whether gradients are reduced, and whether all-reduces are among that; empty:
  /// all are. The last one always reduces all.
  std::vector<bool> gradient_syncs;
  std::vector<bool> all_reduces;
  LossKind loss = LossKind::Mse;
  LossNormalization loss_normalization = LossNormalization::LocalMean;
  OptimizerSpec optimizer;
  std::optional<ClipSpec> clip_grad_norm;
  /// Per parameter the optimizer step from which on it has a gradient (`frozen`, `unfreeze_at`), at
  /// least `steps` where it never has one; empty: all have one from the first step on.
  std::vector<std::int64_t> trained_from;
  bool reduce_unused = false;              ///< parameters that no rank uses have gradients of zeros
  std::vector<RecomputedSpec> recomputed;  ///< by first module, none overlaps another
  InitDevice init_device = InitDevice::Cpu;

  [[nodiscard]] bool syncs_gradients(std::int64_t micro_batch) const {
    return gradient_syncs.empty() || gradient_syncs.at(static_cast<std::size_t>(micro_batch));
  }
  [[nodiscard]] bool does_all_reduce(std::int64_t micro_batch) const {
    return all_reduces.empty() || all_reduces.at(static_cast<std::size_t>(micro_batch));
  }
};

/// One of `data.inactive`: what some data ranks leave out of some passes. A part [first, end) of
/// ModelSpec::modules is the identity there: its last module gives what its first one takes, or, of
/// a residual, what is added to. An elementwise parameter leaves the loss.
struct InactiveSpec {
  int first = 0;                            ///< into ModelSpec::modules, or ModelSpec::elementwise
  int end = 0;                              ///< behind its last
  std::vector<std::int64_t> data_ranks;     ///< ascending
  std::vector<std::int64_t> steps;          ///< optimizer steps, ascending
  std::vector<std::int64_t> micro_batches;  ///< ascending

  [[nodiscard]] bool lists_data_rank(std::int64_t data_rank) const;
  [[nodiscard]] bool lists_pass(std::int64_t step, std::int64_t micro_batch) const;
};

struct DataSpec {
  std::uint64_t seed = 0;
  FillSpec init;                      ///< of parameters; see `parameter_fill`
  bool init_bound_from_shape = true;  ///< uniform init with bound 1 / sqrt(last dim)
  FillSpec input;
  FillSpec target;
  MeshDims data_dims;  ///< the batch is split over them, row-major
  /// Valid positions of each micro-batch of each data rank, the first ones in (sample, position)
  /// order: [data rank][micro-batch]; empty: all. Only valid positions have loss terms.
  std::vector<std::vector<std::int64_t>> tokens;
  std::vector<InactiveSpec> inactive;
};

struct NumericsSpec {
  enum class Mode { Derived, Exact };
  DType dtype = DType::Float32;         ///< of parameters, optimizer state and data
  std::vector<DType> parameter_dtypes;  ///< like parameters; empty: all are `dtype`
  Mode mode = Mode::Derived;
};

/// One of `faults`: what is done wrong on purpose, and where. Which of these keys it takes, and
/// what it does, says scenario/fault_catalog.h.
struct FaultSpec {
  std::string name;                  ///< of a FaultKind
  std::vector<int> params;           ///< that it is about, ascending; empty: all
  std::vector<Rank> ranks;           ///< that do it, ascending; empty: all
  std::optional<std::int64_t> step;  ///< optimizer step
  std::optional<std::int64_t> seq;   ///< of the collective, in the whole run; see place_faults
  std::optional<int> unit;           ///< into Scenario::units
  std::string pointer;               ///< "/faults/0": where the file has it

  [[nodiscard]] bool is_about(int parameter) const;
  [[nodiscard]] bool is_of(Rank rank) const;
  [[nodiscard]] bool is_in(std::int64_t optimizer_step) const {
    return step.value_or(optimizer_step) == optimizer_step;
  }
  [[nodiscard]] bool is_in_unit(int u) const { return unit.value_or(u) == u; }
};

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
  /// Samples of one data rank in one optimizer step: micro_batches times micro_batch_size.
  [[nodiscard]] std::int64_t local_batch() const {
    return training.global_batch / num_data_ranks();
  }
  /// Samples of one data rank in one micro-batch.
  [[nodiscard]] std::int64_t micro_batch_size() const {
    return local_batch() / training.micro_batches;
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
/// nor smaller than min_shard_bytes (global shape, its dtype).
[[nodiscard]] bool is_sharded(const Scenario& scenario, int p);

/// How: `num_shards` pieces where `shard_placement` says, dim 0 by default.
[[nodiscard]] ShardCut shard_cut_of(const Scenario& scenario, int p, std::int64_t num_shards);

/// k for parameter `p`: 1 where fully_shard leaves it alone.
[[nodiscard]] double gradient_factor(const Scenario& scenario, int p);

/// F, what the sum of gradients over data ranks is divided by: gradient_divide_factor if given,
/// else mean_divisor(number of data ranks) for avg and 1 for sum.
[[nodiscard]] double gradient_divisor(const Scenario& scenario);

}  // namespace hpsim
