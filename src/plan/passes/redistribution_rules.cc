#include "plan/passes/redistribution_rules.h"

#include "scenario/module_layouts.h"

namespace hpsim {
namespace {

constexpr std::string_view kCastActivationRule =
    "mp_policy: units cast what they take to param_dtype, and what they give to output_dtype";
constexpr std::string_view kWholeRule =
    "a weight that is whole, or cut by rows (colwise), takes every input feature";
constexpr std::string_view kSumRule = "a linear needs the sum: its input comes as terms of one";
constexpr std::string_view kInnerCutRule =
    "a cut inside another one is undone first, and made anew where it is wanted";
constexpr std::string_view kColumnsRule =
    "a weight cut by columns (rowwise) takes the input features of its columns";
constexpr std::string_view kSamplesRule =
    "along a data dim that cuts its weight a module takes the samples of all ranks";
constexpr std::string_view kTermsRule =
    "an activation function needs the sum: its input comes as terms of one";
constexpr std::string_view kNormRule = "a norm takes all features of its positions";
constexpr std::string_view kSequenceRule =
    "the style sequence_parallel takes and gives a part of the sequence";
constexpr std::string_view kTokensRule = "an embedding that is cut takes all tokens";
constexpr std::string_view kHeadsRule =
    "attention takes whole sequences, and queries, keys and values cut alike into heads";
constexpr std::string_view kExpertsRule =
    "experts take all features of their positions, and the same positions of both inputs";
constexpr std::string_view kAlikeRule =
    "both inputs of a sum or product are cut alike; a residual's branch as its input";
constexpr std::string_view kRowwiseRule =
    "rowwise gives Replicate: each rank computed terms of every output feature";
constexpr std::string_view kRowwiseSpRule =
    "rowwise_sp gives a part of the sequence: each rank computed terms of every output feature";
constexpr std::string_view kLossTermsRule =
    "the loss needs the sum: the model's output comes as terms of one";
constexpr std::string_view kAddTermsRule =
    "backward of one input read by all ranks: each has a term of its gradient (transposed)";
constexpr std::string_view kTransposedRule = "backward of a redistribution is the transposed one";
constexpr std::string_view kJoinRule =
    "the gradients that all readers of an activation left add up";

/// `wanted` is the layout in which the linear computes.
std::string_view rule_of_linear(const ModelSpec& model, const Transition& transition,
                                const std::vector<Placement>& wanted) {
  const auto dim = static_cast<std::size_t>(transition.mesh_dims.at(0));
  if (transition.after[dim] != wanted[dim]) return kInnerCutRule;
  if (cuts(transition.before[dim], kSampleDim)) return kSamplesRule;
  if (cuts(wanted[dim], feature_dim(model))) return kColumnsRule;
  return std::holds_alternative<Partial>(transition.before[dim]) ? kSumRule : kWholeRule;
}

}  // namespace

std::string_view redistribution_rule(const Plan& plan, const Redistribution& redistribution) {
  const Transition& transition = redistribution.transition;
  const auto dtype_of = [&](int value) {
    return plan.values.at(static_cast<std::size_t>(value)).dtype;
  };
  if (dtype_of(redistribution.from) != dtype_of(redistribution.to)) return kCastActivationRule;
  if (redistribution.is_gradient) {
    if (transition.op == RedistributeOp::Keep) return kJoinRule;
    const bool adds = transition.op == RedistributeOp::AllReduce ||
                      transition.op == RedistributeOp::ReduceScatter;
    return adds ? kAddTermsRule : kTransposedRule;
  }
  if (redistribution.asked_by < 0) return kLossTermsRule;
  const auto module = static_cast<std::size_t>(redistribution.asked_by);
  if (redistribution.activation > redistribution.asked_by) {
    return plan.scenario.styles.at(module) == ParallelStyle::Rowwise ? kRowwiseRule
                                                                     : kRowwiseSpRule;
  }
  const ModelSpec& model = plan.scenario.model;
  switch (model.modules[module].type) {
    case ModuleType::Linear:
      return rule_of_linear(model, transition, plan.modules[module].layout.inputs.at(0));
    case ModuleType::Embedding:
      return kTokensRule;
    case ModuleType::LayerNorm:
    case ModuleType::RmsNorm:
      return plan.scenario.styles.empty() ||
                     plan.scenario.styles[module] != ParallelStyle::SequenceParallel
                 ? kNormRule
                 : kSequenceRule;
    case ModuleType::AttentionCore:
      return kHeadsRule;
    case ModuleType::Experts:
      return kExpertsRule;
    case ModuleType::SiluGate:
    case ModuleType::Add:
      return kAlikeRule;
    case ModuleType::Relu:
    case ModuleType::Tanh:
    case ModuleType::Silu:
    case ModuleType::Gelu:
      return kTermsRule;
  }
  return kTransposedRule;
}

}  // namespace hpsim
