#include "trace/plan_ledger.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/check.h"
#include "plan/activation_part.h"
#include "plan/loss_collective.h"
#include "plan/rank_layout.h"

namespace hpsim {
namespace {

/// Replays the steps of a plan for one rank, counting bytes instead of computing.
class MemoryReplay {
 public:
  MemoryReplay(const Plan& plan, const Coordinate& coordinate, const Routing& routing)
      : plan_(plan),
        coordinate_(coordinate),
        routing_(routing),
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
    parameters_of_module_ = parameters_of_modules(scenario_);
    adds_to_weight_ = modules_adding_to_weight(scenario_.model);
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
  /// Elements of what the rank holds of every value, and of what it sends to change them.
  void measure_activations(const Coordinate& coordinate) {
    for (const ActivationValue& value : plan_.values) {
      parts_.push_back(activation_part(scenario_, value.layout, value.features, coordinate));
      value_elems_.push_back(num_elems(scenario_, parts_.back()));
    }
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
      case StepKind::Route:  // counts are not counted
        break;
      case StepKind::Dispatch:
        dispatch(step);
        break;
      case StepKind::Combine:
        combine(step);
        break;
      case StepKind::Forward:
        if (is_experts(step.module)) {
          experts_forward(step);
        } else {
          forward(step.module);
        }
        break;
      case StepKind::Loss:
        if (!scenario_.model.is_elementwise()) take_loss();
        break;
      case StepKind::Backward:
        begin_gradients(step.module);
        if (is_experts(step.module)) {
          experts_backward(step);
        } else {
          backward(step.module);
        }
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
        is_drawn_ = false;
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

  [[nodiscard]] std::int64_t value_elems(int value) const {
    return value_elems_.at(static_cast<std::size_t>(value));
  }

  void free(const std::vector<int>& values) {
    for (const int value : values)
      release(MemoryKind::Activations, value_elems(value));
  }

  /// Allocated and released at once: it shows in the peak.
  void use_scratch(MemoryKind kind, std::int64_t elems) {
    allocate(kind, elems);
    release(kind, elems);
  }

  /// Around its collective, what is sent and what arrives lies in slots, unless it is sent, or
  /// held, as it is.
  void redistribute(int redistribution) {
    const auto at = static_cast<std::size_t>(redistribution);
    const Redistribution& change = plan_.redistributions[at];
    if (change.activation == 0 && !change.is_gradient) draw_input();
    const RedistributeOp op = change.transition.op;
    const RedistributionSizes& sizes = changes_[at];
    const std::int64_t arrived = sizes.wire_out_elems(op);
    const bool frees =
        std::find(change.freed.begin(), change.freed.end(), change.from) != change.freed.end();
    const bool is_in_place = op == RedistributeOp::AllReduce && frees;
    if (!is_in_place) {
      if (sizes.packs) allocate(MemoryKind::Activations, sizes.wire_in_elems(op));
      const bool has_slots = communicates(op) && op != RedistributeOp::AllReduce;
      allocate(MemoryKind::Activations, has_slots ? arrived : sizes.after_elems);
      if (sizes.packs) release(MemoryKind::Activations, sizes.wire_in_elems(op));
      if (frees) release(MemoryKind::Activations, sizes.before_elems);
    }
    if (sizes.unpacks) {
      allocate(MemoryKind::Activations, sizes.after_elems);
      release(MemoryKind::Activations, arrived);
    }
    if (change.is_added) release(MemoryKind::Activations, sizes.after_elems);
    for (const int value : change.freed) {
      if (value != change.from) release(MemoryKind::Activations, value_elems(value));
    }
  }

  void draw_input() {
    if (!is_drawn_) allocate(MemoryKind::Activations, value_elems(0));
    is_drawn_ = true;
  }

  /// The gradient; of a cross entropy a target and three numbers per row, and those of all ranks
  /// that share its classes.
  void take_loss() {
    allocate(MemoryKind::Activations, value_elems(plan_.loss.gradient));
    if (scenario_.training.loss == LossKind::CrossEntropy) {
      const std::int64_t rows =
          num_rows(scenario_, parts_.at(static_cast<std::size_t>(plan_.loss.output)));
      const std::int64_t num_parts = plan_.mesh().size(loss_group(plan_));
      use_scratch(MemoryKind::Activations,
                  rows + kLossStatistics * rows * (num_parts > 1 ? 1 + num_parts : 1));
    }
    free(plan_.loss.freed);
  }

  void forward(int module) {
    const auto at = static_cast<std::size_t>(module);
    if (scenario_.model.is_elementwise()) {
      allocate(MemoryKind::Activations, sample_elems(at));
      return;
    }
    if (module == 0) draw_input();
    const ModulePlan& planned = plan_.modules[at];
    allocate(MemoryKind::Activations, value_elems(planned.output));
    use_scratch(MemoryKind::Activations, attention_scratch(module, false));
    free(planned.freed_after_forward);
  }

  void backward(int module) {
    const auto at = static_cast<std::size_t>(module);
    if (scenario_.model.is_elementwise()) {
      release(MemoryKind::Activations, sample_elems(at));
      return;
    }
    const ModulePlan& planned = plan_.modules[at];
    for (const int gradient : planned.input_gradients) {
      if (gradient >= 0) allocate(MemoryKind::Activations, value_elems(gradient));
    }
    if (adds_to_weight_[at] != 0) {
      const int weight = parameters_of_module_[at].at(0);
      use_scratch(MemoryKind::UnshardedGradients,
                  num_elems(held_[static_cast<std::size_t>(weight)].whole.shape));
    }
    use_scratch(MemoryKind::Activations, attention_scratch(module, true));
    add_input_gradients(planned);
    free(planned.freed_after_backward);
  }

  [[nodiscard]] bool is_experts(int module) const {
    return !scenario_.model.is_elementwise() &&
           scenario_.model.modules[static_cast<std::size_t>(module)].type == ModuleType::Experts;
  }

  /// Of an experts module in one optimizer step.
  struct ExpertSizes {
    std::int64_t sent = 0;      ///< elements of positions that the rank sends
    std::int64_t received = 0;  ///< and gets
    std::int64_t hidden = 0;    ///< of what it gets, inside the experts
    bool exchanges = false;
    bool needs_input_gradient = false;
  };

  /// Worked out once for all steps of the module in an optimizer step.
  [[nodiscard]] const ExpertSizes& expert_sizes(const Step& step) {
    const auto [known, is_new] = expert_sizes_.try_emplace({step.step, step.module});
    if (is_new) known->second = measured_experts(step);
    return known->second;
  }

  [[nodiscard]] ExpertSizes measured_experts(const Step& step) const {
    const auto at = static_cast<std::size_t>(step.module);
    const TokenCounts counts = token_counts(plan_, step.module, step.step, coordinate_, routing_);
    const std::int64_t dim = scenario_.model.modules[at].in_features;
    const int w1 = parameters_of_module_[at].at(0);
    const std::vector<int>& gradients = plan_.modules[at].input_gradients;
    return {.sent = counts.num_sent() * dim,
            .received = counts.num_received() * dim,
            .hidden = counts.num_received() * held_[static_cast<std::size_t>(w1)].whole.shape.at(1),
            .exchanges = !exchange_dims(plan_, step.module).empty(),
            .needs_input_gradient = !gradients.empty() && gradients.at(0) >= 0};
  }

  /// What is sent goes, what arrives is sorted by expert.
  void dispatch(const Step& step) {
    constexpr MemoryKind kKind = MemoryKind::Activations;
    const ExpertSizes& sizes = expert_sizes(step);
    allocate(kKind, sizes.sent);
    allocate(kKind, sizes.received);
    // Outputs of the experts were of use until their gradients are made.
    if (step.phase == Phase::Backward) release(kKind, sizes.sent);
    release(kKind, sizes.sent);
    allocate(kKind, sizes.received);
    release(kKind, sizes.received);
  }

  void experts_forward(const Step& step) {
    constexpr MemoryKind kKind = MemoryKind::Activations;
    const ExpertSizes& sizes = expert_sizes(step);
    if (!sizes.exchanges) allocate(kKind, sizes.received);
    allocate(kKind, 2 * sizes.hidden);
    allocate(kKind, sizes.hidden);
    allocate(kKind, sizes.received);
    release(kKind, sizes.hidden);
    if (!sizes.exchanges) give_outputs(step.module);
  }

  /// From the order of experts to that of members, over to where positions came from, and there
  /// into outputs or gradients.
  void combine(const Step& step) {
    constexpr MemoryKind kKind = MemoryKind::Activations;
    const ExpertSizes& sizes = expert_sizes(step);
    allocate(kKind, sizes.received);
    release(kKind, sizes.received);
    allocate(kKind, sizes.sent);
    release(kKind, sizes.received);
    if (step.phase == Phase::Forward) {
      give_outputs(step.module);
    } else {
      give_input_gradients(step.module, sizes.sent);
    }
  }

  void experts_backward(const Step& step) {
    constexpr MemoryKind kKind = MemoryKind::Activations;
    const ExpertSizes& sizes = expert_sizes(step);
    if (!sizes.exchanges) {  // gradients of the outputs, in whose place the outputs were
      allocate(kKind, sizes.received);
      release(kKind, sizes.received);
    }
    allocate(kKind, 2 * sizes.hidden);
    if (sizes.needs_input_gradient) allocate(kKind, sizes.received);
    release(kKind, 2 * sizes.hidden);    // scratch
    release(kKind, 2 * sizes.hidden);    // kept by forward
    release(kKind, 2 * sizes.received);  // inputs, and gradients of outputs
    const bool is_sent = sizes.exchanges && sizes.needs_input_gradient;
    if (!is_sent) {
      give_input_gradients(step.module, sizes.needs_input_gradient ? sizes.received : 0);
    }
  }

  void give_outputs(int module) {
    const ModulePlan& planned = plan_.modules[static_cast<std::size_t>(module)];
    allocate(MemoryKind::Activations, value_elems(planned.output));
    free(planned.freed_after_forward);
  }

  /// Made of `scratch` elements, which are of no more use then.
  void give_input_gradients(int module, std::int64_t scratch) {
    const ModulePlan& planned = plan_.modules[static_cast<std::size_t>(module)];
    for (const int gradient : planned.input_gradients) {
      if (gradient >= 0) allocate(MemoryKind::Activations, value_elems(gradient));
    }
    release(MemoryKind::Activations, scratch);
    add_input_gradients(planned);
    free(planned.freed_after_backward);
  }

  void add_input_gradients(const ModulePlan& planned) {
    for (std::size_t i = 0; i < planned.input_gradients.size(); ++i) {
      if (planned.input_gradients[i] >= 0 && planned.added_to[i] != 0)
        release(MemoryKind::Activations, value_elems(planned.input_gradients[i]));
    }
  }

  [[nodiscard]] std::int64_t attention_scratch(int module, bool is_backward) const {
    const auto at = static_cast<std::size_t>(module);
    if (scenario_.model.modules[at].type != ModuleType::AttentionCore) return 0;
    const ActivationPart& output = parts_.at(static_cast<std::size_t>(plan_.modules[at].output));
    if (output.features.empty()) return 0;
    return attention_scratch_elems(output.positions.length(), is_backward);
  }

  void begin_gradients(int module) {
    for (const int p : parameters_of_module_.at(static_cast<std::size_t>(module))) {
      const int bucket = plan_.parameter(p).bucket;
      const auto b = static_cast<std::size_t>(bucket);
      if (has_gradients_[b]) continue;
      has_gradients_[b] = 1;
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
  const Coordinate& coordinate_;
  const Routing& routing_;
  const Scenario& scenario_;
  std::int64_t elem_bytes_;
  std::vector<std::vector<int>> parameters_of_module_;
  std::vector<char> adds_to_weight_;          ///< per module
  bool is_drawn_ = false;                     ///< the model's input is, in this step
  std::vector<ActivationPart> parts_;         ///< like Plan::values
  std::vector<std::int64_t> value_elems_;     ///< likewise
  std::vector<RedistributionSizes> changes_;  ///< per redistribution
  std::vector<HeldShard> held_;               ///< per parameter
  std::vector<std::int64_t> slot_elems_;      ///< per parameter
  std::vector<std::int64_t> row_elems_;       ///< per bucket
  std::map<std::pair<std::int64_t, int>, ExpertSizes> expert_sizes_;  ///< by step and module
  std::vector<char> has_gradients_;
  std::vector<char> is_scattered_;
  std::vector<char> is_sealed_;
  PlannedMemory memory_;
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
