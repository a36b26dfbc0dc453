#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "plan/activation_part.h"
#include "plan/activation_replay.h"
#include "plan/loss_collective.h"
#include "plan/plan_checks.h"
#include "plan/prefetch_replay.h"
#include "plan/recomputation_replay.h"
#include "plan/row_members.h"
#include "plan/token_replay.h"
#include "scenario/gradients.h"
#include "scenario/precision.h"

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
        state_(plan.buckets.size()) {
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
    if (holds) return;
    outcome_.findings.push_back(
        {.code = code,
         .check = CheckId::PlanAgreement,
         .step = step.step,
         .message = fmt::format("{} of {}: {}", name_of(step.kind), subject(step), message())});
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

  /// Of what the collective carries; it is the same for all parameters of a bucket.
  [[nodiscard]] DType wanted_dtype(const Step& step, int p) const {
    if (step.kind == StepKind::Unshard) return compute_dtype(plan_.scenario, p);
    if (step.kind == StepKind::AverageWeights) return parameter_dtype(plan_.scenario, p);
    return reduce_dtype(plan_.scenario, p);
  }

  void check_collective(const Step& step) {
    const CollectiveSpec& spec = *step.collective;
    const Bucket& bucket = plan_.buckets.at(static_cast<std::size_t>(step.bucket));
    const bool is_post_forward = state_.at(static_cast<std::size_t>(step.bucket)).is_post_forward;
    const std::int64_t parts =
        is_post_forward && step.kind == StepKind::Unshard ? bucket.post_forward_size : 0;
    const std::int64_t size = parts > 0 ? parts : plan_.mesh().size(spec.dims);
    expect(spec.consecutive == parts, FindingCode::CommGroup, step, [&] {
      return fmt::format("runs of {} consecutive ranks, expected {} (0: all)", spec.consecutive,
                         parts);
    });
    expect(spec.group_size == size && size > 1, FindingCode::CommGroup, step, [&] {
      return fmt::format("groups of {} along {} ranks of the mesh, expected equal and above 1",
                         spec.group_size, size);
    });
    const GradientRow* const gradients =
        step.row < 0 ? nullptr : &plan_.gradient_rows.at(static_cast<std::size_t>(step.row));
    const std::vector<int>& parameters =
        gradients == nullptr ? bucket.parameters : gradients->parameters;
    const auto other = std::find_if(parameters.begin(), parameters.end(),
                                    [&](int p) { return wanted_dtype(step, p) != spec.dtype; });
    expect(other == parameters.end(), FindingCode::CommDtype, step, [&] {
      return fmt::format("{} on the wire, expected {} for \"{}\"", name_of(spec.dtype),
                         name_of(wanted_dtype(step, *other)), plan_.parameter(*other).name);
    });
    const bool gathers = spec.op == CollectiveOp::AllGather;
    const bool scatters = spec.op == CollectiveOp::ReduceScatter;
    const PartialRange* const range =
        step.partial < 0 || gradients == nullptr
            ? nullptr
            : &gradients->partials.at(static_cast<std::size_t>(step.partial));
    const PerCoordinate whole_row = gradients == nullptr ? bucket.row_elems : gradients->row_elems;
    const PerCoordinate row =
        range == nullptr ? whole_row : partial_elems(plan_, *gradients, *range);
    const PerCoordinate wanted_in = scatters    ? row.times(bucket.sharded_group.size)
                                    : parts > 0 ? row.times(bucket.sharded_group.size / parts)
                                                : row;
    const PerCoordinate wanted_out = gathers ? bucket.gathered_elems() : row;
    const Mesh& mesh = plan_.mesh();
    expect(spec.elems_in == wanted_in && spec.elems_out == wanted_out, FindingCode::CommShape, step,
           [&] {
             return fmt::format("{} elements in and {} out, expected {} and {}",
                                to_string(mesh, spec.elems_in), to_string(mesh, spec.elems_out),
                                to_string(mesh, wanted_in), to_string(mesh, wanted_out));
           });
    for (const PerCoordinate& elems : {spec.elems_in, spec.elems_out}) {
      const bool is_equal = std::none_of(spec.dims.begin(), spec.dims.end(),
                                         [&](int dim) { return contains(elems.dims(), dim); });
      expect(is_equal, FindingCode::CommShape, step, [&] {
        return fmt::format("ranks of one group would send different sizes: {}",
                           to_string(mesh, elems));
      });
    }
    const MeshDims& wanted_dims = gathers || scatters ? bucket.sharded_group.dims
                                  : range != nullptr  ? range->dims
                                  : step.kind == StepKind::AverageWeights ? bucket.average_dims
                                                                          : bucket.all_reduce_dims;
    expect(spec.dims == wanted_dims, FindingCode::CommGroup, step, [&] {
      return fmt::format("over ({}), expected over ({})", mesh.names(spec.dims),
                         mesh.names(wanted_dims));
    });
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
    expect(step.collective == *wanted, FindingCode::CommShape, step, [&] {
      return fmt::format("{} of the {}: its collective is not that of its layouts",
                         name_of(redistribution.transition.op),
                         activation_text(plan_, redistribution));
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
    expect(step.collective == loss_collective(plan_), FindingCode::CommShape, step,
           [] { return "its collective is not that of its layout"; });
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
    const CollectiveSpec& spec = *step.collective;
    expect(spec.op == CollectiveOp::AllReduce && plan_.mesh().size(spec.dims) == num_ranks &&
               spec.group_size == num_ranks && spec.consecutive == 0,
           FindingCode::CommGroup, step, [&] {
             return fmt::format("over {} ranks, the norm is of {}", plan_.mesh().size(spec.dims),
                                num_ranks);
           });
    expect(spec.dtype == DType::Float64, FindingCode::CommDtype, step, [&] {
      return fmt::format("{} on the wire, expected {}", name_of(spec.dtype),
                         name_of(DType::Float64));
    });
    expect(spec.elems_in == 1 && spec.elems_out == 1, FindingCode::CommShape, step, [&] {
      return fmt::format("{} elements in and {} out, expected 1",
                         to_string(plan_.mesh(), spec.elems_in),
                         to_string(plan_.mesh(), spec.elems_out));
    });
    const auto& clip = plan_.scenario.training.clip_grad_norm;
    const bool is_max = clip && std::isinf(clip->norm_type);
    expect(clip && spec.takes_max == is_max && spec.prescale == 1 && spec.scale == 1,
           FindingCode::NormValue, step, [&] {
             return fmt::format("it takes the {} and scales by {}, the norm is a {} and unscaled",
                                spec.takes_max ? "largest" : "sum", spec.prescale * spec.scale,
                                is_max ? "largest" : "sum");
           });
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
