#include "engine/rank_engine.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include "base/check.h"
#include "engine/exactness.h"
#include "engine/local_model.h"
#include "engine/optimizers.h"
#include "engine/rank_memory.h"

namespace hpsim {
namespace {

template <class T>
void scale_in_place(T* data, std::int64_t elems, double factor) {
  if (factor == 1) return;
  const T rounded = static_cast<T>(factor);
  for (std::int64_t i = 0; i < elems; ++i)
    data[i] *= rounded;
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
 public:
  RankEngineOf(const VerifiedPlan& plan, Rank rank, RunResult& result)
      : plan_(*plan),
        optimizer_(plan->scenario.training.optimizer),
        rank_(rank),
        coordinate_(plan->mesh().coordinate_of(rank)),
        result_(result),
        record_(result.rank_record(rank)),
        memory_(*plan, rank, result),
        arithmetic_(plan->scenario.is_exact(), rank, result),
        model_(plan->scenario.model.is_elementwise()
                   ? make_elementwise_model<T>(*plan, rank, memory_, arithmetic_)
                   : make_module_model<T>(*plan, rank, memory_, arithmetic_)),
        experts_modules_(experts_modules(plan->scenario.model)),
        states_(static_cast<std::size_t>(optimizer_.num_state_tensors())) {
    for (auto& tensors : states_)
      tensors.resize(plan_.parameters.size());
    for (int p = 0; p < num_parameters(); ++p)
      record_parameter(0, p);
  }

  std::optional<CollectiveCall> begin(std::int64_t plan_step) override {
    const Step& step = step_at(plan_step);
    enter(step.step);
    switch (step.kind) {
      case StepKind::Unshard: {
        const auto ends = memory_.begin_unshard(step.bucket);
        return call(plan_step, ends.input, ends.output);
      }
      case StepKind::Reshard:
        memory_.reshard(step.bucket);
        break;
      case StepKind::Redistribute: {
        const auto ends = model_->begin_redistribute(step.redistribution);
        if (step.collective) return call(plan_step, ends.input, ends.output);
        break;
      }
      case StepKind::Route:
      case StepKind::Dispatch:
      case StepKind::Combine:
        return token_call(plan_step, model_->begin_tokens(step));
      case StepKind::Forward:
        model_->forward(step.module);
        record_routing(step.module);
        break;
      case StepKind::Loss: {
        const auto ends = model_->begin_loss();
        if (step.collective) return call(plan_step, ends.input, ends.output);
        break;
      }
      case StepKind::Backward:
        memory_.begin_gradients(step.module);
        model_->backward(step.module);
        break;
      case StepKind::ReduceScatter: {
        const auto ends = memory_.begin_reduce_scatter(step.bucket);
        // The gradients are this rank's own until they are sent.
        scale(const_cast<T*>(ends.input), elems_of(step.collective->elems_in),
              step.collective->prescale);
        return call(plan_step, ends.input, ends.output);
      }
      case StepKind::AllReduce: {
        T* const row = memory_.row_to_reduce(step.bucket);
        const std::span<T> part = memory_.part_of(step.bucket, step.partial, row);
        scale(part.data(), static_cast<std::int64_t>(part.size()), step.collective->prescale);
        return call(plan_step, part.data(), part.data());
      }
      case StepKind::ScaleGradient:
        scale(memory_.row_to_reduce(step.bucket), memory_.row_elems(step.bucket), step.local_scale);
        break;
      case StepKind::StoreGradient:
        memory_.store_gradients(step.bucket);
        break;
      case StepKind::Optimizer:
        optimize();
        break;
      case StepKind::AverageWeights: {
        T* const row = memory_.weights_to_average(step.bucket);
        scale(row, memory_.row_elems(step.bucket), step.collective->prescale);
        return call(plan_step, row, row);
      }
    }
    return std::nullopt;
  }

  void finish(std::int64_t plan_step) override {
    const Step& step = step_at(plan_step);
    if (step.kind == StepKind::Unshard) memory_.end_unshard(step.bucket);
    if (moves_tokens(step.kind)) model_->finish_tokens(step);
    if (step.kind == StepKind::Loss) record_losses(model_->finish_loss());
    if (step.kind == StepKind::Redistribute) model_->finish_redistribute(step.redistribution);
    if (step.kind == StepKind::ReduceScatter) memory_.end_reduce_scatter(step.bucket);
    if (step.kind == StepKind::ReduceScatter || step.kind == StepKind::AllReduce) {
      const std::span<T> part =
          memory_.part_of(step.bucket, step.partial, memory_.reduced_row(step.bucket));
      scale(part.data(), static_cast<std::int64_t>(part.size()), step.collective->scale);
    }
    if (step.kind == StepKind::AverageWeights) {
      scale(memory_.weights_to_average(step.bucket), memory_.row_elems(step.bucket),
            step.collective->scale);
      for (const int p : plan_.bucket(step.bucket).parameters)
        end_update(p);
    }
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

  void enter(std::int64_t step) {
    step_ = step;
    memory_.enter_step(step);
    arithmetic_.enter_step(step);
    model_->enter_step(step);
  }

  void scale(T* data, std::int64_t elems, double factor) {
    arithmetic_.run([&] { scale_in_place(data, elems, factor); });
  }

  [[nodiscard]] CollectiveCall call(std::int64_t plan_step, const T* input, T* output) const {
    const CollectiveSpec& spec = *step_at(plan_step).collective;
    return {.plan_step = plan_step,
            .op = spec.op,
            .dtype = spec.dtype,
            .input = input,
            .output = output,
            .elems_in = elems_of(spec.elems_in),
            .elems_out = elems_of(spec.elems_out)};
  }

  [[nodiscard]] CollectiveCall token_call(std::int64_t plan_step, const TokenEnds& ends) const {
    const CollectiveSpec& spec = *step_at(plan_step).collective;
    return {.plan_step = plan_step,
            .op = spec.op,
            .dtype = spec.dtype,
            .input = ends.input,
            .output = ends.output,
            .elems_in = ends.elems_in,
            .elems_out = ends.elems_out,
            .counts_in = ends.counts_in,
            .counts_out = ends.counts_out};
  }

  /// Of an experts module.
  void record_routing(int module) {
    const auto found = std::find(experts_modules_.begin(), experts_modules_.end(), module);
    if (found == experts_modules_.end()) return;
    const std::vector<std::int64_t> counts = model_->routed_counts(module);
    std::copy(counts.begin(), counts.end(),
              result_.routed(rank_, step_, static_cast<int>(found - experts_modules_.begin())));
  }

  void record_losses(const std::vector<T>& terms) {
    HPSIM_CHECK(static_cast<std::int64_t>(terms.size()) == result_.layout().num_loss_terms(),
                "{} loss terms", terms.size());
    std::copy(terms.begin(), terms.end(), result_.losses(rank_, step_));
  }

  void optimize() {
    StepRecord& step_record = result_.step_record(rank_, step_);
    for (int p = 0; p < num_parameters(); ++p) {
      const std::int64_t elems = memory_.shard_elems(p);
      OptimizedShard<T> shard{.weight = memory_.shard(p),
                              .gradient = memory_.gradient(p),
                              .state = states_of(p),
                              .elems = elems};
      const bool is_averaged = !plan_.averaged_dims(p).empty();
      if (!is_averaged) {
        // All ranks that differ along other dims hold copies of this shard.
        const Mesh& mesh = plan_.mesh();
        const std::int64_t num_shards = mesh.size(plan_.parameter(p).cut_dims());
        const auto copies = static_cast<double>(mesh.num_ranks() / num_shards);
        step_record.norm_square += sum_of_squares(shard.gradient, elems) / copies;
      }
      arithmetic_.run([&] { optimizer_update(optimizer_, step_, shard); });
      record_gradient(p);
      if (!is_averaged) end_update(p);
    }
    memory_.drop_gradients();
    step_record.live_after = record_.ledger.live();
  }

  /// The weights are what all copies agree on: only now exact mode rounds them.
  void end_update(int p) {
    round_weights(optimizer_, memory_.shard(p), memory_.shard_elems(p));
    record_parameter(step_ + 1, p);
  }

  /// The state tensors of a parameter's shard; zeros from the first update on.
  [[nodiscard]] std::array<T*, 2> states_of(int p) {
    std::array<T*, 2> tensors{};
    for (std::size_t s = 0; s < states_.size(); ++s) {
      Buffer<T>& state = states_[s][static_cast<std::size_t>(p)];
      if (state.data() == nullptr) {
        state = memory_.take(MemoryKind::OptimizerState, memory_.shard_elems(p));
        std::fill_n(state.data(), memory_.shard_elems(p), T(0));
      }
      tensors[s] = state.data();
    }
    return tensors;
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

  /// Records the gradient of a shard, and the optimizer state that it led to.
  void record_gradient(int p) {
    const ResultLayout& layout = result_.layout();
    if (!layout.records_tensors()) return;
    const std::int64_t elems = memory_.shard_elems(p);
    record(layout.gradient(rank_, step_, p), memory_.gradient(p), elems);
    for (std::size_t s = 0; s < states_.size(); ++s) {
      record(layout.state(rank_, step_, static_cast<int>(s), p),
             states_[s][static_cast<std::size_t>(p)].data(), elems);
    }
  }

  const Plan& plan_;
  const OptimizerSpec& optimizer_;
  Rank rank_;
  Coordinate coordinate_;
  RunResult& result_;
  RankRecord& record_;
  RankMemory<T> memory_;
  ExactArithmetic arithmetic_;
  std::unique_ptr<LocalModel<T>> model_;
  std::vector<int> experts_modules_;
  std::int64_t step_ = 0;                       ///< optimizer step
  std::vector<std::vector<Buffer<T>>> states_;  ///< [state tensor][parameter]
};

}  // namespace

std::unique_ptr<RankEngine> make_rank_engine(const VerifiedPlan& plan, Rank rank,
                                             RunResult& result) {
  if (plan->scenario.numerics.dtype == DType::Float64) {
    return std::make_unique<RankEngineOf<double>>(plan, rank, result);
  }
  HPSIM_CHECK(plan->scenario.numerics.dtype == DType::Float32, "no engine computes in {}",
              name_of(plan->scenario.numerics.dtype));
  return std::make_unique<RankEngineOf<float>>(plan, rank, result);
}

}  // namespace hpsim
