#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "base/check.h"
#include "plan/activation_part.h"
#include "plan/loss_collective.h"
#include "plan/passes/passes.h"
#include "plan/passes/redistribution_rules.h"
#include "plan/passes/unshard_order.h"
#include "plan/recomputation.h"
#include "plan/token_exchange.h"

namespace hpsim {
namespace {

constexpr std::string_view kForwardRule = "the model applies its modules in order";
constexpr std::string_view kLossRule = "every rank takes the loss of the samples that it holds";
constexpr std::string_view kClassesRule =
    "every rank takes the loss of the samples that it holds; where its classes are cut, ranks "
    "gather three numbers per position instead of the logits";
constexpr std::string_view kBackwardRule = "gradients flow back through the modules in reverse";
constexpr std::string_view kRecomputedRule =
    "activation_checkpointing: forward kept what the part takes, backward computes the rest again";
constexpr std::string_view kUnshardRule =
    "compute sees whole parameters: only the fully_shard dim is gathered (multi-dim RFC 2.1.2)";
constexpr std::string_view kCastRule =
    "compute sees a copy in param_dtype (torch/distributed/fsdp/_fully_shard/_fsdp_param.py)";
constexpr std::string_view kForwardPrefetchRule =
    "forward_prefetch: right after a unit's own unshard those of the next units are begun "
    "(torch/distributed/fsdp/_fully_shard/_fsdp_state.py)";
constexpr std::string_view kBackwardPrefetchRule =
    "backward_prefetch: right after a unit's own unshard those of the next units are begun "
    "(torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py)";
constexpr std::string_view kWaitRule =
    "compute waits until what was begun for it is done; until then the parameters are sharded";
constexpr std::string_view kReshardRule =
    "outside compute parameters are sharded (multi-dim RFC 2.1.2)";
constexpr std::string_view kPostForwardRule =
    "reshard_after_forward k: between forward and backward a rank keeps one of k parts of the "
    "whole";
constexpr std::string_view kPostForwardUnshardRule =
    "reshard_after_forward k: k consecutive ranks hold the parts of the whole";
constexpr std::string_view kClipRule =
    "clip_grad_norm: one sum over the world, every rank's part divided by its copies";
constexpr std::string_view kOptimizerRule =
    "the optimizer updates true shards only (ragged RFC 6.4)";
constexpr std::string_view kRouteRule =
    "the router chooses the experts of every position; their ranks must know how many come";
constexpr std::string_view kDispatchRule = "positions go to the ranks that hold their experts";
constexpr std::string_view kCombineRule = "outputs of experts go back to where positions came from";
constexpr std::string_view kCombineBackwardRule =
    "backward of combine: gradients of the outputs go to the experts (transposed)";
constexpr std::string_view kDispatchBackwardRule =
    "backward of dispatch: gradients of the inputs go back (transposed)";

/// Emits the steps of one optimizer step.
class Scheduler {
 public:
  explicit Scheduler(Plan& plan)
      : plan_(plan),
        scenario_(plan.scenario),
        buckets_of_unit_(buckets_by_unit(plan)),
        is_whole_(plan.buckets.size(), 0),
        is_pending_(plan.buckets.size(), 0),
        is_post_forward_(plan.buckets.size(), 0),
        texts_(plan.buckets.size()),
        begins_(static_cast<std::size_t>(num_modules())),
        ends_(static_cast<std::size_t>(num_modules())) {
    const std::vector<std::vector<int>> around = units_around(scenario_.model, scenario_.units);
    for (std::size_t module = 0; module < around.size(); ++module) {
      for (const int unit : around[module]) {
        const UnitSpec& spec = scenario_.units[static_cast<std::size_t>(unit)];
        if (spec.first == static_cast<int>(module)) begins_[module].push_back(unit);
        if (spec.end == static_cast<int>(module) + 1) ends_[module].push_back(unit);
      }
    }
    list_units();
    make_changes();
    if (!scenario_.model.is_elementwise()) loss_collective_ = loss_collective(plan);
  }

  void schedule(std::int64_t step) {
    step_ = step;
    const std::int64_t num_micro_batches = scenario_.training.micro_batches;
    for (micro_batch_ = 0; micro_batch_ < num_micro_batches; ++micro_batch_)
      schedule_pass(micro_batch_ + 1 == num_micro_batches);
    micro_batch_ = num_micro_batches - 1;
    phase_ = Phase::Optimizer;
    if (scenario_.training.clip_grad_norm) clip();
    emit(StepKind::Optimizer, -1, -1, kOptimizerRule);
  }

