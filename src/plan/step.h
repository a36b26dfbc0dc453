#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "mesh/mesh.h"
#include "mesh/per_coordinate.h"

namespace hpsim {

enum class CollectiveOp { AllGather, ReduceScatter, AllReduce, AllToAll };

/// "all_gather", "reduce_scatter", "all_reduce", "all_to_all"
[[nodiscard]] std::string_view name_of(CollectiveOp op);

/// Whether it adds up what members send: reduce_scatter, all_reduce. The others only move it, and
/// have no scale.
[[nodiscard]] bool is_reduction(CollectiveOp op);

enum class Phase { Forward, Backward, Optimizer };

/// "forward", "backward", "optimizer"
[[nodiscard]] std::string_view name_of(Phase phase);

/// One exchange among the ranks that vary along `dims`; all such groups run it side by side.
/// Sums on the wire; `prescale` multiplies the input before, `scale` the output after.
struct CollectiveSpec {
  CollectiveOp op = CollectiveOp::AllGather;
  MeshDims dims;
  std::int64_t group_size = 1;  ///< > 1: groups of one send nothing and have no collective
  DType dtype = DType::Float32;
  PerCoordinate elems_in = 0;   ///< per rank
  PerCoordinate elems_out = 0;  ///< per rank
  double prescale = 1;
  double scale = 1;
  /// > 0: groups are runs of that many consecutive members along `dims`, not all of them.
  std::int64_t consecutive = 0;
  bool takes_max = false;  ///< all_reduce only: the largest of what members send, not the sum
  /// How much is sent follows from where tokens are routed: elems are those of balanced routing
  /// (plan/token_exchange.h), those of a run follow from what it routed.
  bool is_routed = false;

  bool operator==(const CollectiveSpec&) const = default;
};

/// What a step does. `bucket` and `module` say to what; all else is in the plan.
enum class StepKind {
  Unshard,         ///< gather a bucket's parameters (collective: all_gather), cast to its dtype;
                   ///< is_async: only begins that
  WaitUnshard,     ///< until what an Unshard of the bucket began is done
  Reshard,         ///< free the gathered parameters of a bucket; after forward, where it has a
                   ///< post_forward_size, keep that part of them
  Redistribute,    ///< an activation or its gradient to another layout (collective, or local)
  Route,           ///< experts: chooses them for every position, and tells the ranks that hold them
                   ///< how many positions come (collective: all_to_all of counts)
  Dispatch,        ///< positions, or gradients of their outputs, to their experts (all_to_all)
  Combine,         ///< outputs, or gradients of the inputs, of experts back (all_to_all)
  Forward,         ///< one module, or one elementwise parameter
  Loss,            ///< local loss and the gradient of the output
  Backward,        ///< one module, or one elementwise parameter
  ReduceScatter,   ///< a bucket's gradients over its sharded group (collective), added to what
                   ///< earlier micro-batches left to be all-reduced
  AllReduce,       ///< a bucket's reduced gradients over replicas or partial dims (collective)
  ScaleGradient,   ///< k/F, when no collective carries it
  StoreGradient,   ///< true sizes out of the padded row, into the gradients of the shards, or
                   ///< added to what earlier micro-batches left there
  ClipGradients,   ///< the norm of all gradients (collective: all_reduce), which scales them down
  Optimizer,       ///< update all shards that have gradients, then drop these
  AverageWeights,  ///< a bucket's updated weights over its copies (collective: all_reduce)
};

/// "unshard", "reshard", "forward", ...
[[nodiscard]] std::string_view name_of(StepKind kind);

/// Route, Dispatch and Combine.
[[nodiscard]] bool moves_tokens(StepKind kind);

/// Why a step is in the plan.
struct Why {
  std::string before;     ///< layout before: "[Shard(0)]"; empty where no layout changes
  std::string after;      ///< layout after
  std::string_view rule;  ///< the rule that asked for it, with its source
};

/// One step, the same on every rank (SPMD). Indices are into the plan's tables; -1 if not used.
struct Step {
  StepKind kind = StepKind::Forward;
  Phase phase = Phase::Forward;
  std::int64_t step = 0;         ///< optimizer step, from 0
  std::int64_t micro_batch = 0;  ///< from 0
  int bucket = -1;
  int module = -1;  ///< into ModelSpec::modules, or ModelSpec::elementwise; of Redistribute the one
                    ///< that asks for it, -1 for the loss
  int row = -1;     ///< ReduceScatter to StoreGradient: into Plan::gradient_rows
  int partial = -1;         ///< AllReduce only: into GradientRow::partials; -1: the whole row
  int redistribution = -1;  ///< Redistribute only: into Plan::redistributions
  bool is_async = false;    ///< Unshard only: a WaitUnshard ends its collective
  /// Forward, Redistribute, Route, Dispatch, Combine in backward: the step of forward once more, of
  /// a part of the model that is computed again.
  bool is_recomputed = false;
  std::optional<CollectiveSpec> collective;
  double local_scale = 1;  ///< ScaleGradient only: k/F
  /// Backward only: the gradient rows in which the module leaves gradients of its parameters; a
  /// parameter that is in none of them has no gradient.
  std::vector<int> rows;
  Why why;
};

}  // namespace hpsim
