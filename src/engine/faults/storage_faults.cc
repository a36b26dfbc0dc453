// Faults of the memory in which shards, padding and gathered parameters lie.

#include <algorithm>
#include <map>
#include <utility>

#include "engine/faults/fault_tools.h"
#include "plan/rank_layout.h"
#include "scenario/gradients.h"

namespace hpsim {
namespace {

/// Elements behind the true shard in its slot.
std::int64_t padding_elems(const Plan& plan, int p, Rank rank) {
  const Coordinate coordinate = plan.mesh().coordinate_of(rank);
  return plan.parameter(p).padded_elems.at(plan.mesh(), coordinate) - held_elems(plan, p, rank);
}

/// Whether the padding of a parameter is sent, gathered with its shard, on an aimed rank.
bool sends_padding(const Plan& plan, const FaultSpec& fault, int p) {
  if (plan.parameter(p).shard_size() < 2) return false;
  for (std::int64_t rank = 0; rank < plan.mesh().num_ranks(); ++rank) {
    if (fault.is_of(Rank{rank}) && padding_elems(plan, p, Rank{rank}) > 0) return true;
  }
  return false;
}

/// Whether the parameter's bucket is gathered in an optimizer step.
bool is_gathered_in(const Plan& plan, int p, std::int64_t optimizer_step) {
  const int bucket = plan.parameter(p).bucket;
  return std::any_of(plan.steps.begin(), plan.steps.end(), [&](const Step& step) {
    return step.kind == StepKind::Unshard && step.bucket == bucket && step.collective &&
           step.step == optimizer_step;
  });
}

template <class T>
class PaddingFault : public AimedFault<T> {
 public:
  using AimedFault<T>::AimedFault;

 protected:
  void fill_padding(EngineParts<T>& engine) {
    for (const int p : this->parameters()) {
      const std::int64_t elems = padding_elems(this->plan(), p, this->rank());
      if (elems > 0 && this->plan().parameter(p).shard_size() > 1)
        std::fill_n(engine.memory.shard(p) + engine.memory.shard_elems(p), elems, T(1));
    }
  }
};

/// Slots are made without zeros behind the shards.
template <class T>
class PaddingNotZeroed : public PaddingFault<T> {
 public:
  using PaddingFault<T>::PaddingFault;
  void before(EngineParts<T>& engine, std::int64_t plan_step) override {
    if (plan_step == 0) this->fill_padding(engine);
  }
};

/// The optimizer updates slots to their ends.
template <class T>
class OptimizerSeesPadding : public PaddingFault<T> {
 public:
  using PaddingFault<T>::PaddingFault;
  void after(EngineParts<T>& engine, std::int64_t plan_step) override {
    if (this->is_at(plan_step, StepKind::Optimizer)) this->fill_padding(engine);
  }
};

bool padding_has_place(const Plan& plan, const FaultSpec& fault) {
  return any_parameter(plan, fault, [&](int p) {
    return sends_padding(plan, fault, p) && is_gathered_in(plan, p, 0);
  });
}

bool optimizer_padding_has_place(const Plan& plan, const FaultSpec& fault) {
  return any_step(plan, fault, 0, [&](std::int64_t step) {
    return any_parameter(plan, fault, [&](int p) {
      return sends_padding(plan, fault, p) && is_gathered_in(plan, p, step + 1);
    });
  });
}

/// What was gathered in the step before is computed with once more.
template <class T>
class StaleUnshard : public AimedFault<T> {
 public:
  using AimedFault<T>::AimedFault;

  std::optional<CollectiveCall> change_call(EngineParts<T>& /*engine*/,
                                            const CollectiveCall& call) override {
    const Step& step = this->step_at(call.plan_step);
    if (step.kind == StepKind::Unshard && this->fault().is_in_unit(unit_of(step)))
      gathers_[step.bucket] = call;
    return call;
  }

  void after_exchange(EngineParts<T>& /*engine*/, std::int64_t plan_step) override {
    const Step& step = this->step_at(plan_step);
    const bool ends =
        step.kind == StepKind::WaitUnshard || (step.kind == StepKind::Unshard && !step.is_async);
    const auto gather = ends ? gathers_.find(step.bucket) : gathers_.end();
    if (gather == gathers_.end()) return;
    T* const gathered = static_cast<T*>(gather->second.output);
    const auto elems = static_cast<std::size_t>(gather->second.elems_out);
    Kept& kept = kept_[step.bucket];
    if (kept.values.size() == elems && kept.step < step.step && this->fault().is_in(step.step)) {
      std::copy(kept.values.begin(), kept.values.end(), gathered);
    } else if (kept.values.size() != elems || kept.step < step.step) {
      kept = {step.step, std::vector<T>(gathered, gathered + elems)};
    }
  }

