#include "trace/plan_ledger.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "plan/rank_layout.h"
#include "plan/row_members.h"
#include "scenario/gradients.h"
#include "trace/activation_memory.h"

namespace hpsim {
namespace {

/// Replays the steps of a plan for one rank, counting bytes instead of computing.
class MemoryReplay {
 public:
  MemoryReplay(const Plan& plan, const Coordinate& coordinate, const Routing& routing)
      : plan_(plan),
        scenario_(plan.scenario),
        held_(held_at(plan, coordinate)),
        activations_(plan, coordinate, routing, held_, memory_.ledger),
        parameters_of_module_(parameters_of_modules(plan.scenario)),
        row_members_(plan),
        buckets_(plan.buckets.size()),
        has_content_(plan.parameters.size(), 0),
        is_stored_(plan.parameters.size(), 0),
        has_state_(plan.parameters.size(), 0) {
    for (const PlannedParameter& parameter : plan.parameters)
      slot_elems_.push_back(parameter.padded_elems.at(plan.mesh(), coordinate));
    for (const Bucket& bucket : plan.buckets)
      row_elems_.push_back(bucket.row_elems.at(plan.mesh(), coordinate));
    for (const GradientRow& row : plan.gradient_rows)
      gradient_row_elems_.push_back(row.row_elems.at(plan.mesh(), coordinate));
  }

  PlannedMemory run() {
    make_parameters();
    memory_.init = memory_.ledger;
    memory_.ledger.restart_peaks();
    memory_.events.reserve(plan_.steps.size());
    for (const Step& step : plan_.steps) {
      memory_.ledger.begin_event();
      replay(step);
      memory_.events.push_back(memory_.ledger.event());
    }
    return std::move(memory_);
  }

 private:
  /// Of a bucket.
  struct BucketState {
    int open_row = -1;         ///< gradient row whose buffer is there
    bool is_sealed = false;    ///< copies are in it
    bool has_reduced = false;  ///< a row that was scattered
    bool has_part = false;     ///< what is kept between forward and backward
  };

  static std::vector<HeldShard> held_at(const Plan& plan, const Coordinate& coordinate) {
    std::vector<HeldShard> held;
    for (const PlannedParameter& parameter : plan.parameters)
      held.push_back(held_shard(plan.mesh(), parameter, coordinate));
    return held;
  }

  void allocate(MemoryKind kind, std::int64_t bytes) { memory_.ledger.allocate(kind, bytes); }
  void release(MemoryKind kind, std::int64_t bytes) { memory_.ledger.release(kind, bytes); }
  void count_padding() {
    ++memory_.pad_allocations;
    ++memory_.pad_copies;
  }

  [[nodiscard]] BucketState& state(int b) { return buckets_[static_cast<std::size_t>(b)]; }
  [[nodiscard]] std::int64_t whole_elems(int p) const {
    return num_elems(held_[static_cast<std::size_t>(p)].whole.shape);
  }
  /// Of the row of a bucket, as it is gathered.
  [[nodiscard]] std::int64_t row_bytes(int b) const {
    return row_elems_[static_cast<std::size_t>(b)] * size_bytes(plan_.bucket(b).dtype);
  }
  [[nodiscard]] std::int64_t gathered_bytes(int b) const {
    return row_bytes(b) * plan_.bucket(b).sharded_group.size;
  }
  [[nodiscard]] std::int64_t part_bytes(int b) const {
    return gathered_bytes(b) / plan_.bucket(b).post_forward_size;
  }
  [[nodiscard]] std::int64_t reduced_bytes(int row) const {
    return gradient_row_elems_[static_cast<std::size_t>(row)] *
           size_bytes(plan_.bucket(plan_.gradient_row(row).bucket).reduce_dtype);
  }
  [[nodiscard]] std::int64_t gradient_bytes(int row) const {
    return reduced_bytes(row) * plan_.bucket(plan_.gradient_row(row).bucket).sharded_group.size;
  }
  /// Of those parameters that compute sees as a copy.
  [[nodiscard]] std::int64_t copied_bytes(const std::vector<int>& parameters, DType dtype) const {
    std::int64_t sum = 0;
    for (const int p : parameters) {
      if (needs_whole_copy(plan_.parameter(p))) sum += whole_elems(p) * size_bytes(dtype);
    }
    return sum;
  }
  [[nodiscard]] std::int64_t copied_bytes(int b) const {
    return copied_bytes(plan_.bucket(b).parameters, plan_.bucket(b).dtype);
  }
  [[nodiscard]] std::int64_t copied_gradient_bytes(int row) const {
    const GradientRow& gradients = plan_.gradient_row(row);
    return copied_bytes(gradients.parameters, plan_.bucket(gradients.bucket).reduce_dtype);
  }

