// Gradients that ranks reduce in micro-batches in which the plan does not.

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <type_traits>
#include <utility>

#include "engine/add.h"
#include "engine/faults/exchange_tools.h"
#include "scenario/gradients.h"

namespace hpsim {
namespace {

/// A reduction of a bucket's gradients at the end of its backward in a micro-batch that only adds
/// up: what the plan does in a later one.
struct Reduction {
  int bucket = -1;
  std::vector<std::int64_t> collectives;  ///< plan steps in which the plan does it
};

/// By plan step: the last backward of the bucket in the micro-batch.
using Reductions = std::multimap<std::int64_t, Reduction>;

/// In which micro-batches a fault reduces.
using IsEarly = bool (*)(const Plan& plan, const Bucket& bucket, std::int64_t micro_batch);

bool ignores_sync_flag(const Plan& plan, const Bucket& /*bucket*/, std::int64_t micro_batch) {
  return !plan.scenario.training.syncs_gradients(micro_batch);
}

bool is_first(const Plan& plan, const Bucket& /*bucket*/, std::int64_t micro_batch) {
  return micro_batch == 0 && !plan.scenario.training.syncs_gradients(0);
}

bool all_reduces_early(const Plan& plan, const Bucket& bucket, std::int64_t micro_batch) {
  const TrainingSpec& training = plan.scenario.training;
  return bucket.scatter_dims.empty() && training.syncs_gradients(micro_batch) &&
         !training.does_all_reduce(micro_batch);
}

/// All of a row's parameters get a gradient in the pass.
bool is_complete(const Plan& plan, const GradientRow& row, const Step& pass) {
  return std::all_of(row.parameters.begin(), row.parameters.end(), [&](int p) {
    return has_gradient(plan.scenario, p, pass.step, pass.micro_batch);
  });
}

/// The next reduction of a row: its reduce-scatter, or all of its all-reduces until it is stored.
std::vector<std::int64_t> next_reduction(const Plan& plan, int row, std::size_t after) {
  std::vector<std::int64_t> collectives;
  for (std::size_t i = after + 1; i < plan.steps.size(); ++i) {
    const Step& step = plan.steps[i];
    if (step.row != row || step.step != plan.steps[after].step) continue;
    if (step.kind == StepKind::StoreGradient) break;
    if (!is_of_gradients(step)) continue;
    collectives.push_back(static_cast<std::int64_t>(i));
    if (is_reduce_scatter(step)) break;
  }
  return collectives;
}

Reductions early_reductions_of(const Plan& plan, const FaultSpec& fault, IsEarly is_early) {
  std::map<std::tuple<std::int64_t, std::int64_t, int>, std::size_t> last;  // step, pass, row
  for (std::size_t i = 0; i < plan.steps.size(); ++i) {
    const Step& step = plan.steps[i];
    if (step.kind != StepKind::Backward) continue;
    for (const int row : step.rows)
      last[{step.step, step.micro_batch, row}] = i;
  }
  Reductions reductions;
  for (const auto& [pass, i] : last) {
    const int row = std::get<2>(pass);
    const Step& step = plan.steps[i];
    const int b = plan.gradient_row(row).bucket;
    const Bucket& bucket = plan.bucket(b);
    if (bucket.is_ignored || !fault.is_in(step.step)) continue;
    if (std::none_of(bucket.parameters.begin(), bucket.parameters.end(),
                     [&](int p) { return is_aimed_at(plan, fault, p); }))
      continue;
    if (!is_early(plan, bucket, step.micro_batch)) continue;
    if (!is_complete(plan, plan.gradient_row(row), step)) continue;
    std::vector<std::int64_t> collectives = next_reduction(plan, row, i);
    if (!collectives.empty())
      reductions.emplace(static_cast<std::int64_t>(i), Reduction{b, std::move(collectives)});
  }
  return reductions;
}

/// Reduces early, and adds up what is reduced.
template <class T, IsEarly is_early>
class EarlyReduction : public AimedFault<T> {
 public:
  EarlyReduction(const Plan& plan, Rank rank, const FaultSpec& fault)
      : AimedFault<T>(plan, rank, fault),
        reductions_(early_reductions_of(plan, fault, is_early)),
        coordinate_(plan.mesh().coordinate_of(rank)) {}