 private:
  /// Forward and backward of a micro-batch. The last one leaves parameters sharded.
  void schedule_pass(bool is_last) {
    phase_ = Phase::Forward;
    const bool reshards = scenario_.fully_shard.reshard_after_forward;
    const bool reshards_root = reshards && !scenario_.fully_shard.keeps_root_after_forward;
    const bool reshards_backward = scenario_.fully_shard.reshard_after_backward || is_last;
    order_ = UnshardOrder(forward_units_, scenario_.fully_shard.forward_prefetch);
    unshard_root();
    for (int module = 0; module < num_modules(); ++module) {
      each_unit(begins_, module, StepKind::Unshard);
      redistribute(module, &ModulePlan::before);
      forward(module);
      redistribute(module, &ModulePlan::after);
      if (reshards) each_unit(ends_, module, StepKind::Reshard);
    }
    if (reshards_root) reshard_root();
    redistribute(plan_.loss.before);
    Step& loss = emit(StepKind::Loss, -1, -1, kLossRule);
    loss.collective = loss_collective_;
    if (loss_collective_) loss.why.rule = kClassesRule;

    phase_ = Phase::Backward;
    order_ = UnshardOrder(backward_units_, scenario_.fully_shard.backward_prefetch);
    unshard_root();
    redistribute(plan_.loss.after);
    for (int module = num_modules(); module-- > 0;) {
      each_unit(ends_, module, StepKind::Unshard);
      recompute_up_to(module);
      if (runs_backward(module)) {
        redistribute(module, &ModulePlan::before_backward);
        backward(module);
        redistribute(module, &ModulePlan::after_backward);
      }
      if (reshards_backward) each_unit(begins_, module, StepKind::Reshard);
    }
    if (reshards_backward) reshard_root();
  }

  /// Where a part that backward computes again ends with `module`: its forward once more. Units
  /// that begin in it stay whole for their backward.
  void recompute_up_to(int module) {
    const int part = recomputed_part_of(scenario_, module);
    if (part < 0) return;
    const RecomputedSpec& spec = scenario_.training.recomputed[static_cast<std::size_t>(part)];
    if (module + 1 != spec.end || !is_computed_again(plan_, spec)) return;
    is_recomputing_ = true;
    for (int again = spec.first; again < spec.end; ++again) {
      each_unit(begins_, again, StepKind::Unshard);
      redistribute(again, &ModulePlan::before);
      forward(again);
      redistribute(again, &ModulePlan::after);
    }
    is_recomputing_ = false;
  }

  /// Norms of shards, their p-th powers added up over all ranks.
  void clip() {
    Step& step = emit(StepKind::ClipGradients, -1, -1, kClipRule);
    if (plan_.mesh().num_ranks() == 1) return;
    MeshDims all;
    for (int dim = 0; dim < plan_.mesh().num_dims(); ++dim) {
      if (plan_.mesh().size(dim) > 1) all.push_back(dim);
    }
    step.collective =
        CollectiveSpec{.op = CollectiveOp::AllReduce,
                       .dims = all,
                       .group_size = plan_.mesh().num_ranks(),
                       .dtype = DType::Float64,
                       .elems_in = 1,
                       .elems_out = 1,
                       .takes_max = std::isinf(scenario_.training.clip_grad_norm->norm_type)};
  }

  [[nodiscard]] int num_units() const { return static_cast<int>(scenario_.units.size()); }
  [[nodiscard]] int num_modules() const {
    const ModelSpec& model = scenario_.model;
    return static_cast<int>(std::max(model.modules.size(), model.elementwise.size()));
  }
  [[nodiscard]] bool is_root(int unit) const {
    return scenario_.units[static_cast<std::size_t>(unit)].is_root;
  }

  /// Into Scenario::units, in the order in which a pass asks for them: outer before inner.
  void list_units() {
    for (int unit = 0; unit < num_units(); ++unit) {
      if (is_root(unit)) forward_units_.push_back(unit);
    }
    backward_units_ = forward_units_;
    for (const std::vector<int>& units : begins_)
      forward_units_.insert(forward_units_.end(), units.begin(), units.end());
    for (auto units = ends_.rbegin(); units != ends_.rend(); ++units)
      backward_units_.insert(backward_units_.end(), units->begin(), units->end());
  }

