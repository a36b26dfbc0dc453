#include "engine/rank_engine.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/check.h"
#include "engine/exactness.h"
#include "engine/faults/engine_fault.h"
#include "engine/local_model.h"
#include "engine/optimizers.h"
#include "engine/rank_memory.h"
#include "engine/rank_optimizer.h"
#include "plan/token_exchange.h"
#include "scenario/precision.h"

namespace hpsim {
namespace {

template <class T>
void scale_in_place(T* data, std::int64_t elems, double factor) {
  if (factor == 1) return;
  const T rounded = static_cast<T>(factor);
  for (std::int64_t i = 0; i < elems; ++i)
    data[i] *= rounded;
}

/// Sum of |x|^p, or the largest |x| for infinity.
template <class T>
double norm_power(const T* data, std::int64_t elems, double p) {
  double power = 0;
  for (std::int64_t i = 0; i < elems; ++i) {
    const double size = std::abs(static_cast<double>(data[i]));
    if (std::isinf(p)) {
      power = std::max(power, size);
    } else {
      power += std::pow(size, p);
    }
  }
  return power;
}

template <class T>
double sum_of_squares(const T* data, std::int64_t elems) {
  // Eight partial sums, so that the loop is not bound by the latency of one addition.
  std::array<double, 8> partial{};
  std::int64_t i = 0;
  for (; i + 8 <= elems; i += 8) {
    for (std::size_t j = 0; j < 8; ++j) {
      const auto value = static_cast<double>(data[i + static_cast<std::int64_t>(j)]);
      partial[j] += value * value;
    }
  }
  for (; i < elems; ++i)
    partial[0] += static_cast<double>(data[i]) * static_cast<double>(data[i]);
  double sum = 0;
  for (const double part : partial)
    sum += part;
  return sum;
}

template <class T>
class RankEngineOf : public RankEngine {
  /// The dtype in which this rank holds numbers of all dtypes.
  static constexpr DType kHeld = std::is_same_v<T, float> ? DType::Float32 : DType::Float64;

 public:
  RankEngineOf(const Plan& plan, Rank rank, RunResult& result, SharedParameters* shared)
      : plan_(plan),
        norm_type_(plan.scenario.training.clip_grad_norm
                       ? plan.scenario.training.clip_grad_norm->norm_type
                       : 2),
        is_emulated_(is_emulated(plan.scenario)),
        rank_(rank),
        coordinate_(plan.mesh().coordinate_of(rank)),
        result_(result),
        record_(result.rank_record(rank)),
        memory_(plan, rank, result),
        arithmetic_(plan.scenario.is_exact(), rank, result),
        optimizer_(plan, memory_, arithmetic_),
        model_(plan.scenario.model.is_elementwise()
                   ? make_elementwise_model<T>(plan, rank, memory_, arithmetic_)
                   : make_module_model<T>(plan, rank, memory_, arithmetic_)),
        experts_modules_(experts_modules(plan.scenario.model)) {
    if (result.layout().records_events()) events_ = result.memory_events(rank);
    memory_.make_parameters(shared == nullptr ? nullptr : &shared->of<T>());
    for (int p = 0; p < num_parameters(); ++p)
      record_parameter(0, p);
  }

  [[nodiscard]] RankMemory<T>& memory() { return memory_; }
  [[nodiscard]] EngineParts<T> parts() {
    return {plan_, rank_, result_, memory_, *model_, norm_on_wire_, optimizer_};
  }

