#include "plan/activation_replay.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace hpsim {
namespace {

bool is_partial(const Placement& placement) {
  return std::holds_alternative<Partial>(placement);
}

/// Whether two placements cut different tensor dims in the same way.
bool cuts_alike(const Placement& a, const Placement& b) {
  return is_cut(a) && is_cut(b) && split_factor_of(a) == split_factor_of(b);
}

}  // namespace

ActivationReplay::ActivationReplay(const Plan& plan)
    : plan_(plan), weights_(first_parameters(plan.scenario)), now_(input_layout(plan.scenario)) {
  const std::size_t num_modules = plan.scenario.model.modules.size();
  inputs_.resize(num_modules);
  outputs_.resize(num_modules);
  batch_dims_.resize(num_modules);
}

std::optional<ActivationReplay::Fault> ActivationReplay::take(const Step& step) {
  if (step.kind == StepKind::Redistribute) return redistribute(step);
  if (step.kind == StepKind::Forward) return forward(step.module);
  if (step.kind == StepKind::Loss) return loss();
  if (step.kind == StepKind::Backward) return backward(step.module);
  if (step.kind == StepKind::Optimizer) now_ = input_layout(plan_.scenario);
  return std::nullopt;
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
  const Redistribution& redistribution =
      plan_.redistributions.at(static_cast<std::size_t>(step.redistribution));
  const Transition& transition = redistribution.transition;
  const std::string name = activation_text(plan_, redistribution);
  const std::vector<Placement> got = now_;
  now_ = transition.after;
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
  if (got == transition.before) return std::nullopt;
  const bool adds =
      transition.op == RedistributeOp::AllReduce || transition.op == RedistributeOp::ReduceScatter;
  return Fault{adds ? FindingCode::DoubleReduced : FindingCode::CommOrder,
               fmt::format("{} of the {}: the plan says it is {}, it is {}", name_of(transition.op),
                           name, to_string(transition.before), to_string(got))};
}

std::optional<ActivationReplay::Fault> ActivationReplay::forward(int module) {
  const auto at_module = static_cast<std::size_t>(module);
  const bool has_weight = weights_[at_module] >= 0;
  std::optional<Fault> fault;
  std::vector<Placement> output = now_;
  batch_dims_[at_module].clear();
  for (int dim = 0; dim < plan_.mesh().num_dims(); ++dim) {
    if (plan_.mesh().size(dim) == 1) continue;
    const auto at = static_cast<std::size_t>(dim);
    const Placement& now = now_[at];
    const Placement* cut = weight_cut(module, dim);
    std::string wanted;
    if (cut != nullptr && cuts(*cut, 0)) {
      if (now != Placement{Replicate{}}) wanted = "Replicate";
      // Each rank computes the features of its rows.
      if (const auto* strided = std::get_if<StridedShard>(cut)) {
        output[at] = StridedShard{1, strided->split_factor, false};
      } else {
        output[at] = Shard{1};
      }
    } else if (cut != nullptr) {
      if (!cuts(now, 1) || !cuts_alike(now, *cut)) wanted = to_string(*cut);
      output[at] = Partial{};
    } else if (has_weight && !cuts(now, 0) && now != Placement{Replicate{}}) {
      wanted = "Replicate or Shard(0)";
    } else if (is_partial(now)) {
      wanted = "no terms of a sum";
    }
    if (cuts(now, 0)) batch_dims_[at_module].push_back(dim);
    if (!fault && !wanted.empty()) fault = wrong_layout("its input", dim, now, wanted);
  }
  inputs_[at_module] = now_;
  outputs_[at_module] = output;
  now_ = std::move(output);
  return fault;
}

std::optional<ActivationReplay::Fault> ActivationReplay::loss() {
  // The gradient of the loss is placed as the loss takes the output.
  const std::vector<Placement> got = std::exchange(now_, plan_.output);
  for (int dim = 0; dim < plan_.mesh().num_dims(); ++dim) {
    const auto at = static_cast<std::size_t>(dim);
    if (is_partial(got[at]))
      return wrong_layout("the model's output", dim, got[at], "no terms of a sum");
    if (got[at] == now_.at(at)) continue;
    return wrong_layout("the model's output", dim, got[at], to_string(now_[at]));
  }
  return std::nullopt;
}

std::optional<ActivationReplay::Fault> ActivationReplay::backward(int module) {
  const auto at_module = static_cast<std::size_t>(module);
  const std::vector<Placement>& output = outputs_[at_module];
  const std::vector<Placement>& input = inputs_[at_module];
  std::optional<Fault> fault;
  for (int dim = 0; dim < plan_.mesh().num_dims(); ++dim) {
    if (plan_.mesh().size(dim) == 1) continue;
    const auto at = static_cast<std::size_t>(dim);
    // All terms of a sum have the gradient of the sum.
    const Placement wanted = is_partial(output.at(at)) ? Placement{Replicate{}} : output[at];
    if (!fault && now_[at] != wanted) {
      fault = wrong_layout("the gradient of its output", dim, now_[at], to_string(wanted));
    }
    const Placement* cut = weight_cut(module, dim);
    now_[at] = cut != nullptr && cuts(*cut, 0) ? Placement{Partial{}} : input.at(at);
  }
  return fault;
}

}  // namespace hpsim
