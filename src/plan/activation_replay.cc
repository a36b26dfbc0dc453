#include "plan/activation_replay.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "plan/recomputation.h"

namespace hpsim {
namespace {

bool is_partial(const Placement& placement) {
  return std::holds_alternative<Partial>(placement);
}

bool is_whole(const Placement& placement) {
  return std::holds_alternative<Replicate>(placement);
}

bool is_norm(const ModuleSpec& module) {
  return module.type == ModuleType::LayerNorm || module.type == ModuleType::RmsNorm;
}

}  // namespace

ActivationReplay::ActivationReplay(const Plan& plan)
    : plan_(plan), features_(feature_dim(plan.scenario.model)) {
  const ModelSpec& model = plan.scenario.model;
  const std::size_t num_modules = model.modules.size();
  for (const std::vector<int>& parameters : parameters_of_modules(plan.scenario))
    weights_.push_back(parameters.empty() ? -1 : parameters[0]);
  readers_.resize(num_modules + 1);
  for (int m = 0; m < static_cast<int>(num_modules); ++m) {
    for (const int input : inputs_of(model, m))
      readers_.at(static_cast<std::size_t>(input)).push_back(m);
  }
  readers_.back().push_back(static_cast<int>(num_modules));
  sources_.assign(plan.values.size(), -1);
  for (const Redistribution& change : plan.redistributions) {
    if (!change.is_added) sources_.at(static_cast<std::size_t>(change.to)) = change.from;
  }
  inputs_.resize(num_modules);
  outputs_.resize(num_modules);
  batch_dims_.resize(num_modules);
  begin_pass();
}

void ActivationReplay::begin_pass() {
  states_.clear();
  made_.assign(plan_.values.size(), 0);
  // The model's input is there from the start, in whichever value is first of it.
  for (std::size_t value = 0; value < plan_.values.size(); ++value) {
    if (plan_.values[value].activation != 0 || plan_.values[value].is_gradient) continue;
    make(static_cast<int>(value), {input_layout(plan_.scenario), {}});
    return;
  }
}

std::optional<ActivationReplay::Fault> ActivationReplay::take(const Step& step) {
  std::optional<Fault> fault;
  const std::pair<std::int64_t, std::int64_t> pass = {step.step, step.micro_batch};
  if (step.phase != Phase::Optimizer && std::exchange(pass_, pass) != pass) begin_pass();
  if (step.kind == StepKind::Redistribute) {
    fault = redistribute(step);
  } else if (step.kind == StepKind::Forward) {
    fault = forward(step);
  } else if (step.kind == StepKind::Loss) {
    fault = loss();
  } else if (step.kind == StepKind::Backward) {
    fault = backward(step.module);
  } else {
    return std::nullopt;
  }
  forget(freed_after(plan_, step));
  return fault;
}

void ActivationReplay::make(int value, State state) {
  made_.at(static_cast<std::size_t>(value)) = 1;
  states_[value] = std::move(state);
}

void ActivationReplay::forget(const std::vector<int>& values) {
  for (const int value : values)
    states_.erase(value);
}

int ActivationReplay::held_for(int value) const {
  while (value >= 0 && !states_.contains(value))
    value = sources_.at(static_cast<std::size_t>(value));
  return value;
}

const ActivationReplay::State* ActivationReplay::find(int value) const {
  const int held = held_for(value);
  return held < 0 ? nullptr : &states_.at(held);
}

std::optional<ActivationReplay::Fault> ActivationReplay::missing(int value, int activation,
                                                                 bool is_gradient,
                                                                 const std::string& who) const {
  const int held = held_for(value);
  if (held < 0) return Fault{FindingCode::CommOrder, fmt::format("{} is not there", who)};
  const ActivationValue& known = plan_.values.at(static_cast<std::size_t>(value));
  const DType dtype = plan_.values.at(static_cast<std::size_t>(held)).dtype;
  if (dtype != known.dtype) {
    return Fault{FindingCode::CommDtype, fmt::format("{} is {}, it was not cast to {}", who,
                                                     name_of(dtype), name_of(known.dtype))};
  }
  if (known.activation == activation && known.is_gradient == is_gradient) return std::nullopt;
  return Fault{FindingCode::CommOrder, fmt::format("{} is {}activation {}, expected {}", who,
                                                   known.is_gradient ? "the gradient of " : "",
                                                   known.activation, activation)};
}

const Placement* ActivationReplay::weight_cut(int module, int mesh_dim) const {
  const int weight = weights_.at(static_cast<std::size_t>(module));
  if (weight < 0 || plan_.mesh().size(mesh_dim) == 1) return nullptr;
  const auto& placements = plan_.parameter(weight).unsharded;
  const Placement& placement = placements.at(static_cast<std::size_t>(mesh_dim));
  return is_cut(placement) ? &placement : nullptr;
}

ActivationReplay::Fault ActivationReplay::wrong_layout(const std::string& who, int mesh_dim,
                                                       const Placement& got,
                                                       const std::string& wanted) const {
  return {is_partial(got) ? FindingCode::UnreducedPartial : FindingCode::CommOrder,
          fmt::format("{} is {} along {}, expected {}", who, to_string(got),
                      plan_.mesh().name(mesh_dim), wanted)};
}

std::optional<ActivationReplay::Fault> ActivationReplay::redistribute(const Step& step) {
  const Redistribution& change =
      plan_.redistributions.at(static_cast<std::size_t>(step.redistribution));
  const Transition& transition = change.transition;
  const std::string name = activation_text(plan_, change);
  std::optional<Fault> fault = missing(change.from, change.activation, change.is_gradient, name);
  const State* const source = find(change.from);
  const State from = source == nullptr ? State{transition.before, {}} : *source;
  State& to = states_[change.to];
  made_.at(static_cast<std::size_t>(change.to)) = 1;
  const bool is_there = !to.layout.empty();
  for (const auto& [reader, count] : from.readers)
    to.readers[reader] += count;
  const Layout before_add = to.layout;
  to.layout = transition.after;
  const bool adds_terms =
      transition.op == RedistributeOp::AllReduce || transition.op == RedistributeOp::ReduceScatter;
  const bool is_again = is_there && adds_terms && !change.is_added;
  if (fault && !is_again) return fault;
  if (change.is_added != is_there || (is_there && before_add != transition.after)) {
    return Fault{is_again ? FindingCode::DoubleReduced : FindingCode::CommOrder,
                 fmt::format("{} of the {}: there is {} to add it to", name_of(transition.op), name,
                             is_there ? to_string(before_add) : "nothing")};
  }
  std::vector<Placement> expected_after = transition.before;
  for (const int dim : transition.mesh_dims) {
    const auto at = static_cast<std::size_t>(dim);
    expected_after[at] = transition.after[at];
    if (redistribute_op(transition.before[at], transition.after[at]) == transition.op) continue;
    return Fault{FindingCode::CommShape,
                 fmt::format("{} of the {} along {} does not bring {} to {}",
                             name_of(transition.op), name, plan_.mesh().name(dim),
                             to_string(transition.before[at]), to_string(transition.after[at]))};
  }
  if (expected_after != transition.after) {
    return Fault{FindingCode::CommShape,
                 fmt::format("{} of the {} over ({}) changes {} to {}", name_of(transition.op),
                             name, plan_.mesh().names(transition.mesh_dims),
                             to_string(transition.before), to_string(transition.after))};
  }
  if (from.layout == transition.before) return std::nullopt;
  const bool leaves_terms =
      std::any_of(from.layout.begin(), from.layout.end(), is_partial) &&
      std::none_of(transition.before.begin(), transition.before.end(), is_partial);
  return Fault{leaves_terms ? FindingCode::UnreducedPartial
               : adds_terms ? FindingCode::DoubleReduced
                            : FindingCode::CommOrder,
               fmt::format("{} of the {}: the plan says it is {}, it is {}", name_of(transition.op),
                           name, to_string(transition.before), to_string(from.layout))};
}

std::string ActivationReplay::wanted_along(int module, int mesh_dim, const Layout& input) const {
  const ModuleSpec& spec = plan_.scenario.model.modules[static_cast<std::size_t>(module)];
  const Placement& now = input[static_cast<std::size_t>(mesh_dim)];
  const Placement* cut = weight_cut(module, mesh_dim);
  if (is_partial(now)) return cut != nullptr && cuts(*cut, 0) ? "Replicate" : "no terms of a sum";
  if (spec.type == ModuleType::Linear && cut != nullptr && cuts(*cut, 1)) {
    const bool fits = cuts(now, features_) && split_factor_of(now) == split_factor_of(*cut);
    return fits ? "" : fmt::format("as the columns of its weight, {}", to_string(*cut));
  }
  const bool exchanges = spec.type == ModuleType::Experts && cut != nullptr && cuts(*cut, 0);
  if (exchanges && cuts(now, kSampleDim)) return "";
  if (cut != nullptr && !is_norm(spec)) return is_whole(now) ? "" : "Replicate";
  const bool takes_features = spec.type == ModuleType::Linear ||
                              spec.type == ModuleType::Embedding ||
                              spec.type == ModuleType::Experts;
  if ((takes_features || is_norm(spec)) && cuts(now, features_)) return "all features";
  const bool takes_sequences = spec.type == ModuleType::AttentionCore;
  if (takes_sequences && features_ > kSequenceDim && cuts(now, kSequenceDim))
    return "whole sequences";
  return "";
}

Placement ActivationReplay::output_along(int module, int mesh_dim, const Layout& input) const {
  const Placement* cut = weight_cut(module, mesh_dim);
  const Placement& now = input[static_cast<std::size_t>(mesh_dim)];
  if (cut == nullptr) return now;
  const ModuleType type = plan_.scenario.model.modules[static_cast<std::size_t>(module)].type;
  // Outputs of experts come back to where their positions are; else each rank has terms of them.
  if (type == ModuleType::Experts) return cuts(now, kSampleDim) ? now : Placement{Partial{}};
  const bool is_embedding = type == ModuleType::Embedding;
  // Each rank computes the features of its rows; of an embedding those of its columns.
  if (!cuts(*cut, is_embedding ? 1 : 0)) return Partial{};
  if (const auto* strided = std::get_if<StridedShard>(cut))
    return StridedShard{features_, strided->split_factor, false};
  return Shard{features_};
}

std::optional<ActivationReplay::Fault> ActivationReplay::forward(const Step& step) {
  const int module = step.module;
  const auto at_module = static_cast<std::size_t>(module);
  const ModulePlan& planned = plan_.modules[at_module];
  const std::vector<int> activations = inputs_of(plan_.scenario.model, module);
  std::optional<Fault> fault;
  std::vector<Layout> inputs;
  for (std::size_t i = 0; i < activations.size(); ++i) {
    const int value = planned.inputs.at(i);
    if (!fault) fault = missing(value, activations[i], false, "its input");
    if (!fault) fault = wrong_dtype(module, value);
    const State* const input = find(value);
    inputs.push_back(input == nullptr ? planned.layout.inputs.at(i) : input->layout);
  }
  Layout output = inputs[0];
  MeshDims batch_dims;
  for (int dim = 0; dim < plan_.mesh().num_dims(); ++dim) {
    if (plan_.mesh().size(dim) == 1) continue;
    const auto at = static_cast<std::size_t>(dim);
    for (const Layout& input : inputs) {
      std::string wanted = wanted_along(module, dim, input);
      if (wanted.empty() && input[at] != inputs[0][at]) wanted = "as its first";
      if (!fault && !wanted.empty()) fault = wrong_layout("its input", dim, input[at], wanted);
    }
    output[at] = output_along(module, dim, inputs[0]);
    const Placement& first = inputs[0][at];
    if (is_cut(first) && !cuts(first, features_)) batch_dims.push_back(dim);
  }
  if (!fault) fault = wrong_output_dtype(module);
  if (step.is_recomputed) {
    if (!fault) fault = wrong_recomputation(module, output);
  } else {
    inputs_[at_module] = std::move(inputs);
    outputs_[at_module] = output;
    batch_dims_[at_module] = std::move(batch_dims);
  }
  make(planned.output, {std::move(output), {}});
  return fault;
}

std::optional<ActivationReplay::Fault> ActivationReplay::wrong_recomputation(
    int module, const Layout& output) const {
  const auto at = static_cast<std::size_t>(module);
  if (states_.contains(plan_.modules[at].output)) {
    return Fault{FindingCode::CommCount, "its output is there still, and is computed again"};
  }
  const Layout& before = outputs_[at];
  for (int dim = 0; dim < static_cast<int>(before.size()); ++dim) {
    const auto at_dim = static_cast<std::size_t>(dim);
    if (plan_.mesh().size(dim) == 1 || output[at_dim] == before[at_dim]) continue;
    return wrong_layout("its output, computed again,", dim, output[at_dim],
                        to_string(before[at_dim]));
  }
  return std::nullopt;
}

std::optional<ActivationReplay::Fault> ActivationReplay::gone_inputs(int module) const {
  const auto at = static_cast<std::size_t>(module);
  // A sum's backward reads none.
  if (plan_.scenario.model.modules[at].type == ModuleType::Add) return std::nullopt;
  for (const int value : plan_.modules[at].inputs) {
    // That it was never made its forward says.
    if (states_.contains(value) || made_.at(static_cast<std::size_t>(value)) == 0) continue;
    return Fault{FindingCode::CommOrder,
                 recomputed_part_of(plan_.scenario, module) < 0
                     ? "what its forward took is free already"
                     : "what its forward took is free already, or not computed again yet"};
  }
  return std::nullopt;
}

/// A weight multiplies numbers of its own dtype; tokens have none.
std::optional<ActivationReplay::Fault> ActivationReplay::wrong_dtype(int module, int value) const {
  const auto at = static_cast<std::size_t>(module);
  const int weight = weights_.at(at);
  if (weight < 0 || plan_.scenario.model.modules[at].type == ModuleType::Embedding)
    return std::nullopt;
  const DType wanted = plan_.parameter(weight).compute_dtype;
  const DType got = plan_.values.at(static_cast<std::size_t>(value)).dtype;
  if (got == wanted) return std::nullopt;
  return Fault{FindingCode::CommDtype,
               fmt::format("its input is {}, its weight {}", name_of(got), name_of(wanted))};
}

std::optional<ActivationReplay::Fault> ActivationReplay::wrong_output_dtype(int module) const {
  const auto at = static_cast<std::size_t>(module);
  const auto dtype_of = [&](int value) {
    return plan_.values.at(static_cast<std::size_t>(value)).dtype;
  };
  const ModulePlan& planned = plan_.modules[at];
  const int weight = weights_.at(at);
  const DType wanted =
      weight < 0 ? dtype_of(planned.inputs.at(0)) : plan_.parameter(weight).compute_dtype;
  const DType got = dtype_of(planned.output);
  if (got == wanted) return std::nullopt;
  return Fault{FindingCode::CommDtype,
               fmt::format("its output is {}, it computes in {}", name_of(got), name_of(wanted))};
}

std::optional<ActivationReplay::Fault> ActivationReplay::wrong_gradient_dtype(
    int gradient, int value, const std::string& who) const {
  const DType got = plan_.values.at(static_cast<std::size_t>(gradient)).dtype;
  const DType wanted = plan_.values.at(static_cast<std::size_t>(value)).dtype;
  if (got == wanted) return std::nullopt;
  return Fault{FindingCode::CommDtype, fmt::format("the gradient of {} is {}, {} is {}", who,
                                                   name_of(got), who, name_of(wanted))};
}

std::optional<ActivationReplay::Fault> ActivationReplay::loss() {
  const int last = static_cast<int>(plan_.modules.size());
  std::optional<Fault> fault = missing(plan_.loss.output, last, false, "the model's output");
  if (!fault) {
    fault = wrong_gradient_dtype(plan_.loss.gradient, plan_.loss.output, "the model's output");
  }
  const State* const output = find(plan_.loss.output);
  const Layout now = output == nullptr ? plan_.output : output->layout;
  for (int dim = 0; !fault && dim < plan_.mesh().num_dims(); ++dim) {
    const auto at = static_cast<std::size_t>(dim);
    if (is_partial(now[at])) {
      fault = wrong_layout("the model's output", dim, now[at], "no terms of a sum");
    } else if (now[at] != plan_.output.at(at)) {
      fault = wrong_layout("the model's output", dim, now[at], to_string(plan_.output[at]));
    }
  }
  make(plan_.loss.gradient, {gradient_placements(now), {{last, 1}}});
  return fault;
}

std::optional<ActivationReplay::Fault> ActivationReplay::incomplete(int value,
                                                                    int activation) const {
  std::map<int, int> wanted;
  for (const int reader : readers_[static_cast<std::size_t>(activation)])
    ++wanted[reader];
  const State* const found = find(value);
  const std::map<int, int> got = found == nullptr ? std::map<int, int>{} : found->readers;
  const ModelSpec& model = plan_.scenario.model;
  for (const auto& [reader, count] : wanted) {
    const auto part = got.find(reader);
    const int times = part == got.end() ? 0 : part->second;
    if (times == count) continue;
    const std::string who = reader == static_cast<int>(plan_.modules.size())
                                ? "the loss"
                                : fmt::format("\"{}\"", module_name(model, reader));
    return Fault{times < count ? FindingCode::UnreducedPartial : FindingCode::DoubleReduced,
                 fmt::format("the gradient of its output has the part of {} {} times, expected {}",
                             who, times, count)};
  }
  return std::nullopt;
}

std::optional<ActivationReplay::Fault> ActivationReplay::backward(int module) {
  const auto at_module = static_cast<std::size_t>(module);
  const ModulePlan& planned = plan_.modules[at_module];
  std::optional<Fault> fault =
      missing(planned.output_gradient, module + 1, true, "the gradient of its output");
  if (!fault) fault = wrong_gradient_dtype(planned.output_gradient, planned.output, "its output");
  if (!fault) fault = incomplete(planned.output_gradient, module + 1);
  if (!fault) fault = gone_inputs(module);
  if (outputs_[at_module].empty()) return Fault{FindingCode::CommOrder, "its forward has not come"};
  const Layout& output = outputs_[at_module];
  const State* const arrived = find(planned.output_gradient);
  const Layout gradient = arrived == nullptr ? gradient_placements(output) : arrived->layout;
  for (int dim = 0; !fault && dim < plan_.mesh().num_dims(); ++dim) {
    if (plan_.mesh().size(dim) == 1) continue;
    const auto at = static_cast<std::size_t>(dim);
    // All terms of a sum have the gradient of the sum.
    const Placement wanted = is_partial(output.at(at)) ? Placement{Replicate{}} : output[at];
    if (gradient[at] == wanted) continue;
    fault = wrong_layout("the gradient of its output", dim, gradient[at], to_string(wanted));
  }
  const ModuleType type = plan_.scenario.model.modules[at_module].type;
  for (std::size_t i = 0; i < planned.input_gradients.size(); ++i) {
    const int value = planned.input_gradients[i];
    if (value < 0) continue;
    if (!fault) fault = wrong_gradient_dtype(value, planned.inputs.at(i), "its input");
    Layout left = inputs_[at_module][i];
    for (int dim = 0; dim < plan_.mesh().num_dims(); ++dim) {
      const Placement* cut = weight_cut(module, dim);
      if (cut == nullptr) continue;
      Placement& along = left[static_cast<std::size_t>(dim)];
      const bool has_terms = type == ModuleType::Linear    ? cuts(*cut, 0)
                             : type == ModuleType::Experts ? !cuts(along, kSampleDim)
                                                           : false;
      if (has_terms) along = Partial{};
    }
    State& now = states_[value];
    const bool is_there = !now.layout.empty();
    if (!fault && (is_there != (planned.added_to.at(i) != 0) || (is_there && now.layout != left))) {
      fault = Fault{FindingCode::CommOrder,
                    fmt::format("the gradient of its input is {}, there is {} to add it to",
                                to_string(left), is_there ? to_string(now.layout) : "nothing")};
    }
    now.layout = std::move(left);
    ++now.readers[module];
  }
  return fault;
}

}  // namespace hpsim
