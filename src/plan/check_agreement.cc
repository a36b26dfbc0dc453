#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "plan/activation_part.h"
#include "plan/activation_replay.h"
#include "plan/bucket_collective.h"
#include "plan/loss_collective.h"
#include "plan/micro_batch_replay.h"
#include "plan/norm_collective.h"
#include "plan/plan_checks.h"
#include "plan/prefetch_replay.h"
#include "plan/recomputation_replay.h"
#include "plan/row_members.h"
#include "plan/spec_difference.h"
#include "plan/token_replay.h"
#include "scenario/gradients.h"

namespace hpsim {
namespace {

/// State of one bucket while the steps are replayed.
struct BucketState {
  bool is_gathered = false;
  bool is_pending = false;         ///< an unshard of it is begun, and not awaited yet
  bool is_post_forward = false;    ///< a part of it is kept since forward
  int open_row = -1;               ///< gradient row that backward has begun to fill, or that waits
  std::int64_t backward_left = 0;  ///< modules whose backward is still to come in this pass
  bool is_scattered = false;       ///< rows of it wait for all-reduces
  bool awaits_average = false;     ///< updated, but not averaged with its copies yet
};

/// Replays the steps of a plan, as every rank will run them.
class Replay {
 public:
  explicit Replay(const Plan& plan)
      : plan_(plan),
        parameters_of_module_(parameters_of_modules(plan.scenario)),
        row_members_(plan),
        state_(plan.buckets.size()),
        micro_batches_(plan) {
    const auto& model = plan.scenario.model;
    for (const std::vector<int>& parameters : parameters_of_module_) {
      std::vector<int>& buckets = buckets_of_module_.emplace_back();
      for (const int p : parameters) {
        const int bucket = plan.parameter(p).bucket;
        if (buckets.empty() || buckets.back() != bucket) buckets.push_back(bucket);
      }
    }
    for (BucketState& state : state_) {
      const Bucket& bucket = plan.buckets[index_of(state)];
      state.is_gathered = !bucket.is_unsharded();
    }
    prefetches_ = std::any_of(plan.steps.begin(), plan.steps.end(), [](const Step& step) {
      return step.is_async || step.kind == StepKind::WaitUnshard;
    });
    const FullyShardSpec& spec = plan.scenario.fully_shard;
    if (prefetches_ || spec.forward_prefetch > 0 || spec.backward_prefetch > 0)
      prefetch_.emplace(plan);
    if (!model.is_elementwise()) {
      activations_.emplace(plan);
      tokens_.emplace(plan);
      recomputation_.emplace(plan);
    }
    begin_pass();
  }

  PlanCheckOutcome run() {
    outcome_.id = CheckId::PlanAgreement;
    for (const Step& step : plan_.steps) {
      const std::pair<std::int64_t, std::int64_t> pass = {step.step, step.micro_batch};
      const bool begins_pass = std::exchange(pass_, pass) != pass;
      if (begins_pass) begin_pass();
      if (prefetches_) check_pending(step, begins_pass);
      if (prefetch_) follow_prefetch(step);
      if (const auto fault = micro_batches_.take(step))
        require(false, FindingCode::CommCount, step, [&] { return *fault; });
      if (step.collective && step.bucket >= 0) check_collective(step);
      if (activations_) follow_activations(step);
      replay(step);
    }
    for (const BucketState& each : state_) {
      if (!plan_.steps.empty() && averages(each)) expect_averaged(each, plan_.steps.back());
    }
    return std::move(outcome_);
  }

 private:
  [[nodiscard]] std::size_t index_of(const BucketState& state) const {
    return static_cast<std::size_t>(&state - state_.data());
  }

  [[nodiscard]] bool averages(const BucketState& state) const {
    return !plan_.buckets[index_of(state)].average_dims.empty();
  }

  void expect_averaged(const BucketState& state, const Step& step) {
    expect(!state.awaits_average, FindingCode::CommCount, step, [&] {
      return fmt::format("weights of bucket {} are not averaged after their update",
                         index_of(state));
    });
  }

  void begin_pass() {
    for (BucketState& state : state_)
      state.backward_left = 0;
    for (std::size_t m = 0; m < buckets_of_module_.size(); ++m) {
      if (!plan_.modules.empty() && plan_.modules[m].output_gradient < 0) continue;
      for (const int b : buckets_of_module_[m])
        ++state_.at(static_cast<std::size_t>(b)).backward_left;
    }
  }