  std::optional<CollectiveCall> begin(std::int64_t plan_step) override {
    const Step& step = step_at(plan_step);
    enter(step);
    record_.ledger.begin_event();
    switch (step.kind) {
      case StepKind::Unshard: {
        const auto ends = memory_.begin_unshard(step.bucket);
        if (step.collective) return call(plan_step, ends.input, ends.output);
        break;
      }
      case StepKind::WaitUnshard:
        memory_.expect_pending(step.bucket);
        break;
      case StepKind::Reshard:
        memory_.reshard(step.bucket, step.phase == Phase::Forward &&
                                         plan_.bucket(step.bucket).post_forward_size > 0);
        break;
      case StepKind::Redistribute: {
        const auto ends = model_->begin_redistribute(step);
        if (step.collective) return call(plan_step, ends.input, ends.output);
        break;
      }
      case StepKind::Route:
      case StepKind::Dispatch:
      case StepKind::Combine:
        return token_call(plan_step, model_->begin_tokens(step));
      case StepKind::Forward:
        model_->forward(step);
        record_routing(step);
        break;
      case StepKind::Loss: {
        const auto ends = model_->begin_loss();
        if (step.collective) return call(plan_step, ends.input, ends.output);
        break;
      }
      case StepKind::Backward:
        memory_.begin_gradients(step);
        model_->backward(step);
        arithmetic_.run([&] { arithmetic_.note(memory_.end_gradients(step)); });
        break;
      case StepKind::ReduceScatter: {
        const auto ends = memory_.begin_reduce_scatter(step.bucket);
        // The gradients are this rank's own until they are sent.
        scale(step.bucket, const_cast<T*>(ends.input), elems_of(step.collective->elems_in),
              step.collective->prescale);
        return call(plan_step, ends.input, ends.output);
      }
      case StepKind::AllReduce: {
        T* const row = memory_.row_to_reduce(step.bucket);
        const std::span<T> part = memory_.part_of(step.bucket, step.partial, row);
        scale(step.bucket, part.data(), static_cast<std::int64_t>(part.size()),
              step.collective->prescale);
        return call(plan_step, part.data(), part.data());
      }
      case StepKind::ScaleGradient: {
        T* const row = memory_.row_to_reduce(step.bucket);
        scale(step.bucket, row, memory_.row_elems(step.bucket), step.local_scale);
        break;
      }
      case StepKind::StoreGradient:
        arithmetic_.run([&] { arithmetic_.note(memory_.store_gradients(step.bucket)); });
        break;
      case StepKind::ClipGradients:
        record_norm();
        norm_on_wire_ = record_of(step_).norm_power;
        if (step.collective) return norm_call(plan_step);
        break;
      case StepKind::Optimizer:
        optimize();
        break;
      case StepKind::AverageWeights: {
        const std::span<T> row = memory_.begin_average(step.row);
        scale(row.data(), static_cast<std::int64_t>(row.size()), step.collective->prescale);
        return call(plan_step, row.data(), row.data());
      }
    }
    return std::nullopt;
  }

  void finish(std::int64_t plan_step) override {
    const Step& step = step_at(plan_step);
    const bool ends_unshard = step.kind == StepKind::Unshard && !step.is_async;
    if (ends_unshard || step.kind == StepKind::WaitUnshard) memory_.end_unshard(step.bucket);
    if (moves_tokens(step.kind)) model_->finish_tokens(step);
    if (step.kind == StepKind::Loss) record_losses(model_->finish_loss());
    if (step.kind == StepKind::Redistribute) model_->finish_redistribute(step);
    if (step.kind == StepKind::ReduceScatter) {
      memory_.end_reduce_scatter(step.bucket);
      finish_sum(step, memory_.arrived_row(step.bucket));
      arithmetic_.run([&] { arithmetic_.note(memory_.add_arrived(step.bucket)); });
    }
    if (step.kind == StepKind::AllReduce) {
      finish_sum(step,
                 memory_.part_of(step.bucket, step.partial, memory_.reduced_row(step.bucket)));
    }
    if (step.kind == StepKind::ClipGradients) clip();
    if (step.kind == StepKind::AverageWeights) {
      const std::span<T> row = memory_.averaged(step.row);
      scale(row.data(), static_cast<std::int64_t>(row.size()), step.collective->scale);
      memory_.end_average(step.row);
      for (const int p : plan_.gradient_row(step.row).parameters)
        end_update(p);
    }
    if (!events_.empty()) events_[static_cast<std::size_t>(plan_step)] = record_.ledger.event();
    if (plan_step + 1 == static_cast<std::int64_t>(plan_.steps.size())) record_.done = 1;
  }

