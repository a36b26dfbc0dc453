#include "trace/activation_memory.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "plan/bypassed_parts.h"
#include "plan/loss_collective.h"
#include "plan/recomputation.h"
#include "scenario/module_layouts.h"
#include "scenario/precision.h"

namespace hpsim {
namespace {

/// The product. \throws Error (Usage) if it is more than 2^62, which no machine has
std::int64_t bytes_of(std::int64_t elems, std::int64_t width) {
  if (elems > (std::int64_t{1} << 62) / width) {
    throw Error(ErrorKind::Usage,
                fmt::format("a rank would need {:.3g} bytes for one activation",
                            static_cast<double>(elems) * static_cast<double>(width)),
                "use a smaller model, fewer samples, or more micro-batches");
  }
  return elems * width;
}

}  // namespace

ActivationMemory::ActivationMemory(const Plan& plan, const Coordinate& coordinate,
                                   const Routing& routing, const std::vector<HeldShard>& held,
                                   Ledger& ledger)
    : plan_(plan),
      coordinate_(coordinate),
      routing_(routing),
      held_(held),
      ledger_(ledger),
      scenario_(plan.scenario),
      parameters_of_module_(parameters_of_modules(plan.scenario)) {
  for (std::size_t i = 0; i < plan.values.size(); ++i) {
    const ActivationValue& value = plan.values[i];
    parts_.push_back(activation_part(scenario_, value.layout, value.features, coordinate));
    value_bytes_.push_back(
        bytes_of(num_elems(scenario_, parts_.back()), width_of(static_cast<int>(i))));
  }
  for (const Redistribution& redistribution : plan.redistributions)
    changes_.push_back(redistribution_sizes(plan, redistribution, coordinate));
}

void ActivationMemory::take(const Step& step) {
  switch (step.kind) {
    case StepKind::Redistribute:
      return redistribute(step);
    case StepKind::Dispatch:
      return dispatch(step);
    case StepKind::Combine:
      return combine(step);
    case StepKind::Forward:
      return is_experts(step.module) ? experts_forward(step) : forward(step);
    case StepKind::Loss:
      if (!scenario_.model.is_elementwise()) loss();
      return;
    case StepKind::Backward:
      return is_experts(step.module) ? experts_backward(step) : backward(step);
    default:
      return;
  }
}

/// Allocated and released at once: it shows in the peak.
void ActivationMemory::use_scratch(std::int64_t bytes) {
  allocate(bytes);
  release(bytes);
}

/// Inputs and targets of an elementwise parameter: its part, of all samples that the rank uses.
std::int64_t ActivationMemory::sample_bytes(int parameter) const {
  const std::int64_t num_parts = scenario_.mesh.size(shared_data_dims(scenario_, parameter));
  const std::int64_t elems = scenario_.micro_batch_size() * num_parts *
                             num_elems(held_[static_cast<std::size_t>(parameter)].whole.shape);
  return bytes_of(elems, size_bytes(elementwise_dtypes(scenario_, parameter).input) +
                             size_bytes(scenario_.numerics.dtype));
}

void ActivationMemory::free(const std::vector<int>& values) {
  for (const int value : values)
    release(value_bytes(value));
}

/// Around its collective, what is sent and what arrives lies in slots, unless it is sent, or held,
/// as it is.
void ActivationMemory::redistribute(const Step& step) {
  const auto at = static_cast<std::size_t>(step.redistribution);
  const Redistribution& change = plan_.redistributions[at];
  if (change.activation == 0 && !change.is_gradient) draw_input(step);
  const RedistributeOp op = change.transition.op;
  const RedistributionSizes& sizes = changes_[at];
  const std::int64_t width = width_of(change.from);
  const std::int64_t after = sizes.after_elems * width_of(change.to);
  const std::int64_t arrived = sizes.wire_out_elems(op) * width;
  const std::vector<int>& freed = freed_after(plan_, step);
  const bool frees = std::find(freed.begin(), freed.end(), change.from) != freed.end();
  const bool is_in_place = op == RedistributeOp::AllReduce && frees;
  if (!is_in_place) {
    if (sizes.packs) allocate(sizes.wire_in_elems(op) * width);
    const bool has_slots = communicates(op) && op != RedistributeOp::AllReduce;
    allocate(has_slots ? arrived : after);
    if (sizes.packs) release(sizes.wire_in_elems(op) * width);
    if (frees) release(sizes.before_elems * width);
  }
  if (sizes.unpacks) {
    allocate(after);
    release(arrived);
  }
  if (change.is_added) release(after);
  for (const int value : freed) {
    if (value != change.from) release(value_bytes(value));
  }
}

void ActivationMemory::draw_input(const Step& step) {
  const std::int64_t pass = pass_of(scenario_, step);
  if (drawn_pass_ == pass) return;
  drawn_pass_ = pass;
  allocate(value_bytes(0));
}

/// The gradient; of a cross entropy a target and three numbers per row, and those of all ranks that
/// share its classes.
void ActivationMemory::loss() {
  allocate(value_bytes(plan_.loss.gradient));
  if (scenario_.training.loss == LossKind::CrossEntropy) {
    const std::int64_t rows =
        num_rows(scenario_, parts_.at(static_cast<std::size_t>(plan_.loss.output)));
    const std::int64_t num_parts = plan_.mesh().size(loss_group(plan_));
    use_scratch((rows + kLossStatistics * rows * (num_parts > 1 ? 1 + num_parts : 1)) *
                size_bytes(loss_dtype(scenario_)));
  }
  free(plan_.loss.freed);
}

void ActivationMemory::forward(const Step& step) {
  const int module = step.module;
  if (scenario_.model.is_elementwise()) return allocate(sample_bytes(module));
  if (module == 0) draw_input(step);
  keep_inputs(step, true);
  const ModulePlan& planned = plan_.modules[static_cast<std::size_t>(module)];
  allocate(value_bytes(planned.output));
  use_scratch(attention_scratch(module, false));
  keep_inputs(step, false);
  free(freed_after(plan_, step));
}

void ActivationMemory::backward(const Step& step) {
  const int module = step.module;
  if (scenario_.model.is_elementwise()) return release(sample_bytes(module));
  keep_gradients(step, true);
  const ModulePlan& planned = plan_.modules[static_cast<std::size_t>(module)];
  for (const int gradient : planned.input_gradients) {
    if (gradient >= 0) allocate(value_bytes(gradient));
  }
  use_scratch(attention_scratch(module, true));
  add_input_gradients(planned);
  keep_gradients(step, false);
  free(freed_after(plan_, step));
}

std::int64_t ActivationMemory::attention_scratch(int module, bool is_backward) const {
  const auto at = static_cast<std::size_t>(module);
  if (scenario_.model.modules[at].type != ModuleType::AttentionCore) return 0;
  const int value = plan_.modules[at].output;
  const ActivationPart& output = parts_.at(static_cast<std::size_t>(value));
  if (output.features.empty()) return 0;
  // Scores are numbers of at least float32.
  const DType dtype =
      promoted(plan_.values.at(static_cast<std::size_t>(value)).dtype, DType::Float32);
  return attention_scratch_elems(output.positions.length(), is_backward) * size_bytes(dtype);
}

void ActivationMemory::keep_inputs(const Step& step, bool begins) {
  for (const BypassedPart& part : bypassed_parts(plan_, step)) {
    if (!part.copies() || step.module != (begins ? part.first : part.last)) continue;
    const std::int64_t bytes = value_bytes(part.input);
    begins ? allocate(bytes) : release(bytes);
  }
}

void ActivationMemory::keep_gradients(const Step& step, bool begins) {
  for (const BypassedPart& part : bypassed_parts(plan_, step)) {
    if (!part.copies() || part.input_gradient < 0) continue;
    if (step.module != (begins ? part.last : part.first)) continue;
    const std::int64_t bytes = value_bytes(part.output_gradient);
    begins ? allocate(bytes) : release(bytes);
  }
}

bool ActivationMemory::is_experts(int module) const {
  return !scenario_.model.is_elementwise() &&
         scenario_.model.modules[static_cast<std::size_t>(module)].type == ModuleType::Experts;
}

/// Worked out once for all steps of the module in a pass.
const ActivationMemory::ExpertSizes& ActivationMemory::expert_sizes(const Step& step) {
  const auto [known, is_new] = expert_sizes_.try_emplace({pass_of(scenario_, step), step.module});
  if (is_new) known->second = measured_experts(step);
  return known->second;
}

ActivationMemory::ExpertSizes ActivationMemory::measured_experts(const Step& step) const {
  const auto at = static_cast<std::size_t>(step.module);
  const ModulePlan& planned = plan_.modules[at];
  const TokenCounts counts =
      token_counts(plan_, step.module, pass_of(scenario_, step), coordinate_, routing_);
  const std::int64_t width = width_of(planned.output);
  const std::int64_t dim = scenario_.model.modules[at].in_features * width;
  const int w1 = parameters_of_module_[at].at(0);
  const std::int64_t hidden = held_[static_cast<std::size_t>(w1)].whole.shape.at(1) * width;
  const std::vector<int>& gradients = planned.input_gradients;
  return {.sent = counts.num_sent() * dim,
          .received = counts.num_received() * dim,
          .hidden = counts.num_received() * hidden,
          .exchanges = !exchange_dims(plan_, step.module).empty(),
          .needs_input_gradient = !gradients.empty() && gradients.at(0) >= 0};
}

/// What is sent goes, what arrives is sorted by expert.
void ActivationMemory::dispatch(const Step& step) {
  const ExpertSizes& sizes = expert_sizes(step);
  if (!runs_forward(step)) keep_gradients(step, true);
  allocate(sizes.sent);
  allocate(sizes.received);
  // Outputs of the experts were of use until their gradients are made.
  if (!runs_forward(step)) release(sizes.sent);
  release(sizes.sent);
  allocate(sizes.received);
  release(sizes.received);
}

void ActivationMemory::experts_forward(const Step& step) {
  const ExpertSizes& sizes = expert_sizes(step);
  keep_inputs(step, true);
  if (!sizes.exchanges) allocate(sizes.received);
  allocate(2 * sizes.hidden);
  allocate(sizes.hidden);
  allocate(sizes.received);
  release(sizes.hidden);
  if (!sizes.exchanges) give_outputs(step);
}

/// From the order of experts to that of members, over to where positions came from, and there
/// into outputs or gradients.
void ActivationMemory::combine(const Step& step) {
  const ExpertSizes& sizes = expert_sizes(step);
  allocate(sizes.received);
  release(sizes.received);
  allocate(sizes.sent);
  release(sizes.received);
  if (runs_forward(step)) {
    give_outputs(step);
  } else {
    give_input_gradients(step, sizes.sent);
  }
}

void ActivationMemory::experts_backward(const Step& step) {
  const ExpertSizes& sizes = expert_sizes(step);
  if (!sizes.exchanges) {  // gradients of the outputs, in whose place the outputs were
    keep_gradients(step, true);
    allocate(sizes.received);
    release(sizes.received);
  }
  allocate(2 * sizes.hidden);
  if (sizes.needs_input_gradient) allocate(sizes.received);
  release(2 * sizes.hidden);    // scratch
  release(2 * sizes.hidden);    // kept by forward
  release(2 * sizes.received);  // inputs, and gradients of outputs
  const bool is_sent = sizes.exchanges && sizes.needs_input_gradient;
  if (!is_sent) {
    give_input_gradients(step, sizes.needs_input_gradient ? sizes.received : 0);
  }
}

void ActivationMemory::give_outputs(const Step& step) {
  const ModulePlan& planned = plan_.modules[static_cast<std::size_t>(step.module)];
  allocate(value_bytes(planned.output));
  if (!keeps_for_backward(plan_, step)) {
    const ExpertSizes& sizes = expert_sizes(step);
    release(sizes.exchanges ? sizes.sent : sizes.received);
    release(sizes.received + 2 * sizes.hidden);
  }
  keep_inputs(step, false);
  free(freed_after(plan_, step));
}

/// Made of `scratch` elements, which are of no more use then.
void ActivationMemory::give_input_gradients(const Step& step, std::int64_t scratch) {
  const ModulePlan& planned = plan_.modules[static_cast<std::size_t>(step.module)];
  for (const int gradient : planned.input_gradients) {
    if (gradient >= 0) allocate(value_bytes(gradient));
  }
  release(scratch);
  add_input_gradients(planned);
  keep_gradients(step, false);
  free(freed_after(plan_, step));
}

void ActivationMemory::add_input_gradients(const ModulePlan& planned) {
  for (std::size_t i = 0; i < planned.input_gradients.size(); ++i) {
    if (planned.input_gradients[i] >= 0 && planned.added_to[i] != 0)
      release(value_bytes(planned.input_gradients[i]));
  }
}

}  // namespace hpsim
