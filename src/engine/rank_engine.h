#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/local_model.h"
#include "engine/rank_memory.h"
#include "engine/rank_optimizer.h"
#include "engine/whole_parameters.h"
#include "plan/faults/executed_plan.h"
#include "plan/plan.h"
#include "trace/run_result.h"

namespace hpsim {

/// A collective that a rank must now take part in, on its own buffers.
///   all_gather      input: elems_in elements; output: group_size * elems_in, in group order
///   reduce_scatter  input: group_size * elems_out, in group order; output: sums of own row
///   all_reduce      input == output, elems_in == elems_out: sums in place
///   all_to_all      elems_in == elems_out == group_size * slot, both in group order: slot j of the
///                   input goes to member j, slot i of the output came from member i; or, with
///                   counts, runs of counts_in[j] elements go to member j, runs of counts_out[i]
///                   came from member i, and their sums are elems_in and elems_out
/// Buffers do not overlap otherwise. Sums are plain: scales are the engine's business, as are
/// dtypes that are emulated; `dtype` is that of the numbers in the buffers, float32 or float64
/// (int64 where nothing is summed).
struct CollectiveCall {
  std::int64_t plan_step = 0;
  CollectiveOp op = CollectiveOp::AllGather;
  DType dtype = DType::Float32;
  const void* input = nullptr;
  void* output = nullptr;
  std::int64_t elems_in = 0;
  std::int64_t elems_out = 0;
  /// all_to_all only, per member in group order; empty: equal slots. counts_in[j] of rank i is
  /// counts_out[i] of rank j; they outlive the collective.
  std::span<const std::int64_t> counts_in = {};
  std::span<const std::int64_t> counts_out = {};
  bool takes_max = false;  ///< reductions only: the largest of what members send, not the sum
  DType sent_as = DType::Float32;  ///< that the numbers are sent as: `dtype`, or an emulated one
};

/// One rank's interpreter of the plan: local tensors, modules, optimizer, ledger. It never
/// communicates; an executor carries out what it asks for between begin and finish, so the same
/// engine runs under every executor.
class RankEngine {
 public:
  virtual ~RankEngine() = default;

  /// Does what step `plan_step` does before its collective, and returns that if it has one. Of a
  /// step that is_async, the buffers of the call belong to it until the begin of the WaitUnshard
  /// of its bucket has returned.
  [[nodiscard]] virtual std::optional<CollectiveCall> begin(std::int64_t plan_step) = 0;
  /// One more collective of the step, once the last one is carried out; only planted faults have
  /// any, and none where the step is_async.
  [[nodiscard]] virtual std::optional<CollectiveCall> more(std::int64_t /*plan_step*/) {
    return std::nullopt;
  }
  /// Does what remains of it. \pre begin(plan_step) was called, its collective carried out, or
  ///      begun where the step is_async; of a WaitUnshard, what was begun is carried out
  virtual void finish(std::int64_t plan_step) = 0;
};

/// An engine whose optimizer holds all parameters, and which then made them as init_device says and
/// recorded the initial shards. `result` must outlive the engine, which writes only what belongs to
/// `rank`. `shared`: of the ranks of this process; null: the rank is alone.
[[nodiscard]] std::unique_ptr<RankEngine> make_rank_engine(const VerifiedPlan& plan, Rank rank,
                                                           RunResult& result,
                                                           SharedParameters* shared = nullptr);

/// The same of what the rank carries out (ExecutedPlan), with the engine faults of the scenario
/// that are aimed at it. `plan` must outlive the engine.
[[nodiscard]] std::unique_ptr<RankEngine> make_rank_engine(const ExecutedPlan& plan, Rank rank,
                                                           RunResult& result,
                                                           SharedParameters* shared = nullptr);

/// What planted faults reach: all that the rank holds and computes with.
template <class T>
struct EngineParts {
  const Plan& plan;  ///< that the rank carries out
  Rank rank;
  RunResult& result;
  RankMemory<T>& memory;
  LocalModel<T>& model;
  double& norm_on_wire;  ///< sum of |g|^p, or largest |g|, that clipping sends and reads
  RankOptimizer<T>& optimizer;
};

template <class T>
[[nodiscard]] EngineParts<T> parts_of(RankEngine& engine);

/// What the rank holds, to load other values into (reset_sharded_param), and for tests that plant
/// faults. T: float, or double where carrier_dtype says so.
template <class T>
[[nodiscard]] RankMemory<T>& memory_of(RankEngine& engine);

}  // namespace hpsim