 private:
  [[nodiscard]] const Step& step_at(std::int64_t plan_step) const {
    return plan_.steps.at(static_cast<std::size_t>(plan_step));
  }
  [[nodiscard]] std::int64_t elems_of(const PerCoordinate& elems) const {
    return elems.at(plan_.mesh(), coordinate_);
  }
  [[nodiscard]] int num_parameters() const { return static_cast<int>(plan_.parameters.size()); }

  [[nodiscard]] StepRecord& record_of(std::int64_t step) {
    return result_.step_record(rank_, step);
  }

  void enter(const Step& step) {
    step_ = step.step;
    memory_.enter_step(step.step);
    arithmetic_.enter_step(step.step);
    model_->enter_pass({step.step, step.micro_batch});
  }

  void scale(T* data, std::int64_t elems, double factor) {
    arithmetic_.run([&] { scale_in_place(data, elems, factor); });
  }
  /// Gradients of a bucket, in the dtype of its reductions.
  void scale(int bucket, T* data, std::int64_t elems, double factor) {
    if (factor == 1) return;
    scale(data, elems, factor);
    arithmetic_.round(plan_.bucket(bucket).reduce_dtype, data, elems);
  }
  /// What a reduction left: the sum is rounded to its dtype, and what the scale makes of it.
  void finish_sum(const Step& step, const std::span<T>& sum) {
    const auto elems = static_cast<std::int64_t>(sum.size());
    arithmetic_.round(step.collective->dtype, sum.data(), elems);
    scale(step.bucket, sum.data(), elems, step.collective->scale);
  }

  /// Whether what is sent has the dtype that the plan says.
  void check_wire(std::int64_t plan_step, const T* input, std::int64_t elems) {
    if (!is_emulated_) return;
    const DType dtype = step_at(plan_step).collective->dtype;
    record_.wire_checked += elems;
    const std::int64_t foreign = count_foreign(dtype, input, elems);
    if (foreign > 0 && record_.wire_foreign == 0) record_.first_foreign = plan_step;
    record_.wire_foreign += foreign;
  }

  [[nodiscard]] CollectiveCall call(std::int64_t plan_step, const T* input, T* output) {
    const CollectiveSpec& spec = *step_at(plan_step).collective;
    check_wire(plan_step, input, elems_of(spec.elems_in));
    return {.plan_step = plan_step,
            .op = spec.op,
            .dtype = kHeld,
            .input = input,
            .output = output,
            .elems_in = elems_of(spec.elems_in),
            .elems_out = elems_of(spec.elems_out),
            .takes_max = spec.takes_max,
            .sent_as = spec.dtype};
  }

  [[nodiscard]] CollectiveCall norm_call(std::int64_t plan_step) {
    const CollectiveSpec& spec = *step_at(plan_step).collective;
    return {.plan_step = plan_step,
            .op = spec.op,
            .dtype = DType::Float64,
            .input = &norm_on_wire_,
            .output = &norm_on_wire_,
            .elems_in = 1,
            .elems_out = 1,
            .takes_max = spec.takes_max,
            .sent_as = spec.dtype};
  }

  [[nodiscard]] CollectiveCall token_call(std::int64_t plan_step, const TokenEnds& ends) {
    const CollectiveSpec& spec = *step_at(plan_step).collective;
    const bool is_of_counts = spec.dtype == DType::Int64;
    if (!is_of_counts) check_wire(plan_step, static_cast<const T*>(ends.input), ends.elems_in);
    return {.plan_step = plan_step,
            .op = spec.op,
            .dtype = is_of_counts ? spec.dtype : kHeld,
            .input = ends.input,
            .output = ends.output,
            .elems_in = ends.elems_in,
            .elems_out = ends.elems_out,
            .counts_in = ends.counts_in,
            .counts_out = ends.counts_out,
            .sent_as = spec.dtype};
  }