  /// `message` is asked for only if it does not hold.
  template <class Message>
  void expect(bool holds, FindingCode code, const Step& step, const Message& message) {
    ++outcome_.compared;
    require(holds, code, step, message);
  }
  /// The same of what is part of another fact.
  template <class Message>
  void require(bool holds, FindingCode code, const Step& step, const Message& message) {
    if (holds) return;
    outcome_.findings.push_back(
        {.code = code,
         .check = CheckId::PlanAgreement,
         .param = param_of(step),
         .step = step.step,
         .message = fmt::format("{} of {}: {}", name_of(step.kind), subject(step), message())});
  }

  /// The first parameter that a step is about; empty if it is about none.
  [[nodiscard]] std::string param_of(const Step& step) const {
    const std::vector<int>* parameters = nullptr;
    if (step.row >= 0) {
      parameters = &plan_.gradient_row(step.row).parameters;
    } else if (step.bucket >= 0) {
      parameters = &plan_.bucket(step.bucket).parameters;
    } else if (step.module >= 0) {
      parameters = &parameters_of_module_.at(static_cast<std::size_t>(step.module));
    }
    if (parameters == nullptr || parameters->empty()) return {};
    return plan_.parameter(parameters->front()).name;
  }

  [[nodiscard]] std::string subject(const Step& step) const {
    if (step.bucket < 0) {
      return step.module < 0
                 ? std::string("the model")
                 : fmt::format("\"{}\"", module_name(plan_.scenario.model, step.module));
    }
    const Bucket& bucket = plan_.buckets.at(static_cast<std::size_t>(step.bucket));
    return fmt::format("unit \"{}\"", plan_.unit_name(bucket));
  }

  void check_collective(const Step& step) {
    const bool is_post_forward = state_.at(static_cast<std::size_t>(step.bucket)).is_post_forward;
    for (const SpecDifference& difference :
         bucket_collective_differences(plan_, step, is_post_forward)) {
      require(false, difference.code, step, [&] { return difference.message; });
    }
    outcome_.compared += kFactsOfBucketCollective;
  }

  /// What is begun in forward, or in backward, of a pass is awaited there; only an all_gather is
  /// begun.
  void check_pending(const Step& step, bool begins_pass) {
    if (begins_pass || step.kind == StepKind::Loss || step.phase == Phase::Optimizer)
      expect_nothing_pending(step);
    if (!step.is_async) return;
    expect(step.kind == StepKind::Unshard && step.collective.has_value(), FindingCode::CommCount,
           step, [] { return "it is begun, and has no all_gather"; });
  }

  void follow_prefetch(const Step& step) {
    const std::optional<std::string> fault = prefetch_->take(step);
    if (!fault && step.kind != StepKind::Forward && step.kind != StepKind::Backward) return;
    expect(!fault, FindingCode::CommOrder, step, [&] { return *fault; });
  }

  void expect_nothing_pending(const Step& step) {
    for (const BucketState& each : state_) {
      expect(!each.is_pending, FindingCode::CommOrder, step, [&] {
        return fmt::format("nothing waits for the unshard of bucket {} that was begun before",
                           index_of(each));
      });
    }
  }

  /// "its unshard is begun, and nothing waits for it", or else `otherwise`.
  static std::string not_gathered(const BucketState& state, const char* otherwise) {
    return state.is_pending ? "its unshard is begun, and nothing waits for it" : otherwise;
  }

  void check_redistribution(const Step& step) {
    const auto at = static_cast<std::size_t>(step.redistribution);
    const Redistribution& redistribution = plan_.redistributions.at(at);
    if (redistribution_collectives_.size() <= at) redistribution_collectives_.resize(at + 1);
    std::optional<std::optional<CollectiveSpec>>& wanted = redistribution_collectives_[at];
    if (!wanted) wanted = redistribution_collective(plan_, redistribution);
    const auto difference = difference_of(plan_.mesh(), step.collective, *wanted);
    expect(!difference, difference ? difference->code : FindingCode::CommShape, step, [&] {
      return fmt::format("{} of the {}: {}", name_of(redistribution.transition.op),
                         activation_text(plan_, redistribution), difference->message);
    });
  }

  void follow_activations(const Step& step) {
    const auto fault = activations_->take(step);
    expect(!fault, fault ? fault->code : FindingCode::CommOrder, step,
           [&] { return fault->message; });
    if (!fault && step.kind == StepKind::Redistribute) check_redistribution(step);
    if (const auto token_fault = tokens_->take(step)) {
      expect(false, token_fault->code, step, [&] { return token_fault->message; });
    }
    const auto unlike_forward = recomputation_->take(step);
    if (step.is_recomputed || unlike_forward) {
      expect(!unlike_forward, unlike_forward ? unlike_forward->code : FindingCode::CommOrder, step,
             [&] { return unlike_forward->message; });
    }
    if (step.kind != StepKind::Loss) return;
    const auto difference = difference_of(plan_.mesh(), step.collective, loss_collective(plan_));
    expect(!difference, difference ? difference->code : FindingCode::CommShape, step,
           [&] { return difference->message; });
  }