  void make_parameters() {
    for (std::size_t p = 0; p < plan_.parameters.size(); ++p) {
      const std::int64_t padding = slot_elems_[p] - held_[p].elems;
      allocate(MemoryKind::ShardedParameters, shard_bytes(static_cast<int>(p)));
      allocate(MemoryKind::Padding, padding * size_bytes(plan_.parameters[p].dtype));
      if (padding > 0) count_padding();
    }
    for (int p = 0; p < static_cast<int>(plan_.parameters.size()); ++p) {
      const bool is_whole = scenario_.training.init_device == InitDevice::Cpu;
      const MemoryKind kind =
          is_whole ? MemoryKind::UnshardedParameters : MemoryKind::ShardedParameters;
      const std::int64_t bytes = is_whole ? drawn_whole_bytes(p) : drawn_shard_bytes(p);
      allocate(kind, bytes);
      release(kind, bytes);
    }
  }

  [[nodiscard]] std::int64_t drawn_whole_bytes(int p) const {
    const PlannedParameter& parameter = plan_.parameter(p);
    const std::int64_t elems = num_elems(parameter.shape);
    const bool keeps_all = held_[static_cast<std::size_t>(p)].elems == elems;
    return keeps_all ? 0 : elems * size_bytes(parameter.dtype);
  }

  [[nodiscard]] std::int64_t drawn_shard_bytes(int p) const {
    const auto at = static_cast<std::size_t>(p);
    return slot_elems_[at] > held_[at].elems ? shard_bytes(p) : 0;
  }

  void replay(const Step& step) {
    switch (step.kind) {
      case StepKind::Unshard:
        begin_unshard(step.bucket);
        if (!step.is_async) end_unshard(step.bucket);
        break;
      case StepKind::WaitUnshard:
        end_unshard(step.bucket);
        break;
      case StepKind::Reshard:
        reshard(step);
        break;
      case StepKind::Backward:
        begin_gradients(step);
        activations_.take(step);
        end_gradients(step);
        break;
      case StepKind::ReduceScatter:
        reduce_scatter(step);
        break;
      case StepKind::AllReduce:
      case StepKind::ScaleGradient:
        seal(step.bucket);
        break;
      case StepKind::StoreGradient:
        store(step);
        break;
      case StepKind::Optimizer:
        optimize();
        break;
      case StepKind::AverageWeights:
        average(step);
        break;
      default:
        activations_.take(step);
        break;
    }
  }

  /// Whether its shard is cast into a row of its own, from which it is gathered.
  [[nodiscard]] bool is_cast_before(int b) {
    const Bucket& bucket = plan_.bucket(b);
    return bucket.casts && bucket.sharded_group.size > 1 && !state(b).has_part;
  }

  void begin_unshard(int b) {
    if (is_cast_before(b)) allocate(MemoryKind::UnshardedParameters, row_bytes(b));
    allocate(MemoryKind::UnshardedParameters, gathered_bytes(b));
  }

  /// What it is gathered from is needed until it is.
  void end_unshard(int b) {
    BucketState& now = state(b);
    if (is_cast_before(b)) release(MemoryKind::UnshardedParameters, row_bytes(b));
    if (now.has_part) release(MemoryKind::UnshardedParameters, part_bytes(b));
    now.has_part = false;
    allocate(MemoryKind::UnshardedParameters, copied_bytes(b));
  }

  void reshard(const Step& step) {
    const int b = step.bucket;
    if (step.phase == Phase::Forward && plan_.bucket(b).post_forward_size > 0) {
      state(b).has_part = true;
      allocate(MemoryKind::UnshardedParameters, part_bytes(b));
    }
    release(MemoryKind::UnshardedParameters, gathered_bytes(b) + copied_bytes(b));
  }

  /// Opens the rows that the module leaves gradients in, and lends memory for those that are added
  /// to what is there.
  void begin_gradients(const Step& step) {
    for (const int row : step.rows) {
      const GradientRow& gradients = plan_.gradient_row(row);
      BucketState& now = state(gradients.bucket);
      if (now.open_row >= 0) continue;
      now.open_row = row;
      now.is_sealed = false;
      allocate(MemoryKind::UnshardedGradients, gradient_bytes(row) + copied_gradient_bytes(row));
      for (const int p : gradients.parameters) {
        const std::int64_t gathered =
            slot_elems_[static_cast<std::size_t>(p)] * plan_.parameter(p).shard_size();
        if (gathered > whole_elems(p)) count_padding();
      }
    }
    allocate(MemoryKind::UnshardedGradients, added_bytes(step));
  }

  void end_gradients(const Step& step) {
    release(MemoryKind::UnshardedGradients, added_bytes(step));
    for (const int p : gradients_of(step))
      has_content_[static_cast<std::size_t>(p)] = 1;
  }