  /// Of an experts module. What is computed again is routed as before.
  void record_routing(const Step& step) {
    const auto found = std::find(experts_modules_.begin(), experts_modules_.end(), step.module);
    if (found == experts_modules_.end()) return;
    const std::vector<std::int64_t> counts = model_->routed_counts(step.module);
    std::int64_t* const recorded = result_.routed(
        rank_, pass_of(plan_.scenario, step), static_cast<int>(found - experts_modules_.begin()));
    HPSIM_CHECK(!step.is_recomputed || std::equal(counts.begin(), counts.end(), recorded),
                "\"{}\" routes other positions when it is computed again",
                module_name(plan_.scenario.model, step.module));
    std::copy(counts.begin(), counts.end(), recorded);
  }

  void record_losses(const std::vector<T>& terms) {
    HPSIM_CHECK(static_cast<std::int64_t>(terms.size()) == result_.layout().num_loss_terms(),
                "{} loss terms", terms.size());
    double* const losses = result_.losses(rank_, step_);
    for (std::size_t i = 0; i < terms.size(); ++i)
      losses[i] += static_cast<double>(terms[i]);
  }

  /// This rank's part of the norm: what its gradients add, over their copies.
  void record_norm() {
    double& power = record_of(step_).norm_power;
    power = 0;
    for (int p = 0; p < num_parameters(); ++p) {
      const T* const gradient = memory_.gradient(p);
      if (gradient == nullptr || !plan_.averaged_dims(p).empty()) continue;
      const std::int64_t elems = memory_.shard_elems(p);
      if (std::isinf(norm_type_)) {
        power = std::max(power, norm_power(gradient, elems, norm_type_));
        continue;
      }
      // All ranks that differ along other dims hold copies of this shard.
      const Mesh& mesh = plan_.mesh();
      const std::int64_t num_shards = mesh.size(plan_.parameter(p).cut_dims());
      const auto copies = static_cast<double>(mesh.num_ranks() / num_shards);
      power += (norm_type_ == 2 ? sum_of_squares(gradient, elems)
                                : norm_power(gradient, elems, norm_type_)) /
               copies;
    }
  }

  /// torch.nn.utils.clip_grad_norm_, with the norm of all ranks.
  void clip() {
    const ClipSpec& spec = *plan_.scenario.training.clip_grad_norm;
    const double norm =
        std::isinf(norm_type_) ? norm_on_wire_ : std::pow(norm_on_wire_, 1 / norm_type_);
    record_of(step_).clip_norm = norm;
    const double factor = std::min(1.0, spec.max_norm / (norm + 1e-6));
    for (int p = 0; p < num_parameters(); ++p) {
      T* const gradient = memory_.gradient(p);
      if (gradient == nullptr) continue;
      record_gradient(p);
      scale(gradient, memory_.shard_elems(p), factor);
      round_to(plan_.parameter(p).dtype, gradient, memory_.shard_elems(p));
    }
  }

  void optimize() {
    const bool is_clipped = plan_.scenario.training.clip_grad_norm.has_value();
    if (!is_clipped) record_norm();
    for (int p = 0; p < num_parameters(); ++p) {
      const T* const gradient = memory_.gradient(p);
      if (gradient != nullptr) {
        if (!is_clipped) record_gradient(p);
        optimizer_.update(p, gradient);
      }
      record_states(p);
      if (gradient == nullptr || plan_.averaged_dims(p).empty()) end_update(p);
    }
    memory_.drop_gradients();
    record_of(step_).live_after = record_.ledger.live();
  }