  void replay(const Step& step) {
    BucketState* state =
        step.bucket >= 0 ? &state_.at(static_cast<std::size_t>(step.bucket)) : nullptr;
    constexpr auto kOrder = FindingCode::CommOrder;
    switch (step.kind) {
      case StepKind::Unshard:
        expect(!state->is_gathered && !state->is_pending, kOrder, step,
               [&] { return not_gathered(*state, "it is gathered already"); });
        expect(
            step.collective.has_value() == (plan_.buckets[index_of(*state)].sharded_group.size > 1),
            FindingCode::CommCount, step, [] { return "no all_gather"; });
        (step.is_async ? state->is_pending : state->is_gathered) = true;
        state->is_post_forward = false;
        break;
      case StepKind::WaitUnshard:
        expect(state->is_pending && !step.collective, kOrder, step,
               [] { return "no unshard of it is begun"; });
        state->is_pending = false;
        state->is_gathered = true;
        break;
      case StepKind::Reshard:
        expect(state->is_gathered, kOrder, step,
               [&] { return not_gathered(*state, "it is not gathered"); });
        state->is_gathered = false;
        state->is_post_forward =
            step.phase == Phase::Forward && plan_.buckets[index_of(*state)].post_forward_size > 0;
        break;
      case StepKind::Forward:
      case StepKind::Backward:
        for (const int b : buckets_of_module_.at(static_cast<std::size_t>(step.module))) {
          BucketState& used = state_.at(static_cast<std::size_t>(b));
          expect(used.is_gathered, kOrder, step,
                 [&] { return not_gathered(used, "its parameters are not gathered"); });
          if (averages(used)) expect_averaged(used, step);
          if (step.kind == StepKind::Backward) --used.backward_left;
        }
        if (step.kind == StepKind::Backward) check_rows(step);
        break;
      case StepKind::ReduceScatter:
      case StepKind::AllReduce:
      case StepKind::ScaleGradient:
      case StepKind::StoreGradient:
        reduce(step, *state);
        break;
      case StepKind::Redistribute:
      case StepKind::Loss:
        break;
      case StepKind::Route:
      case StepKind::Dispatch:
      case StepKind::Combine:
        break;  // TokenReplay follows them
      case StepKind::Optimizer:
        for (const BucketState& each : state_) {
          const Bucket& bucket = plan_.buckets[index_of(each)];
          expect(each.open_row < 0, FindingCode::CommCount, step, [&] {
            return fmt::format("gradients of bucket {} are not stored", index_of(each));
          });
          expect(each.is_gathered == !bucket.is_unsharded(), kOrder, step, [&] {
            return fmt::format("bucket {} is not sharded outside compute", index_of(each));
          });
        }
        expect(
            std::exchange(is_clipped_, false) == plan_.scenario.training.clip_grad_norm.has_value(),
            FindingCode::CommCount, step, [&] {
              return plan_.scenario.training.clip_grad_norm
                         ? "its gradients are not clipped"
                         : "its gradients are clipped, and nothing asks for it";
            });
        for (BucketState& each : state_) {
          const std::vector<int>& all = plan_.buckets[index_of(each)].parameters;
          each.awaits_average = averages(each) && std::any_of(all.begin(), all.end(), [&](int p) {
                                  return has_gradient(plan_.scenario, p, step.step);
                                });
          each.open_row = -1;
          each.is_scattered = false;
        }
        break;
      case StepKind::ClipGradients:
        check_clip(step);
        break;
      case StepKind::AverageWeights:
        expect(state->awaits_average, kOrder, step,
               [] { return "its weights are averaged before their update, or twice"; });
        expect(step.collective.has_value(), FindingCode::CommCount, step,
               [] { return "no all_reduce"; });
        state->awaits_average = false;
        break;
    }
  }

