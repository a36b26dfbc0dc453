#include <algorithm>

#include "base/check.h"
#include "plan/activation_part.h"
#include "plan/passes/passes.h"

namespace hpsim {
namespace {

constexpr std::string_view kForwardRule = "the model applies its modules in order";
constexpr std::string_view kLossRule = "every data rank takes the loss of its own samples";
constexpr std::string_view kBackwardRule = "gradients flow back through the modules in reverse";
constexpr std::string_view kUnshardRule =
    "compute sees whole parameters: only the fully_shard dim is gathered (multi-dim RFC 2.1.2)";
constexpr std::string_view kReshardRule =
    "outside compute parameters are sharded (multi-dim RFC 2.1.2)";
constexpr std::string_view kOptimizerRule =
    "the optimizer updates true shards only (ragged RFC 6.4)";
constexpr std::string_view kWholeRule =
    "a weight whose rows are not cut, or cut by rows (colwise), takes every input feature";
constexpr std::string_view kColumnsRule =
    "a weight cut by columns (rowwise) takes the input features of its columns";
constexpr std::string_view kSamplesRule =
    "along a data dim that cuts its weight a module takes the samples of all ranks";
constexpr std::string_view kTermsRule =
    "an activation function needs the sum: its input comes as terms of one";
constexpr std::string_view kRowwiseRule =
    "rowwise gives Replicate: each rank computed terms of every output feature";
constexpr std::string_view kLossTermsRule =
    "the loss needs the sum: the model's output comes as terms of one";
constexpr std::string_view kAddTermsRule =
    "backward of one input read by all ranks: each has a term of its gradient (transposed)";
constexpr std::string_view kTransposedRule = "backward of a redistribution is the transposed one";

/// Why an activation, or its gradient, changes so.
std::string_view rule_of(const Plan& plan, const Redistribution& redistribution) {
  const Transition& transition = redistribution.transition;
  if (redistribution.is_gradient) {
    const bool adds = transition.op == RedistributeOp::AllReduce ||
                      transition.op == RedistributeOp::ReduceScatter;
    return adds ? kAddTermsRule : kTransposedRule;
  }
  if (redistribution.asked_by < 0) return kLossTermsRule;
  if (redistribution.activation > redistribution.asked_by) return kRowwiseRule;
  const auto module = static_cast<std::size_t>(redistribution.asked_by);
  if (plan.scenario.model.modules[module].type != ModuleType::Linear) return kTermsRule;
  const auto dim = static_cast<std::size_t>(transition.mesh_dims.at(0));
  if (cuts(transition.before[dim], 0)) return kSamplesRule;
  return is_cut(transition.after[dim]) ? kColumnsRule : kWholeRule;
}

/// Emits the steps of one optimizer step.
class Scheduler {
 public:
  explicit Scheduler(Plan& plan)
      : plan_(plan),
        scenario_(plan.scenario),
        buckets_of_unit_(buckets_by_unit(plan)),
        texts_(plan.buckets.size()) {
    const std::size_t num_modules = scenario_.model.is_elementwise()
                                        ? scenario_.model.elementwise.size()
                                        : scenario_.model.modules.size();
    unit_of_module_.assign(num_modules, -1);
    first_module_.assign(scenario_.units.size(), -1);
    last_module_.assign(scenario_.units.size(), -1);
    for (int unit = 0; unit < num_units(); ++unit) {
      for (const int p : scenario_.units[static_cast<std::size_t>(unit)].parameters) {
        const auto module =
            static_cast<std::size_t>(scenario_.parameters[static_cast<std::size_t>(p)].module);
        first_with_parameters_ = std::min(first_with_parameters_, static_cast<int>(module));
        if (scenario_.units[static_cast<std::size_t>(unit)].is_ignored) continue;
        if (!is_root(unit)) unit_of_module_[module] = unit;
        int& first = first_module_[static_cast<std::size_t>(unit)];
        if (first < 0) first = static_cast<int>(module);
        last_module_[static_cast<std::size_t>(unit)] = static_cast<int>(module);
      }
    }
    if (!scenario_.model.is_elementwise()) plan_redistributions();
  }

