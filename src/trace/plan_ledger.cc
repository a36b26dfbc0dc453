#include "trace/plan_ledger.h"

#include <algorithm>

#include "base/check.h"
#include "plan/rank_layout.h"

namespace hpsim {
namespace {

/// Replays the steps of a plan for one rank, counting bytes instead of computing.
class MemoryReplay {
 public:
  MemoryReplay(const Plan& plan, const Coordinate& coordinate)
      : plan_(plan),
        scenario_(plan.scenario),
        elem_bytes_(size_bytes(plan.scenario.numerics.dtype)),
        has_gradients_(plan.buckets.size(), 0),
        is_scattered_(plan.buckets.size(), 0),
        is_sealed_(plan.buckets.size(), 0) {
    for (const PlannedParameter& parameter : plan.parameters) {
      held_.push_back(held_shard(plan.mesh(), parameter, coordinate));
      slot_elems_.push_back(parameter.padded_elems.at(plan.mesh(), coordinate));
    }
    if (!scenario_.model.is_elementwise()) features_ = features_along(scenario_.model);
    for (const Bucket& bucket : plan.buckets)
      row_elems_.push_back(bucket.row_elems.at(plan.mesh(), coordinate));
    first_with_parameters_ =
        plan.scenario.parameters.empty() ? 0 : plan.scenario.parameters.front().module;
  }

  PlannedMemory run() {
    for (std::size_t p = 0; p < plan_.parameters.size(); ++p) {
      const std::int64_t padding = slot_elems_[p] - held_[p].elems;
      allocate(MemoryKind::ShardedParameters, held_[p].elems);
      allocate(MemoryKind::Padding, padding);
      if (padding > 0) count_padding();
    }
    for (const Step& step : plan_.steps)
      replay(step);
    return std::move(memory_);
  }

 private:
  void allocate(MemoryKind kind, std::int64_t elems) {
    memory_.ledger.allocate(kind, elems * elem_bytes_);
  }
  void release(MemoryKind kind, std::int64_t elems) {
    memory_.ledger.release(kind, elems * elem_bytes_);
  }
  void count_padding() {
    ++memory_.pad_allocations;
    ++memory_.pad_copies;
  }
  [[nodiscard]] std::int64_t all_shard_elems() const {
    std::int64_t sum = 0;
    for (const HeldShard& held : held_)
      sum += held.elems;
    return sum;
  }
  [[nodiscard]] std::int64_t row_elems(int b) const {
    return row_elems_[static_cast<std::size_t>(b)];
  }
  [[nodiscard]] std::int64_t gathered_elems(int b) const {
    return row_elems(b) * plan_.bucket(b).sharded_group.size;
  }
  /// Elements of the parameters of a bucket that compute sees as a copy.
  [[nodiscard]] std::int64_t copied_elems(int b) const {
    std::int64_t sum = 0;
    for (const int p : plan_.bucket(b).parameters) {
      if (!needs_whole_copy(plan_.parameter(p))) continue;
      sum += num_elems(held_[static_cast<std::size_t>(p)].whole.shape);
    }
    return sum;
  }

  void replay(const Step& step) {
    switch (step.kind) {
      case StepKind::Unshard:
        allocate(MemoryKind::UnshardedParameters,
                 gathered_elems(step.bucket) + copied_elems(step.bucket));
        break;
      case StepKind::Reshard:
        release(MemoryKind::UnshardedParameters,
                gathered_elems(step.bucket) + copied_elems(step.bucket));
        break;
      case StepKind::Forward:
        forward(step.module);
        break;
      case StepKind::Loss:
        if (!scenario_.model.is_elementwise()) allocate(MemoryKind::Activations, output_elems());
        break;
      case StepKind::Backward:
        begin_gradients(step.module);
        backward(step.module);
        break;
      case StepKind::ReduceScatter:
        is_scattered_[static_cast<std::size_t>(step.bucket)] = 1;
        seal(step.bucket);
        allocate(MemoryKind::ReduceBuffers, row_elems(step.bucket));
        release(MemoryKind::UnshardedGradients, gathered_elems(step.bucket));
        break;
      case StepKind::AllReduce:
      case StepKind::ScaleGradient:
        seal(step.bucket);
        break;
      case StepKind::StoreGradient:
        store(step.bucket);
        break;
      case StepKind::Optimizer:
        if (step.step == 0) {
          allocate(MemoryKind::OptimizerState,
                   all_shard_elems() * scenario_.training.optimizer.num_state_tensors());
        }
        release(MemoryKind::Gradients, all_shard_elems());
        memory_.live_after.push_back(memory_.ledger.live());
        break;
      case StepKind::AverageWeights:  // in place
        break;
    }
  }