 private:
  struct Kept {
    std::int64_t step = -1;
    std::vector<T> values;
  };
  [[nodiscard]] int unit_of(const Step& step) const {
    return this->plan().bucket(step.bucket).unit;
  }

  std::map<int, CollectiveCall> gathers_;  ///< by bucket
  std::map<int, Kept> kept_;
};

bool stale_has_place(const Plan& plan, const FaultSpec& fault) {
  return any_step(plan, fault, 1, [&](std::int64_t step) {
    for (int p = 0; p < static_cast<int>(plan.parameters.size()); ++p) {
      const int unit = plan.bucket(plan.parameter(p).bucket).unit;
      if (!fault.is_in_unit(unit) || plan.bucket(plan.parameter(p).bucket).post_forward_size > 0)
        continue;
      if (has_gradient(plan.scenario, p, step - 1) && is_gathered_in(plan, p, step - 1) &&
          is_gathered_in(plan, p, step))
        return true;
    }
    return false;
  });
}

/// A buffer of each optimizer step is never given back.
template <class T>
class LeakedBuffer : public AimedFault<T> {
 public:
  using AimedFault<T>::AimedFault;
  void before(EngineParts<T>& engine, std::int64_t plan_step) override {
    if (!this->is_at(plan_step, StepKind::Loss)) return;
    leaked_.push_back(engine.memory.take(MemoryKind::ReduceBuffers, DType::Float32, 16));
  }

 private:
  std::vector<Buffer<T>> leaked_;
};

bool leak_has_place(const Plan& plan, const FaultSpec& fault) {
  return any_step(plan, fault, 0, [&](std::int64_t at) {
    return std::any_of(plan.steps.begin(), plan.steps.end(), [&](const Step& step) {
      return step.kind == StepKind::Loss && step.step == at;
    });
  });
}

/// What is freed after compute stays as long as the next gather.
template <class T>
class MissedReshard : public AimedFault<T> {
 public:
  using AimedFault<T>::AimedFault;

  void before(EngineParts<T>& engine, std::int64_t plan_step) override {
    const Step& step = this->step_at(plan_step);
    if (step.kind != StepKind::Unshard) return;
    const auto kept = kept_.find(step.bucket);
    if (kept == kept_.end()) return;
    engine.memory.give_back(MemoryKind::UnshardedParameters, dtype_of(step), kept->second,
                            elems_of(step));
    kept_.erase(kept);
  }

  void after(EngineParts<T>& engine, std::int64_t plan_step) override {
    const Step& step = this->step_at(plan_step);
    if (step.kind != StepKind::Reshard || !this->fault().is_in(step.step)) return;
    if (!this->fault().is_in_unit(this->plan().bucket(step.bucket).unit)) return;
    kept_[step.bucket] =
        engine.memory.take(MemoryKind::UnshardedParameters, dtype_of(step), elems_of(step));
  }

 private:
  [[nodiscard]] DType dtype_of(const Step& step) const {
    return this->plan().bucket(step.bucket).dtype;
  }
  [[nodiscard]] std::int64_t elems_of(const Step& step) const {
    return this->plan()
        .bucket(step.bucket)
        .gathered_elems()
        .at(this->plan().mesh(), this->plan().mesh().coordinate_of(this->rank()));
  }

  std::map<int, Buffer<T>> kept_;  ///< by bucket
};

bool missed_reshard_has_place(const Plan& plan, const FaultSpec& fault) {
  return std::any_of(plan.steps.begin(), plan.steps.end(), [&](const Step& step) {
    return step.kind == StepKind::Reshard && fault.is_in(step.step) &&
           fault.is_in_unit(plan.bucket(step.bucket).unit) &&
           plan.bucket(step.bucket).row_elems.largest() > 0;
  });
}

}  // namespace

std::vector<EngineFaultKind> storage_fault_kinds() {
  return {engine_fault<PaddingNotZeroed>("padding_not_zeroed", padding_has_place),
          engine_fault<OptimizerSeesPadding>("optimizer_sees_padding", optimizer_padding_has_place),
          engine_fault<StaleUnshard>("stale_unshard", stale_has_place),
          engine_fault<LeakedBuffer>("leaked_buffer", leak_has_place),
          engine_fault<MissedReshard>("missed_reshard", missed_reshard_has_place)};
}

}  // namespace hpsim