  std::optional<CollectiveCall> more(EngineParts<T>& engine, std::int64_t plan_step) override {
    if (is_open_) finish(engine);
    if (is_done_) return std::nullopt;
    if (!is_begun_) {
      const auto [first, end] = reductions_.equal_range(plan_step);
      if (first == end) return std::nullopt;
      next_ = first;
      end_ = end;
      number_ = 0;
      is_begun_ = true;
    }
    if (next_ == end_) {
      is_done_ = true;
      return std::nullopt;
    }
    is_open_ = true;
    return begin(engine);
  }

  void after(EngineParts<T>& /*engine*/, std::int64_t /*plan_step*/) override {
    is_begun_ = false;
    is_done_ = false;
  }

 protected:
  static constexpr DType kHeld = std::is_same_v<T, float> ? DType::Float32 : DType::Float64;

  /// As the engine scales gradients of a bucket.
  void scale(int bucket, T* data, std::int64_t elems, double factor) const {
    if (factor == 1) return;
    for (std::int64_t i = 0; i < elems; ++i)
      data[i] *= static_cast<T>(factor);
    round_to(this->plan().bucket(bucket).reduce_dtype, data, elems);
  }

  [[nodiscard]] CollectiveCall call(std::int64_t plan_step, const T* input, T* output) const {
    const CollectiveSpec& spec = *this->step_at(plan_step).collective;
    return {.plan_step = plan_step,
            .op = spec.op,
            .dtype = kHeld,
            .input = input,
            .output = output,
            .elems_in = spec.elems_in.at(this->plan().mesh(), coordinate_),
            .elems_out = spec.elems_out.at(this->plan().mesh(), coordinate_),
            .sent_as = spec.dtype};
  }

  [[nodiscard]] const Reductions& reductions() const { return reductions_; }

 private:
  [[nodiscard]] const Step& current() const {
    return this->step_at(next_->second.collectives.at(number_));
  }

  CollectiveCall begin(EngineParts<T>& engine) {
    const Step& step = current();
    const std::int64_t plan_step = next_->second.collectives.at(number_);
    const std::int64_t elems_in = step.collective->elems_in.at(this->plan().mesh(), coordinate_);
    if (is_reduce_scatter(step)) {
      const auto ends = engine.memory.begin_reduce_scatter(step.bucket);
      scale(step.bucket, const_cast<T*>(ends.input), elems_in, step.collective->prescale);
      return call(plan_step, ends.input, ends.output);
    }
    T* const row = engine.memory.row_to_reduce(step.bucket);
    const std::span<T> part = engine.memory.part_of(step.bucket, step.partial, row);
    scale(step.bucket, part.data(), elems_in, step.collective->prescale);
    return call(plan_step, part.data(), part.data());
  }

  void finish(EngineParts<T>& engine) {
    const Step& step = current();
    std::span<T> sum;
    if (is_reduce_scatter(step)) {
      engine.memory.end_reduce_scatter(step.bucket);
      sum = engine.memory.arrived_row(step.bucket);
    } else {
      sum =
          engine.memory.part_of(step.bucket, step.partial, engine.memory.reduced_row(step.bucket));
    }
    const auto elems = static_cast<std::int64_t>(sum.size());
    round_to(step.collective->dtype, sum.data(), elems);
    scale(step.bucket, sum.data(), elems, step.collective->scale);
    if (is_reduce_scatter(step)) static_cast<void>(engine.memory.add_arrived(step.bucket));
    is_open_ = false;
    if (++number_ < next_->second.collectives.size()) return;
    if (!is_reduce_scatter(step)) static_cast<void>(engine.memory.store_gradients(step.bucket));
    number_ = 0;
    ++next_;
  }

  Reductions reductions_;
  Coordinate coordinate_;
  // Of the step at hand.
  Reductions::const_iterator next_;
  Reductions::const_iterator end_;
  std::size_t number_ = 0;  ///< among the collectives of the next reduction
  bool is_begun_ = false;
  bool is_open_ = false;  ///< a collective was asked for
  bool is_done_ = false;
};

/// Reduces the first micro-batch, and never what the later ones add.
template <class T>
class SyncFirst : public EarlyReduction<T, is_first> {
 public:
  SyncFirst(const Plan& plan, Rank rank, const FaultSpec& fault)
      : EarlyReduction<T, is_first>(plan, rank, fault) {
    for (const auto& [plan_step, reduction] : this->reductions())
      left_out_.insert(reduction.collectives.begin(), reduction.collectives.end());
  }

