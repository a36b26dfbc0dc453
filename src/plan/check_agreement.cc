#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "plan/activation_part.h"
#include "plan/activation_replay.h"
#include "plan/loss_collective.h"
#include "plan/plan_checks.h"
#include "plan/token_replay.h"

namespace hpsim {
namespace {

/// State of one bucket while the steps are replayed.
struct BucketState {
  bool is_gathered = false;
  std::int64_t backward_left = 0;  ///< modules whose backward is still to come in this step
  bool is_scattered = false;
  bool is_stored = false;
  bool awaits_average = false;  ///< updated, but not averaged with its copies yet
};

/// Replays the steps of a plan, as every rank will run them.
class Replay {
 public:
  explicit Replay(const Plan& plan) : plan_(plan), state_(plan.buckets.size()) {
    const auto& model = plan.scenario.model;
    for (const std::vector<int>& parameters : parameters_of_modules(plan.scenario)) {
      std::vector<int>& buckets = buckets_of_module_.emplace_back();
      for (const int p : parameters) {
        const int bucket = plan.parameter(p).bucket;
        if (buckets.empty() || buckets.back() != bucket) buckets.push_back(bucket);
      }
    }
    for (BucketState& state : state_) {
      const Bucket& bucket = plan.buckets[index_of(state)];
      state.is_gathered = bucket.sharded_group.size == 1;
    }
    if (!model.is_elementwise()) {
      activations_.emplace(plan);
      tokens_.emplace(plan);
    }
    begin_step();
  }

  PlanCheckOutcome run() {
    outcome_.id = CheckId::PlanAgreement;
    for (const Step& step : plan_.steps) {
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

  void begin_step() {
    for (BucketState& state : state_) {
      state.backward_left = 0;
      state.is_scattered = false;
      state.is_stored = false;
    }
    for (const std::vector<int>& buckets : buckets_of_module_) {
      for (const int b : buckets)
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

  void check_collective(const Step& step) {
    const CollectiveSpec& spec = *step.collective;
    const Bucket& bucket = plan_.buckets.at(static_cast<std::size_t>(step.bucket));
    const std::int64_t size = plan_.mesh().size(spec.dims);
    expect(spec.group_size == size && size > 1, FindingCode::CommGroup, step, [&] {
      return fmt::format("groups of {} along {} ranks of the mesh, expected equal and above 1",
                         spec.group_size, size);
    });
    expect(spec.dtype == plan_.scenario.numerics.dtype, FindingCode::CommDtype, step, [&] {
      return fmt::format("{} on the wire, the parameters are {}", name_of(spec.dtype),
                         name_of(plan_.scenario.numerics.dtype));
    });
    const bool gathers = spec.op == CollectiveOp::AllGather;
    const bool scatters = spec.op == CollectiveOp::ReduceScatter;
    const PartialRange* const range =
        step.partial < 0 ? nullptr : &bucket.partials.at(static_cast<std::size_t>(step.partial));
    const PerCoordinate row =
        range == nullptr ? bucket.row_elems : partial_elems(plan_, bucket, *range);
    const PerCoordinate wanted_in = scatters ? bucket.gathered_elems() : row;
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
        expect(!state->is_gathered, kOrder, step, [] { return "it is gathered already"; });
        expect(step.collective.has_value(), FindingCode::CommCount, step,
               [] { return "no all_gather"; });
        state->is_gathered = true;
        break;
      case StepKind::Reshard:
        expect(state->is_gathered, kOrder, step, [] { return "it is not gathered"; });
        state->is_gathered = false;
        break;
      case StepKind::Forward:
      case StepKind::Backward:
        for (const int b : buckets_of_module_.at(static_cast<std::size_t>(step.module))) {
          BucketState& used = state_.at(static_cast<std::size_t>(b));
          expect(used.is_gathered, kOrder, step, [] { return "its parameters are not gathered"; });
          if (averages(used)) expect_averaged(used, step);
          if (step.kind == StepKind::Backward) --used.backward_left;
        }
        break;
      case StepKind::ReduceScatter:
      case StepKind::AllReduce:
      case StepKind::ScaleGradient:
        expect(state->backward_left == 0, kOrder, step, [&] {
          return fmt::format("{} modules still have to add to its gradients", state->backward_left);
        });
        expect(!state->is_stored, kOrder, step, [] { return "its gradients are stored already"; });
        if (step.kind == StepKind::AllReduce) {
          const Bucket& bucket = plan_.buckets[index_of(*state)];
          expect(bucket.scatter_dims.empty() || state->is_scattered, kOrder, step,
                 [] { return "it comes before the reduce-scatter"; });
        }
        if (step.kind == StepKind::ReduceScatter) {
          expect(!state->is_scattered, kOrder, step, [] { return "it was scattered already"; });
          state->is_scattered = true;
        }
        break;
      case StepKind::StoreGradient:
        expect(state->backward_left == 0 && !state->is_stored, kOrder, step,
               [] { return "it is stored before its backward, or twice"; });
        state->is_stored = true;
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
          expect(each.is_stored, FindingCode::CommCount, step, [&] {
            return fmt::format("gradients of bucket {} are not stored", index_of(each));
          });
          expect(each.is_gathered == (bucket.sharded_group.size == 1), kOrder, step, [&] {
            return fmt::format("bucket {} is not sharded outside compute", index_of(each));
          });
        }
        for (BucketState& each : state_)
          each.awaits_average = averages(each);
        begin_step();
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

  const Plan& plan_;
  std::vector<BucketState> state_;
  std::vector<std::vector<int>> buckets_of_module_;
  std::optional<ActivationReplay> activations_;
  std::optional<TokenReplay> tokens_;
  std::vector<std::optional<std::optional<CollectiveSpec>>> redistribution_collectives_;
  PlanCheckOutcome outcome_;
};

}  // namespace

PlanCheckOutcome check_agreement(const Plan& plan) {
  return Replay(plan).run();
}

}  // namespace hpsim
