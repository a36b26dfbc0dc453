#include "trace/plan_ledger.h"

#include <algorithm>

#include "base/check.h"

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
        is_scattered_(plan.buckets.size(), 0) {
    for (const PlannedParameter& parameter : plan.parameters) {
      const std::int64_t index = plan.mesh().index_along(parameter.sharded_group.dims, coordinate);
      shard_elems_.push_back(parameter.shard_elems(index));
    }
    first_with_parameters_ =
        plan.scenario.parameters.empty() ? 0 : plan.scenario.parameters.front().module;
  }

  PlannedMemory run() {
    for (std::size_t p = 0; p < plan_.parameters.size(); ++p) {
      const std::int64_t padding = plan_.parameters[p].padded_elems() - shard_elems_[p];
      allocate(MemoryKind::ShardedParameters, shard_elems_[p]);
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
    for (const std::int64_t elems : shard_elems_)
      sum += elems;
    return sum;
  }

  void replay(const Step& step) {
    switch (step.kind) {
      case StepKind::Unshard:
        allocate(MemoryKind::UnshardedParameters, bucket_of(step).gathered_elems());
        break;
      case StepKind::Reshard:
        release(MemoryKind::UnshardedParameters, bucket_of(step).gathered_elems());
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
        allocate(MemoryKind::ReduceBuffers, bucket_of(step).row_elems);
        release(MemoryKind::UnshardedGradients, bucket_of(step).gathered_elems());
        break;
      case StepKind::AllReduce:
      case StepKind::ScaleGradient:
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
    }
  }

  [[nodiscard]] const Bucket& bucket_of(const Step& step) const {
    return plan_.buckets[static_cast<std::size_t>(step.bucket)];
  }

  void forward(int module) {
    const std::int64_t batch = scenario_.local_batch();
    const auto at = static_cast<std::size_t>(module);
    if (scenario_.model.is_elementwise()) {
      allocate(MemoryKind::Activations,
               2 * batch * num_elems(scenario_.model.elementwise[at].shape));
      return;
    }
    if (module == 0) allocate(MemoryKind::Activations, batch * features_before(0));
    allocate(MemoryKind::Activations, batch * features_before(module + 1));
  }

  void backward(int module) {
    const std::int64_t batch = scenario_.local_batch();
    if (scenario_.model.is_elementwise()) {
      const auto at = static_cast<std::size_t>(module);
      release(MemoryKind::Activations,
              2 * batch * num_elems(scenario_.model.elementwise[at].shape));
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
      allocate(MemoryKind::UnshardedGradients, plan_.buckets[b].gathered_elems());
      for (const int q : plan_.buckets[b].parameters) {
        const PlannedParameter& parameter = plan_.parameters[static_cast<std::size_t>(q)];
        const std::int64_t gathered = parameter.padded_elems() * parameter.shard_size();
        if (gathered > num_elems(parameter.shape)) count_padding();
      }
    }
  }

  void store(int b) {
    const Bucket& bucket = plan_.buckets[static_cast<std::size_t>(b)];
    for (const int p : bucket.parameters) {
      allocate(MemoryKind::Gradients, shard_elems_[static_cast<std::size_t>(p)]);
    }
    if (is_scattered_[static_cast<std::size_t>(b)]) {
      release(MemoryKind::ReduceBuffers, bucket.row_elems);
    } else {
      release(MemoryKind::UnshardedGradients, bucket.gathered_elems());
    }
    has_gradients_[static_cast<std::size_t>(b)] = 0;
    is_scattered_[static_cast<std::size_t>(b)] = 0;
  }

  /// Features of the input of module `module`; of the output for the number of modules.
  [[nodiscard]] std::int64_t features_before(int module) const {
    return features_before_module(scenario_.model, module);
  }
  [[nodiscard]] std::int64_t output_elems() const {
    return scenario_.local_batch() * output_features(scenario_.model);
  }

  const Plan& plan_;
  const Scenario& scenario_;
  std::int64_t elem_bytes_;
  int first_with_parameters_ = 0;
  std::vector<std::int64_t> shard_elems_;
  std::vector<char> has_gradients_;
  std::vector<char> is_scattered_;
  PlannedMemory memory_;
};

}  // namespace

PlannedMemory planned_memory(const Plan& plan, const Coordinate& coordinate) {
  return MemoryReplay(plan, coordinate).run();
}

}  // namespace hpsim