  /// Parameters of which a backward leaves gradients.
  [[nodiscard]] std::vector<int> gradients_of(const Step& step) {
    std::vector<int> parameters;
    for (const int p : parameters_of_module_.at(static_cast<std::size_t>(step.module))) {
      if (row_members_.any_holds(step.rows, p)) parameters.push_back(p);
    }
    return parameters;
  }

  [[nodiscard]] std::int64_t added_bytes(const Step& step) {
    std::int64_t bytes = 0;
    for (const int p : gradients_of(step)) {
      if (has_content_[static_cast<std::size_t>(p)] == 0) continue;
      bytes += whole_elems(p) * size_bytes(plan_.parameter(p).compute_dtype);
    }
    return bytes;
  }

  /// Before its first reduction, gradients computed in copies go into the rows.
  void seal(int b) {
    BucketState& now = state(b);
    if (now.open_row < 0 || std::exchange(now.is_sealed, true)) return;
    release(MemoryKind::UnshardedGradients, copied_gradient_bytes(now.open_row));
  }

  void free_gradients(int b) {
    BucketState& now = state(b);
    seal(b);
    release(MemoryKind::UnshardedGradients, gradient_bytes(now.open_row));
    for (const int p : plan_.gradient_row(now.open_row).parameters)
      has_content_[static_cast<std::size_t>(p)] = 0;
    now.open_row = -1;
  }

  void reduce_scatter(const Step& step) {
    BucketState& now = state(step.bucket);
    seal(step.bucket);
    allocate(MemoryKind::ReduceBuffers, reduced_bytes(step.row));
    free_gradients(step.bucket);
    // It is added to the one that waits for its all-reduce.
    if (now.has_reduced) release(MemoryKind::ReduceBuffers, reduced_bytes(step.row));
    now.has_reduced = true;
  }

  void store(const Step& step) {
    BucketState& now = state(step.bucket);
    for (const int p : plan_.gradient_row(step.row).parameters) {
      const auto at = static_cast<std::size_t>(p);
      if (std::exchange(is_stored_[at], 1) == 0) allocate(MemoryKind::Gradients, shard_bytes(p));
    }
    if (now.has_reduced) {
      release(MemoryKind::ReduceBuffers, reduced_bytes(step.row));
    } else {
      free_gradients(step.bucket);
    }
    now.has_reduced = false;
  }

  [[nodiscard]] std::int64_t shard_bytes(int p) const {
    return held_[static_cast<std::size_t>(p)].elems * size_bytes(plan_.parameter(p).dtype);
  }

  /// In place, unless it is of some parameters of the bucket only.
  void average(const Step& step) {
    const GradientRow& row = plan_.gradient_row(step.row);
    if (row.parameters == plan_.bucket(row.bucket).parameters) return;
    const std::int64_t bytes = gradient_row_elems_[static_cast<std::size_t>(step.row)] *
                               size_bytes(plan_.parameter(row.parameters.at(0)).dtype);
    allocate(MemoryKind::ReduceBuffers, bytes);
    release(MemoryKind::ReduceBuffers, bytes);
  }

  /// State of a parameter is there from its first update on.
  void optimize() {
    const int num_states = scenario_.training.optimizer.num_state_tensors();
    for (int p = 0; p < static_cast<int>(plan_.parameters.size()); ++p) {
      const auto at = static_cast<std::size_t>(p);
      if (is_stored_[at] == 0 || std::exchange(has_state_[at], 1) != 0) continue;
      allocate(MemoryKind::OptimizerState, num_states * shard_bytes(p));
    }
    for (int p = 0; p < static_cast<int>(plan_.parameters.size()); ++p) {
      if (std::exchange(is_stored_[static_cast<std::size_t>(p)], 0) != 0)
        release(MemoryKind::Gradients, shard_bytes(p));
    }
    memory_.live_after.push_back(memory_.ledger.live());
  }

  const Plan& plan_;
  const Scenario& scenario_;
  PlannedMemory memory_;
  std::vector<HeldShard> held_;  ///< per parameter
  ActivationMemory activations_;
  std::vector<std::vector<int>> parameters_of_module_;
  RowMembers row_members_;
  std::vector<std::int64_t> slot_elems_;          ///< per parameter
  std::vector<std::int64_t> row_elems_;           ///< per bucket
  std::vector<std::int64_t> gradient_row_elems_;  ///< per gradient row
  std::vector<BucketState> buckets_;
  std::vector<char> has_content_;  ///< per parameter: a gradient is in the open row
  std::vector<char> is_stored_;    ///< per parameter: there is a gradient of its shard
  std::vector<char> has_state_;    ///< per parameter: it was updated
};

}  // namespace

PlannedMemory planned_memory(const Plan& plan, const Coordinate& coordinate) {
  return planned_memory(plan, coordinate, balanced_routing(plan));
}

PlannedMemory planned_memory(const Plan& plan, const Coordinate& coordinate,
                             const Routing& routing) {
  return MemoryReplay(plan, coordinate, routing).run();
}

}  // namespace hpsim