  /// Unshards outer units first, reshards inner ones first.
  void each_unit(const std::vector<std::vector<int>>& units_at, int module, StepKind kind) {
    std::vector<int> units = units_at[static_cast<std::size_t>(module)];
    if (kind == StepKind::Reshard) std::reverse(units.begin(), units.end());
    for (const int unit : units)
      each_cut_bucket(unit, kind);
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

  /// Unshards or reshards the buckets of a unit that are not what compute needs already. After its
  /// unshard those of the next units are begun.
  void each_cut_bucket(int unit, StepKind kind) {
    const bool is_unshard = kind == StepKind::Unshard;
    for (const int b : buckets_of_unit_[static_cast<std::size_t>(unit)]) {
      const auto at = static_cast<std::size_t>(b);
      const Bucket& bucket = plan_.buckets[at];
      if (!bucket.is_unsharded() || (is_whole_[at] != 0) == is_unshard) continue;
      is_whole_[at] = is_unshard ? 1 : 0;
      if (!is_unshard) {
        reshard(b, bucket);
      } else if (is_pending_[at] != 0) {
        wait(b);
      } else {
        unshard(b, bucket);
      }
    }
    // What is computed again asks for its units in another order, and begins no other ones.
    if (!is_unshard || is_recomputing_) return;
    for (const int next : order_.ask_for(unit))
      prefetch(next);
  }

  /// Where nothing has to be sent, what is only cast is so at once.
  void prefetch(int unit) {
    for (const int b : buckets_of_unit_[static_cast<std::size_t>(unit)]) {
      const auto at = static_cast<std::size_t>(b);
      const Bucket& bucket = plan_.buckets[at];
      if (!bucket.is_unsharded() || is_whole_[at] != 0) continue;
      Step& step = unshard(b, bucket);
      if (!step.collective) {
        is_whole_[at] = 1;
        continue;
      }
      is_pending_[at] = 1;
      step.is_async = true;
      step.why = {"", "", phase_ == Phase::Forward ? kForwardPrefetchRule : kBackwardPrefetchRule};
    }
  }

  void wait(int b) {
    is_pending_[static_cast<std::size_t>(b)] = 0;
    Step& step = emit(StepKind::WaitUnshard, b, -1, kWaitRule);
    step.why.before = texts_of(b).sharded;
    step.why.after = texts_of(b).unsharded;
  }

  Step& unshard(int b, const Bucket& bucket) {
    const bool is_cut = bucket.sharded_group.size > 1;
    char& is_post_forward = is_post_forward_[static_cast<std::size_t>(b)];
    Step& step = emit(StepKind::Unshard, b, -1,
                      !is_cut                ? kCastRule
                      : is_post_forward != 0 ? kPostForwardUnshardRule
                                             : kUnshardRule);
    step.why.before = texts_of(b).sharded;
    step.why.after = texts_of(b).unsharded;
    if (!is_cut) return step;
    step.collective = CollectiveSpec{.op = CollectiveOp::AllGather,
                                     .dims = bucket.sharded_group.dims,
                                     .group_size = bucket.sharded_group.size,
                                     .dtype = bucket.dtype,
                                     .elems_in = bucket.row_elems,
                                     .elems_out = bucket.gathered_elems()};
    if (is_post_forward != 0) {
      step.collective->group_size = step.collective->consecutive = bucket.post_forward_size;
      step.collective->elems_in =
          bucket.row_elems.times(bucket.sharded_group.size / bucket.post_forward_size);
    }
    is_post_forward = 0;
    return step;
  }

  void reshard(int b, const Bucket& bucket) {
    const bool keeps_part = phase_ == Phase::Forward && bucket.post_forward_size > 0;
    is_post_forward_[static_cast<std::size_t>(b)] = keeps_part ? 1 : 0;
    Step& step = emit(StepKind::Reshard, b, -1, keeps_part ? kPostForwardRule : kReshardRule);
    step.why.before = texts_of(b).unsharded;
    step.why.after = texts_of(b).sharded;
  }

  /// Steps that change the layout of activations, made once and repeated in every optimizer step.
  void make_changes() {
    for (std::size_t r = 0; r < plan_.redistributions.size(); ++r) {
      const Redistribution& redistribution = plan_.redistributions[r];
      Step& step = changes_.emplace_back();
      step.kind = StepKind::Redistribute;
      step.phase = redistribution.is_gradient ? Phase::Backward : Phase::Forward;
      step.module = redistribution.asked_by;
      step.redistribution = static_cast<int>(r);
      step.collective = redistribution_collective(plan_, redistribution);
      step.why = {to_string(redistribution.transition.before),
                  to_string(redistribution.transition.after),
                  redistribution_rule(plan_, redistribution)};
    }
  }

  void redistribute(const std::vector<int>& redistributions) {
    for (const int redistribution : redistributions) {
      Step& step = plan_.steps.emplace_back(changes_[static_cast<std::size_t>(redistribution)]);
      step.step = step_;
      step.micro_batch = micro_batch_;
      if (is_recomputing_) mark_recomputed(step);
    }
  }

  /// Of an elementwise parameter there are none.
  void redistribute(int module, std::vector<int> ModulePlan::*place) {
    if (!plan_.modules.empty())
      redistribute(plan_.modules[static_cast<std::size_t>(module)].*place);
  }

  void forward(int module) {
    emit_tokens(StepKind::Route, module, kRouteRule);
    emit_tokens(StepKind::Dispatch, module, kDispatchRule);
    emit(StepKind::Forward, -1, module, kForwardRule);
    emit_tokens(StepKind::Combine, module, kCombineRule);
  }

  void backward(int module) {
    emit_tokens(StepKind::Dispatch, module, kCombineBackwardRule);
    emit(StepKind::Backward, -1, module, kBackwardRule);
    // Gradients that only serve the model's input are not sent.
    if (sends_back(module)) emit_tokens(StepKind::Combine, module, kDispatchBackwardRule);
  }

  [[nodiscard]] bool sends_back(int module) const {
    return !plan_.modules.empty() &&
           plan_.modules[static_cast<std::size_t>(module)].input_gradients.at(0) >= 0;
  }

  /// Steps of experts that exchange positions; of other modules none.
  void emit_tokens(StepKind kind, int module, std::string_view rule) {
    if (plan_.modules.empty()) return;
    const auto at = static_cast<std::size_t>(module);
    if (scenario_.model.modules[at].type != ModuleType::Experts) return;
    std::optional<CollectiveSpec>& known = tokens_[{module, kind}];
    if (!known) known = token_collective(plan_, module, kind);
    if (known) emit(kind, -1, module, rule).collective = known;
  }

  /// Whether anything needs the gradient of what a module computes.
  [[nodiscard]] bool runs_backward(int module) const {
    return plan_.modules.empty() ||
           plan_.modules[static_cast<std::size_t>(module)].output_gradient >= 0;
  }

  Step& emit(StepKind kind, int bucket, int module, std::string_view rule) {
    Step step;
    step.kind = kind;
    step.phase = phase_;
    step.step = step_;
    step.micro_batch = micro_batch_;
    step.bucket = bucket;
    step.module = module;
    step.why.rule = rule;
    const bool is_of_unit = kind == StepKind::Unshard || kind == StepKind::WaitUnshard;
    if (is_recomputing_ && !is_of_unit) mark_recomputed(step);
    plan_.steps.push_back(std::move(step));
    return plan_.steps.back();
  }

  static void mark_recomputed(Step& step) {
    step.phase = Phase::Backward;
    step.is_recomputed = true;
    step.why.rule = kRecomputedRule;
  }

  Plan& plan_;
  const Scenario& scenario_;
  std::vector<std::vector<int>> buckets_of_unit_;
  std::vector<char> is_whole_;            ///< per bucket: it is unsharded
  std::vector<char> is_pending_;          ///< per bucket: its unshard is begun
  std::vector<char> is_post_forward_;     ///< per bucket: it is kept in post-forward parts
  std::vector<LayoutTexts> texts_;        ///< per bucket
  std::vector<std::vector<int>> begins_;  ///< per module: the units whose first module it is
  std::vector<std::vector<int>> ends_;    ///< and whose last one
  std::vector<int> forward_units_;        ///< in the order in which forward asks for them
  std::vector<int> backward_units_;
  UnshardOrder order_;  ///< of the pass and phase at hand
  std::optional<CollectiveSpec> loss_collective_;
  std::map<std::pair<int, StepKind>, std::optional<CollectiveSpec>> tokens_;
  std::vector<Step> changes_;  ///< like Plan::redistributions
  std::int64_t step_ = 0;
  std::int64_t micro_batch_ = 0;
  Phase phase_ = Phase::Forward;
  bool is_recomputing_ = false;  ///< steps of forward are emitted in backward
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