  /// The weights are what all copies agree on: only now exact mode rounds them.
  void end_update(int p) {
    round_weights(optimizer_.spec(), memory_.shard(p), memory_.shard_elems(p));
    arithmetic_.round(plan_.parameter(p).dtype, memory_.shard(p), memory_.shard_elems(p));
    record_parameter(step_ + 1, p);
  }

  void record(std::int64_t offset, const T* data, std::int64_t elems) {
    if (elems == 0) return;
    std::memcpy(result_.bytes(offset), data, static_cast<std::size_t>(elems) * sizeof(T));
  }

  void record_parameter(std::int64_t time, int p) {
    const ResultLayout& layout = result_.layout();
    if (!layout.records_tensors()) return;
    record(layout.parameter(rank_, time, p), memory_.shard(p), memory_.shard_elems(p));
  }

  /// Of a shard, before it is clipped.
  void record_gradient(int p) {
    const ResultLayout& layout = result_.layout();
    if (!layout.records_tensors()) return;
    record(layout.gradient(rank_, step_, p), memory_.gradient(p), memory_.shard_elems(p));
  }

  /// Of a parameter that was never updated: zeros.
  void record_states(int p) {
    const ResultLayout& layout = result_.layout();
    if (!layout.records_tensors()) return;
    for (int state = 0; state < optimizer_.num_states(); ++state) {
      const T* const tensor = optimizer_.state(state, p).data();
      if (tensor == nullptr) continue;
      record(layout.state(rank_, step_, state, p), tensor, memory_.shard_elems(p));
    }
  }

  const Plan& plan_;
  double norm_type_;
  bool is_emulated_;
  Rank rank_;
  Coordinate coordinate_;
  RunResult& result_;
  RankRecord& record_;
  RankMemory<T> memory_;
  std::span<MemoryEvent> events_;  ///< per step of the plan, empty where none are recorded
  ExactArithmetic arithmetic_;
  RankOptimizer<T> optimizer_;  ///< holds all parameters before they are made
  std::unique_ptr<LocalModel<T>> model_;
  std::vector<int> experts_modules_;
  std::int64_t step_ = 0;  ///< optimizer step
  double norm_on_wire_ = 0;
};

std::unique_ptr<RankEngine> make_engine(const Plan& plan, Rank rank, RunResult& result,
                                        SharedParameters* shared, bool has_faults) {
  const auto make = [&]<class T>(T) -> std::unique_ptr<RankEngine> {
    auto engine = std::make_unique<RankEngineOf<T>>(plan, rank, result, shared);
    return has_faults ? with_engine_faults<T>(std::move(engine), plan, rank) : std::move(engine);
  };
  return carrier_dtype(plan.scenario) == DType::Float64 ? make(double{}) : make(float{});
}

}  // namespace

std::unique_ptr<RankEngine> make_rank_engine(const VerifiedPlan& plan, Rank rank, RunResult& result,
                                             SharedParameters* shared) {
  return make_engine(*plan, rank, result, shared, false);
}

std::unique_ptr<RankEngine> make_rank_engine(const ExecutedPlan& plan, Rank rank, RunResult& result,
                                             SharedParameters* shared) {
  const bool is_shared = plan.is_verified(rank);
  return make_engine(plan.of(rank), rank, result, is_shared ? shared : nullptr, true);
}

template <class T>
RankMemory<T>& memory_of(RankEngine& engine) {
  return dynamic_cast<RankEngineOf<T>&>(engine).memory();
}

template <class T>
EngineParts<T> parts_of(RankEngine& engine) {
  return dynamic_cast<RankEngineOf<T>&>(engine).parts();
}

template RankMemory<float>& memory_of(RankEngine&);
template RankMemory<double>& memory_of(RankEngine&);
template EngineParts<float> parts_of(RankEngine&);
template EngineParts<double> parts_of(RankEngine&);

}  // namespace hpsim