  /// A module leaves gradients of its parameters in rows of their buckets, until these are stored
  /// in one and the same row.
  void check_rows(const Step& step) {
    for (const int row : step.rows) {
      BucketState& state = state_.at(
          static_cast<std::size_t>(plan_.gradient_rows.at(static_cast<std::size_t>(row)).bucket));
      expect(state.open_row < 0 || state.open_row == row, FindingCode::CommOrder, step, [&] {
        return fmt::format("its gradients go to row {}, those before it to row {}", row,
                           state.open_row);
      });
      state.open_row = row;
    }
    for (const int p : parameters_of_module_.at(static_cast<std::size_t>(step.module))) {
      if (!has_gradient(plan_.scenario, p, step.step, step.micro_batch)) continue;
      const auto holders = std::count_if(step.rows.begin(), step.rows.end(),
                                         [&](int row) { return row_members_.holds(row, p); });
      expect(holders == 1, FindingCode::CommCount, step, [&] {
        return fmt::format("the gradient of \"{}\" goes to {} rows, expected 1",
                           plan_.parameter(p).name, holders);
      });
    }
  }

  void reduce(const Step& step, BucketState& state) {
    constexpr auto kOrder = FindingCode::CommOrder;
    const Bucket& bucket = plan_.buckets[index_of(state)];
    require(plan_.gradient_row(step.row).bucket == step.bucket, kOrder, step, [&] {
      return fmt::format("it is about row {}, which is of bucket {}, not {}", step.row,
                         plan_.gradient_row(step.row).bucket, step.bucket);
    });
    const bool sends = step.kind == StepKind::ReduceScatter || step.kind == StepKind::AllReduce;
    require(step.collective.has_value() == sends, FindingCode::CommCount, step, [&] {
      return fmt::format("{} collective, expected {}", sends ? "no" : "a", sends ? "one" : "none");
    });
    expect(state.backward_left == 0, kOrder, step, [&] {
      return fmt::format("{} modules still have to add to its gradients", state.backward_left);
    });
    expect(state.open_row >= 0, kOrder, step, [] { return "its gradients are stored already"; });
    expect(state.open_row < 0 || state.open_row == step.row, kOrder, step, [&] {
      return fmt::format("it is about row {}, the gradients are in row {}", step.row,
                         state.open_row);
    });
    if (step.kind == StepKind::ReduceScatter) {
      // In each micro-batch once.
      const std::pair<std::int64_t, std::int64_t> pass = {step.step, step.micro_batch};
      std::optional<std::pair<std::int64_t, std::int64_t>>& last = scattered_in_[step.bucket];
      expect(last != pass, kOrder, step, [] { return "it was scattered already"; });
      last = pass;
      state.is_scattered = true;
    } else {
      expect(bucket.scatter_dims.empty() || state.is_scattered, kOrder, step,
             [] { return "it comes before the reduce-scatter"; });
    }
    if (step.kind != StepKind::StoreGradient) return;
    state.open_row = -1;
    state.is_scattered = false;
  }

  /// One number, over all ranks, once all gradients are stored.
  void check_clip(const Step& step) {
    const std::int64_t num_ranks = plan_.mesh().num_ranks();
    expect(!std::exchange(is_clipped_, true), FindingCode::CommCount, step,
           [] { return "gradients are clipped already"; });
    for (const BucketState& each : state_) {
      expect(each.open_row < 0, FindingCode::CommOrder, step,
             [&] { return fmt::format("gradients of bucket {} are not stored", index_of(each)); });
    }
    expect(step.collective.has_value() == (num_ranks > 1), FindingCode::CommCount, step,
           [&] { return fmt::format("a norm over {} ranks has one all_reduce", num_ranks); });
    if (!step.collective) return;
    for (const SpecDifference& difference : norm_collective_differences(plan_, step))
      require(false, difference.code, step, [&] { return difference.message; });
    outcome_.compared += kFactsOfNormCollective;
  }

  const Plan& plan_;
  std::pair<std::int64_t, std::int64_t> pass_ = {-1, -1};  ///< optimizer step, micro-batch
  bool prefetches_ = false;                                ///< some unshard is only begun
  std::map<int, std::optional<std::pair<std::int64_t, std::int64_t>>>
      scattered_in_;  ///< per bucket: last pass
  std::vector<std::vector<int>> parameters_of_module_;
  RowMembers row_members_;
  std::vector<BucketState> state_;
  bool is_clipped_ = false;  ///< of the optimizer step at hand
  MicroBatchReplay micro_batches_;
  std::vector<std::vector<int>> buckets_of_module_;
  std::optional<ActivationReplay> activations_;
  std::optional<TokenReplay> tokens_;
  std::optional<RecomputationReplay> recomputation_;
  std::optional<PrefetchReplay> prefetch_;
  std::vector<std::optional<std::optional<CollectiveSpec>>> redistribution_collectives_;
  PlanCheckOutcome outcome_;
};

}  // namespace

PlanCheckOutcome check_agreement(const Plan& plan) {
  return Replay(plan).run();
}

}  // namespace hpsim