  void schedule(std::int64_t step) {
    step_ = step;
    phase_ = Phase::Forward;
    const bool reshards = scenario_.fully_shard.reshard_after_forward;
    unshard_root();
    for (int module = 0; module < num_modules(); ++module) {
      const int unit = unit_of_module_[static_cast<std::size_t>(module)];
      if (is_first_of(unit, module)) each_cut_bucket(unit, StepKind::Unshard);
      redistribute(into_, module);
      emit(StepKind::Forward, -1, module, kForwardRule);
      redistribute(out_of_, module);
      if (reshards && is_last_of(unit, module)) each_cut_bucket(unit, StepKind::Reshard);
    }
    if (reshards) reshard_root();
    redistribute(into_, num_modules());
    emit(StepKind::Loss, -1, -1, kLossRule);

    phase_ = Phase::Backward;
    if (reshards) unshard_root();
    // Before the first module with parameters nothing needs a gradient.
    for (int module = num_modules(); module-- > first_with_parameters_;) {
      const int unit = unit_of_module_[static_cast<std::size_t>(module)];
      if (reshards && is_last_of(unit, module)) each_cut_bucket(unit, StepKind::Unshard);
      emit(StepKind::Backward, -1, module, kBackwardRule);
      redistribute(back_, module);
      if (is_first_of(unit, module)) each_cut_bucket(unit, StepKind::Reshard);
    }
    reshard_root();

    phase_ = Phase::Optimizer;
    emit(StepKind::Optimizer, -1, -1, kOptimizerRule);
  }

 private:
  [[nodiscard]] int num_units() const { return static_cast<int>(scenario_.units.size()); }
  [[nodiscard]] int num_modules() const { return static_cast<int>(unit_of_module_.size()); }
  [[nodiscard]] bool is_root(int unit) const {
    return scenario_.units[static_cast<std::size_t>(unit)].is_root;
  }
  [[nodiscard]] bool is_first_of(int unit, int module) const {
    return unit >= 0 && first_module_[static_cast<std::size_t>(unit)] == module;
  }
  [[nodiscard]] bool is_last_of(int unit, int module) const {
    return unit >= 0 && last_module_[static_cast<std::size_t>(unit)] == module;
  }

  /// Steps that change the layout of an activation, ready but for the optimizer step.
  using Changes = std::vector<std::vector<Step>>;  ///< per module, and the loss

  void plan_redistributions() {
    const auto num_places = static_cast<std::size_t>(num_modules()) + 1;
    into_.resize(num_places);
    out_of_.resize(num_places);
    back_.resize(num_places);
    const std::vector<std::int64_t> features = features_along(scenario_.model);
    std::vector<Placement> now = input_layout(scenario_);
    for (int module = 0; module < num_modules(); ++module) {
      const ModuleLayout& layout = plan_.modules[static_cast<std::size_t>(module)];
      const auto change = [&](Changes& changes, int activation, bool is_gradient,
                              const std::vector<Placement>& from,
                              const std::vector<Placement>& to) {
        add_changes(changes[static_cast<std::size_t>(module)],
                    {.activation = activation,
                     .asked_by = module,
                     .is_gradient = is_gradient,
                     .features = features[static_cast<std::size_t>(activation)]},
                    from, to);
      };
      change(into_, module, false, now, layout.input);
      change(out_of_, module + 1, false, layout.output, layout.given);
      if (module > first_with_parameters_) {
        change(back_, module, true, layout.input_gradient, gradient_placements(now));
      }
      now = layout.given;
    }
    add_changes(into_.back(), {.activation = num_modules(), .features = features.back()}, now,
                plan_.output);
  }

  void unshard_root() { each_root(StepKind::Unshard); }
  void reshard_root() { each_root(StepKind::Reshard); }
  void each_root(StepKind kind) {
    for (int unit = 0; unit < num_units(); ++unit) {
      if (is_root(unit)) each_cut_bucket(unit, kind);
    }
  }

  struct LayoutTexts {
    std::string sharded;
    std::string unsharded;
  };

