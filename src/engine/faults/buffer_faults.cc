// Faults of gathered and reduced buffers: what they hold, and how long they live.

#include <algorithm>
#include <map>

#include "engine/faults/fault_tools.h"
#include "scenario/gradients.h"

namespace hpsim {
namespace {

/// Ends an unshard: what is gathered is there.
bool ends_unshard(const Step& step) {
  return step.kind == StepKind::WaitUnshard || (step.kind == StepKind::Unshard && !step.is_async);
}

/// Some parameter of the bucket, of which the rank holds or gathers something, is updated in an
/// optimizer step.
bool is_updated(const Plan& plan, const Bucket& bucket, std::int64_t step) {
  for (const int p : bucket.parameters) {
    if (has_gradient(plan.scenario, p, step)) return true;
  }
  return false;
}

/// What a unit prefetches is what it gathered in the optimizer step before.
template <class T>
class StalePrefetch : public AimedFault<T> {
 public:
  using AimedFault<T>::AimedFault;
  static bool has_place(const Plan& plan, const FaultSpec& fault) {
    return any_plan_step(plan, fault, [&](const Step& step) {
      return step.kind == StepKind::WaitUnshard && step.step > 0 &&
             is_updated(plan, plan.bucket(step.bucket), step.step - 1) &&
             any_rank(plan, fault, [&](const Coordinate& coordinate) {
               return plan.bucket(step.bucket).row_elems.at(plan.mesh(), coordinate) > 0;
             });
    });
  }

  void after_exchange(EngineParts<T>& engine, std::int64_t plan_step) override {
    const Step& step = this->step_at(plan_step);
    if (!ends_unshard(step)) return;
    Gathered& last = gathered_[step.bucket];
    const std::span<T> now = engine.memory.contents(step.bucket).gathered;
    if (step.step > last.step) {
      last.before = std::move(last.content);
      last.content.assign(now.begin(), now.end());
      last.step = step.step;
    }
    const bool is_prefetched = step.kind == StepKind::WaitUnshard;
    if (is_prefetched && this->is_aimed_at_bucket(step) && last.before.size() == now.size())
      std::copy(last.before.begin(), last.before.end(), now.begin());
  }

 private:
  struct Gathered {
    std::int64_t step = -1;  ///< optimizer step
    std::vector<T> content;  ///< in it
    std::vector<T> before;   ///< in the one before
  };
  std::map<int, Gathered> gathered_;  ///< by bucket
};

/// Memory that a step should have given back, and that is never given back.
template <class T>
class KeptMemory : public AimedFault<T> {
 public:
  using AimedFault<T>::AimedFault;

 protected:
  void keep(EngineParts<T>& engine, std::int64_t plan_step, MemoryKind kind, DType dtype,
            std::int64_t elems) {
    kept_.push_back(engine.memory.take(kind, dtype, elems));
    record_memory(engine, plan_step);
  }

 private:
  std::vector<Buffer<T>> kept_;
};

/// The row that a reduce-scatter left is never given back.
template <class T>
class ReducedRowKept : public KeptMemory<T> {
 public:
  using KeptMemory<T>::KeptMemory;
  static bool has_place(const Plan& plan, const FaultSpec& fault) {
    return any_plan_step(plan, fault, [&](const Step& step) {
      return is_at(step) && any_rank(plan, fault, [&](const Coordinate& coordinate) {
               return plan.gradient_row(step.row).row_elems.at(plan.mesh(), coordinate) > 0;
             });
    });
  }

  void after(EngineParts<T>& engine, std::int64_t plan_step) override {
    const Step& step = this->step_at(plan_step);
    if (!is_at(step) || !this->is_aimed_at_bucket(step)) return;
    this->keep(engine, plan_step, MemoryKind::ReduceBuffers,
               this->plan().bucket(step.bucket).reduce_dtype,
               this->at(this->plan().gradient_row(step.row).row_elems));
  }

 private:
  static bool is_at(const Step& step) { return step.kind == StepKind::ReduceScatter; }
};

/// The part of the whole that a rank keeps between forward and backward is kept for good.
template <class T>
class PostForwardShardKept : public KeptMemory<T> {
 public:
  using KeptMemory<T>::KeptMemory;
  static bool has_place(const Plan& plan, const FaultSpec& fault) {
    return any_plan_step(plan, fault, [&](const Step& step) {
      return is_at(plan, step) && any_rank(plan, fault, [&](const Coordinate& coordinate) {
               return plan.bucket(step.bucket).row_elems.at(plan.mesh(), coordinate) > 0;
             });
    });
  }

  void after(EngineParts<T>& engine, std::int64_t plan_step) override {
    const Step& step = this->step_at(plan_step);
    if (!is_at(this->plan(), step) || !this->is_aimed_at_bucket(step)) return;
    const Bucket& bucket = this->plan().bucket(step.bucket);
    this->keep(engine, plan_step, MemoryKind::UnshardedParameters, bucket.dtype,
               this->at(bucket.gathered_elems()) / bucket.post_forward_size);
  }

 private:
  static bool is_at(const Plan& plan, const Step& step) {
    return ends_unshard(step) && step.phase == Phase::Backward &&
           plan.bucket(step.bucket).post_forward_size > 0;
  }
};

/// Averaged weights are their sum.
template <class T>
class AverageAsSum : public AimedFault<T> {
 public:
  using AimedFault<T>::AimedFault;
  static bool has_place(const Plan& plan, const FaultSpec& fault) {
    return any_plan_step(plan, fault, [&](const Step& step) {
      return is_at(step) && any_rank(plan, fault, [&](const Coordinate& coordinate) {
               return plan.gradient_row(step.row).row_elems.at(plan.mesh(), coordinate) > 0;
             });
    });
  }

  void after_exchange(EngineParts<T>& engine, std::int64_t plan_step) override {
    const Step& step = this->step_at(plan_step);
    if (!is_at(step) || !this->is_aimed_at_bucket(step)) return;
    for (T& weight : engine.memory.averaged(step.row))
      weight *= static_cast<T>(step.collective->group_size);
  }

 private:
  static bool is_at(const Step& step) {
    return step.kind == StepKind::AverageWeights && step.collective.has_value();
  }
};

}  // namespace

std::vector<EngineFaultKind> buffer_fault_kinds() {
  return {
      engine_fault<StalePrefetch>("stale_prefetch"),
      engine_fault<ReducedRowKept>("reduced_row_kept"),
      engine_fault<PostForwardShardKept>("post_forward_shard_kept"),
      engine_fault<AverageAsSum>("average_weights_as_sum"),
  };
}

}  // namespace hpsim