  std::optional<CollectiveCall> change_call(EngineParts<T>& /*engine*/,
                                            const CollectiveCall& call) override {
    if (!left_out_.contains(call.plan_step)) return call;
    keep_own(this->plan(), this->rank(), call);
    return std::nullopt;
  }

 private:
  std::set<std::int64_t> left_out_;
};

/// By plan step of a reduce-scatter: the all-reduce that waits for the last micro-batch.
std::map<std::int64_t, std::int64_t> waiting_all_reduces(const Plan& plan, const FaultSpec& fault) {
  std::map<std::int64_t, std::int64_t> waiting;
  const TrainingSpec& training = plan.scenario.training;
  for (std::size_t i = 0; i < plan.steps.size(); ++i) {
    const Step& scatter = plan.steps[i];
    if (!is_reduce_scatter(scatter) || training.does_all_reduce(scatter.micro_batch)) continue;
    if (!is_aimed_at(plan, fault, scatter)) continue;
    for (std::size_t j = i + 1; j < plan.steps.size(); ++j) {
      const Step& step = plan.steps[j];
      if (!is_all_reduce(step) || step.row != scatter.row || step.step != scatter.step) continue;
      waiting.emplace(static_cast<std::int64_t>(i), static_cast<std::int64_t>(j));
      break;
    }
  }
  return waiting;
}

/// All-reduces what every reduce-scatter brings, and adds that up.
template <class T>
class AllReduceEachMicroBatch : public EarlyReduction<T, all_reduces_early> {
  using Base = EarlyReduction<T, all_reduces_early>;

 public:
  AllReduceEachMicroBatch(const Plan& plan, Rank rank, const FaultSpec& fault)
      : Base(plan, rank, fault), waiting_(waiting_all_reduces(plan, fault)) {}

  std::optional<CollectiveCall> change_call(EngineParts<T>& engine,
                                            const CollectiveCall& call) override {
    scattered_ = waiting_.contains(call.plan_step) ? call.plan_step : -1;
    return Base::change_call(engine, call);
  }

  std::optional<CollectiveCall> more(EngineParts<T>& engine, std::int64_t plan_step) override {
    if (scattered_ < 0) return Base::more(engine, plan_step);
    const std::span<T> arrived = engine.memory.arrived_row(this->step_at(scattered_).bucket);
    return this->call(waiting_.at(std::exchange(scattered_, -1)), arrived.data(), arrived.data());
  }

  void after_exchange(EngineParts<T>& engine, std::int64_t plan_step) override {
    const Step& step = this->step_at(plan_step);
    if (waiting_.contains(plan_step)) {
      const std::span<T> arrived = engine.memory.arrived_row(step.bucket);
      std::vector<T>& sum = sums_[step.bucket];
      sum.resize(arrived.size(), T(0));
      accumulate(arrived.data(), static_cast<std::int64_t>(arrived.size()), sum.data());
      std::fill(arrived.begin(), arrived.end(), T(0));
    } else if (is_all_reduce(step) && sums_.contains(step.bucket)) {
      const std::vector<T>& sum = sums_.at(step.bucket);
      accumulate(sum.data(), static_cast<std::int64_t>(sum.size()),
                 engine.memory.reduced_row(step.bucket));
      sums_.erase(step.bucket);
    }
  }

 private:
  std::map<std::int64_t, std::int64_t> waiting_;
  std::int64_t scattered_ = -1;  ///< reduce-scatter whose all-reduce is yet to come
  std::map<int, std::vector<T>> sums_;
};

template <IsEarly is_early>
bool has_early(const Plan& plan, const FaultSpec& fault) {
  return !early_reductions_of(plan, fault, is_early).empty();
}

bool has_waiting_all_reduce(const Plan& plan, const FaultSpec& fault) {
  return !waiting_all_reduces(plan, fault).empty() || has_early<all_reduces_early>(plan, fault);
}

template <class T>
using IgnoreSyncFlag = EarlyReduction<T, ignores_sync_flag>;

}  // namespace

std::vector<EngineFaultKind> early_reductions() {
  return {
      engine_fault<IgnoreSyncFlag>("ignore_sync_flag", has_early<ignores_sync_flag>),
      engine_fault<SyncFirst>("sync_first", has_early<is_first>),
      engine_fault<AllReduceEachMicroBatch>("all_reduce_each_micro_batch", has_waiting_all_reduce),
  };
}

}  // namespace hpsim