  /// Those of the first parameter of a bucket, written once.
  const LayoutTexts& texts_of(int bucket) {
    LayoutTexts& texts = texts_.at(static_cast<std::size_t>(bucket));
    if (!texts.sharded.empty()) return texts;
    const PlannedParameter& parameter = plan_.parameter(plan_.bucket(bucket).parameters.at(0));
    const Vocabulary vocabulary = scenario_.fully_shard.vocabulary;
    texts = {to_string(parameter.sharded, vocabulary), to_string(parameter.unsharded, vocabulary)};
    return texts;
  }

  /// Unshards or reshards the buckets of a unit that are cut over more than one rank.
  void each_cut_bucket(int unit, StepKind kind) {
    for (const int b : buckets_of_unit_[static_cast<std::size_t>(unit)]) {
      const Bucket& bucket = plan_.buckets[static_cast<std::size_t>(b)];
      if (bucket.sharded_group.size == 1) continue;
      Step& step = emit(kind, b, -1, kind == StepKind::Unshard ? kUnshardRule : kReshardRule);
      const LayoutTexts& texts = texts_of(b);
      step.why.before = kind == StepKind::Unshard ? texts.sharded : texts.unsharded;
      step.why.after = kind == StepKind::Unshard ? texts.unsharded : texts.sharded;
      if (kind == StepKind::Unshard) {
        step.collective = CollectiveSpec{.op = CollectiveOp::AllGather,
                                         .dims = bucket.sharded_group.dims,
                                         .group_size = bucket.sharded_group.size,
                                         .dtype = scenario_.numerics.dtype,
                                         .elems_in = bucket.row_elems,
                                         .elems_out = bucket.gathered_elems()};
      }
    }
  }

  void add_changes(std::vector<Step>& changes, Redistribution redistribution,
                   const std::vector<Placement>& from, const std::vector<Placement>& to) {
    for (Transition& transition : hpsim::redistribute(from, to)) {
      redistribution.transition = std::move(transition);
      Step step;
      step.kind = StepKind::Redistribute;
      step.phase = redistribution.is_gradient ? Phase::Backward : Phase::Forward;
      step.module = redistribution.asked_by;
      step.redistribution = static_cast<int>(plan_.redistributions.size());
      step.collective = redistribution_collective(plan_, redistribution);
      step.why = {to_string(redistribution.transition.before),
                  to_string(redistribution.transition.after), rule_of(plan_, redistribution)};
      changes.push_back(std::move(step));
      plan_.redistributions.push_back(redistribution);
    }
  }

  void redistribute(const Changes& changes, int module) {
    if (changes.empty()) return;
    for (const Step& change : changes[static_cast<std::size_t>(module)]) {
      plan_.steps.push_back(change);
      plan_.steps.back().step = step_;
    }
  }

  Step& emit(StepKind kind, int bucket, int module, std::string_view rule) {
    Step step;
    step.kind = kind;
    step.phase = phase_;
    step.step = step_;
    step.bucket = bucket;
    step.module = module;
    step.why.rule = rule;
    plan_.steps.push_back(std::move(step));
    return plan_.steps.back();
  }

  Plan& plan_;
  const Scenario& scenario_;
  std::vector<std::vector<int>> buckets_of_unit_;
  std::vector<LayoutTexts> texts_;   ///< per bucket
  std::vector<int> unit_of_module_;  ///< -1: no parameters, or in the root unit
  std::vector<int> first_module_;    ///< per unit
  std::vector<int> last_module_;     ///< per unit
  int first_with_parameters_ = 1 << 30;
  Changes into_;    ///< before a module's forward, and before the loss
  Changes out_of_;  ///< after a module's forward
  Changes back_;    ///< after a module's backward
  std::int64_t step_ = 0;
  Phase phase_ = Phase::Forward;
};

}  // namespace

Plan schedule_compute(Plan plan) {
  Scheduler scheduler(plan);
  for (std::int64_t step = 0; step < plan.scenario.training.steps; ++step)
    scheduler.schedule(step);
  return plan;
}

bool has_compute(const Plan& plan) {
  return std::count_if(plan.steps.begin(), plan.steps.end(), [](const Step& step) {
           return step.kind == StepKind::Optimizer;
         }) == plan.scenario.training.steps;
}

}  // namespace hpsim