  /// Inputs and targets of an elementwise parameter: its part, of all samples that the rank uses.
  [[nodiscard]] std::int64_t sample_elems(std::size_t p) const {
    const std::int64_t num_parts =
        scenario_.mesh.size(shared_data_dims(scenario_, static_cast<int>(p)));
    return 2 * scenario_.local_batch() * num_parts * num_elems(held_[p].whole.shape);
  }

  void forward(int module) {
    const std::int64_t batch = scenario_.local_batch();
    const auto at = static_cast<std::size_t>(module);
    if (scenario_.model.is_elementwise()) {
      allocate(MemoryKind::Activations, sample_elems(at));
      return;
    }
    if (module == 0) allocate(MemoryKind::Activations, batch * features_before(0));
    allocate(MemoryKind::Activations, batch * features_before(module + 1));
  }

  void backward(int module) {
    const std::int64_t batch = scenario_.local_batch();
    if (scenario_.model.is_elementwise()) {
      const auto at = static_cast<std::size_t>(module);
      release(MemoryKind::Activations, sample_elems(at));
      return;
    }
    const std::int64_t output = batch * features_before(module + 1);
    if (module > first_with_parameters_) {
      allocate(MemoryKind::Activations, batch * features_before(module));
    }
    release(MemoryKind::Activations, 2 * output);  // the output and the gradient of it
    if (module == first_with_parameters_) {
      // What lies before it, and the input, are of no more use.
      for (int before = 0; before <= module; ++before) {
        release(MemoryKind::Activations, batch * features_before(before));
      }
    }
  }

  void begin_gradients(int module) {
    // Parameters come in module order.
    const auto first = std::lower_bound(
        scenario_.parameters.begin(), scenario_.parameters.end(), module,
        [](const ParameterSpec& parameter, int wanted) { return parameter.module < wanted; });
    for (auto p = static_cast<std::size_t>(first - scenario_.parameters.begin());
         p < plan_.parameters.size() && scenario_.parameters[p].module == module; ++p) {
      const auto b = static_cast<std::size_t>(plan_.parameters[p].bucket);
      if (has_gradients_[b]) continue;
      has_gradients_[b] = 1;
      const int bucket = plan_.parameters[p].bucket;
      allocate(MemoryKind::UnshardedGradients, gathered_elems(bucket) + copied_elems(bucket));
      for (const int q : plan_.buckets[b].parameters) {
        const auto at = static_cast<std::size_t>(q);
        const std::int64_t gathered = slot_elems_[at] * plan_.parameters[at].shard_size();
        if (gathered > num_elems(held_[at].whole.shape)) count_padding();
      }
    }
  }

  /// Before its first reduction, gradients computed in copies go into the rows.
  void seal(int b) {
    char& is_sealed = is_sealed_[static_cast<std::size_t>(b)];
    if (is_sealed == 0) release(MemoryKind::UnshardedGradients, copied_elems(b));
    is_sealed = 1;
  }

  void store(int b) {
    const Bucket& bucket = plan_.buckets[static_cast<std::size_t>(b)];
    for (const int p : bucket.parameters) {
      allocate(MemoryKind::Gradients, held_[static_cast<std::size_t>(p)].elems);
    }
    if (is_scattered_[static_cast<std::size_t>(b)]) {
      release(MemoryKind::ReduceBuffers, row_elems(b));
    } else {
      release(MemoryKind::UnshardedGradients, gathered_elems(b));
    }
    has_gradients_[static_cast<std::size_t>(b)] = 0;
    is_scattered_[static_cast<std::size_t>(b)] = 0;
    is_sealed_[static_cast<std::size_t>(b)] = 0;
  }

  /// Features of the input of module `module`; of the output for the number of modules.
  [[nodiscard]] std::int64_t features_before(int module) const {
    return features_[static_cast<std::size_t>(module)];
  }
  [[nodiscard]] std::int64_t output_elems() const {
    return scenario_.local_batch() * output_features(scenario_.model);
  }

  const Plan& plan_;
  const Scenario& scenario_;
  std::int64_t elem_bytes_;
  int first_with_parameters_ = 0;
  std::vector<std::int64_t> features_;    ///< before each module and behind the last
  std::vector<HeldShard> held_;           ///< per parameter
  std::vector<std::int64_t> slot_elems_;  ///< per parameter
  std::vector<std::int64_t> row_elems_;   ///< per bucket
  std::vector<char> has_gradients_;
  std::vector<char> is_scattered_;
  std::vector<char> is_sealed_;
  PlannedMemory memory_;
};

}  // namespace

PlannedMemory planned_memory(const Plan& plan, const Coordinate& coordinate) {
  return MemoryReplay(plan, coordinate).run();
}

}  // namespace hpsim
