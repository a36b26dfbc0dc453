#include "trace/plan_ledger.h"

#include <algorithm>

#include "base/check.h"
#include "plan/activation_part.h"
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
    if (!scenario_.model.is_elementwise()) measure_activations(coordinate);
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
  /// Elements of what the rank holds of every activation, and of what it sends to change them.
  void measure_activations(const Coordinate& coordinate) {
    const std::vector<std::int64_t> features = features_along(scenario_.model);
    const auto elems = [&](const std::vector<Placement>& layout, std::size_t activation) {
      return num_elems(scenario_,
                       activation_part(scenario_, layout, features[activation], coordinate));
    };
    drawn_elems_ = elems(input_layout(scenario_), 0);
    for (std::size_t module = 0; module < plan_.modules.size(); ++module) {
      input_elems_.push_back(elems(plan_.modules[module].input, module));
      output_elems_.push_back(elems(plan_.modules[module].output, module + 1));
    }
    loss_elems_ = elems(plan_.output, plan_.modules.size());
    for (const Redistribution& redistribution : plan_.redistributions)
      changes_.push_back(redistribution_sizes(plan_, redistribution, coordinate));
  }

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
      case StepKind::Redistribute:
        redistribute(step.redistribution);
        break;
      case StepKind::Forward:
        forward(step.module);
        break;
      case StepKind::Loss:
        allocate(MemoryKind::Activations, loss_elems_);
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

  /// Around its collective, what is sent and what arrives lies in slots, unless it is sent, or
  /// held, as it is.
  void redistribute(int redistribution) {
    const auto at = static_cast<std::size_t>(redistribution);
    const Redistribution& change = plan_.redistributions[at];
    if (change.activation == 0 && !change.is_gradient) draw_input();
    const RedistributeOp op = change.transition.op;
    if (op == RedistributeOp::AllReduce) return;  // in place
    const RedistributionSizes& sizes = changes_[at];
    const std::int64_t arrived = sizes.wire_out_elems(op);
    if (sizes.packs) allocate(MemoryKind::Activations, sizes.wire_in_elems(op));
    allocate(MemoryKind::Activations, communicates(op) ? arrived : sizes.after_elems);
    if (sizes.packs) release(MemoryKind::Activations, sizes.wire_in_elems(op));
    release(MemoryKind::Activations, sizes.before_elems);
    if (!sizes.unpacks) return;
    allocate(MemoryKind::Activations, sizes.after_elems);
    release(MemoryKind::Activations, arrived);
  }

  void draw_input() {
    if (!is_drawn_) allocate(MemoryKind::Activations, drawn_elems_);
    is_drawn_ = true;
  }

  void forward(int module) {
    const auto at = static_cast<std::size_t>(module);
    if (scenario_.model.is_elementwise()) {
      allocate(MemoryKind::Activations, sample_elems(at));
      return;
    }
    if (module == 0) draw_input();
    allocate(MemoryKind::Activations, output_elems_[at]);
  }

  void backward(int module) {
    const auto at = static_cast<std::size_t>(module);
    if (scenario_.model.is_elementwise()) {
      release(MemoryKind::Activations, sample_elems(at));
      return;
    }
    if (module > first_with_parameters_) allocate(MemoryKind::Activations, input_elems_[at]);
    release(MemoryKind::Activations, output_elems_[at]);  // the gradient of the output
    release(MemoryKind::Activations, kept_elems(at + 1));
    if (module > first_with_parameters_) return;
    // What lies before it, and the input, are of no more use.
    for (std::size_t before = 0; before <= at; ++before)
      release(MemoryKind::Activations, kept_elems(before));
    is_drawn_ = false;
  }

  /// Elements of an activation as it is kept for backward: as the next module, or the loss, took
  /// it.
  [[nodiscard]] std::int64_t kept_elems(std::size_t activation) const {
    return activation < input_elems_.size() ? input_elems_[activation] : loss_elems_;
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

  const Plan& plan_;
  const Scenario& scenario_;
  std::int64_t elem_bytes_;
  int first_with_parameters_ = 0;
  std::int64_t drawn_elems_ = 0;              ///< of the model's input
  bool is_drawn_ = false;                     ///< it is, in this step
  std::vector<std::int64_t> input_elems_;     ///< per module
  std::vector<std::int64_t> output_elems_;    ///< per module, as it computes it
  std::int64_t loss_elems_ = 0;               ///< of the model's output, as the loss takes it
  std::vector<RedistributionSizes> changes_;  ///< per redistribution
  std::vector<HeldShard> held_;               ///< per parameter
  std::vector<std::int64_t> slot_elems_;      ///< per parameter
  std::vector<std::int64_t> row_elems_;       ///< per bucket
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
