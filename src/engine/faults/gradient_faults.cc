// Faults of gradients between their store and the update.

#include <algorithm>
#include <map>
#include <utility>

#include "engine/add.h"
#include "engine/faults/fault_tools.h"
#include "scenario/gradients.h"
#include "scenario/precision.h"

namespace hpsim {
namespace {

/// Whether the plan step is the first of the optimizer phase that reads gradients.
bool reads_gradients(const Plan& plan, std::int64_t plan_step) {
  const Step& step = plan.steps.at(static_cast<std::size_t>(plan_step));
  if (step.kind == StepKind::ClipGradients) return true;
  return step.kind == StepKind::Optimizer && !plan.scenario.training.clip_grad_norm;
}

/// Changes gradients when all of an optimizer step are stored.
template <class T>
class StoredGradientFault : public AimedFault<T> {
 public:
  using AimedFault<T>::AimedFault;

  void before(EngineParts<T>& engine, std::int64_t plan_step) override {
    const Step& step = this->step_at(plan_step);
    if (reads_gradients(this->plan(), plan_step) && this->fault().is_in(step.step))
      spoil(engine, step.step);
  }

 protected:
  virtual void spoil(EngineParts<T>& engine, std::int64_t step) = 0;
};

/// Gradients of both are there, of equal shards on every rank.
bool are_alike(const Plan& plan, int a, int b, std::int64_t step) {
  const PlannedParameter& x = plan.parameter(a);
  const PlannedParameter& y = plan.parameter(b);
  return x.shape == y.shape && x.dtype == y.dtype && x.cut == y.cut && x.unsharded == y.unsharded &&
         x.sharded_group == y.sharded_group && has_gradient(plan.scenario, a, step) &&
         has_gradient(plan.scenario, b, step);
}

/// The parameter whose gradient another gets instead of its own; -1: none.
using Source = int (*)(const Plan& plan, int p, std::int64_t step);

/// The last one like it, of another unit.
int last_of_other_unit(const Plan& plan, int p, std::int64_t step) {
  const auto unit = [&](int q) { return plan.bucket(plan.parameter(q).bucket).unit; };
  for (int q = static_cast<int>(plan.parameters.size()); q-- > p + 1;) {
    if (unit(q) != unit(p) && are_alike(plan, p, q, step)) return q;
  }
  return -1;
}

/// The one before it in the order of reductions, that is like it.
int previous_one(const Plan& plan, int p, std::int64_t step) {
  for (int q = p - 1; q >= 0; --q) {
    if (are_alike(plan, p, q, step)) return q;
  }
  return -1;
}

/// The next one like it, for which the same memory is used.
int next_one(const Plan& plan, int p, std::int64_t step) {
  for (int q = p + 1; q < static_cast<int>(plan.parameters.size()); ++q) {
    if (are_alike(plan, p, q, step)) return q;
  }
  return -1;
}

template <Source source>
bool source_has_place(const Plan& plan, const FaultSpec& fault) {
  return any_step(plan, fault, 0, [&](std::int64_t step) {
    return any_parameter(
        plan, fault, [&](int p) { return source(plan, p, step) >= 0 && is_held(plan, fault, p); });
  });
}

template <class T, Source source>
class GradientOfOther : public StoredGradientFault<T> {
 public:
  using StoredGradientFault<T>::StoredGradientFault;

 protected:
  void spoil(EngineParts<T>& engine, std::int64_t step) override {
    std::map<int, std::vector<T>> before;
    for (int p = 0; p < static_cast<int>(this->plan().parameters.size()); ++p)
      before[p] = copy_of_gradient(engine, p);
    for (const int p : this->parameters()) {
      const int from = source(this->plan(), p, step);
      if (from >= 0) std::copy(before[from].begin(), before[from].end(), engine.memory.gradient(p));
    }
  }
};

template <class T>
using ReuseReduceBuffer = GradientOfOther<T, last_of_other_unit>;
template <class T>
using PreviousGradient = GradientOfOther<T, previous_one>;
template <class T>
using AliasedGradient = GradientOfOther<T, next_one>;

/// What the step before left is there still, and the new gradient is added to it.
template <class T>
class GradientNotCleared : public StoredGradientFault<T> {
 public:
  using StoredGradientFault<T>::StoredGradientFault;

  void before(EngineParts<T>& engine, std::int64_t plan_step) override {
    StoredGradientFault<T>::before(engine, plan_step);
    if (!reads_gradients(this->plan(), plan_step)) return;
    for (const int p : this->parameters())
      left_[p] = copy_of_gradient(engine, p);
  }

 protected:
  void spoil(EngineParts<T>& engine, std::int64_t /*step*/) override {
    for (const auto& [p, left] : left_) {
      T* const gradient = engine.memory.gradient(p);
      if (gradient == nullptr || left.empty()) continue;
      accumulate(left.data(), static_cast<std::int64_t>(left.size()), gradient);
    }
  }

 private:
  std::map<int, std::vector<T>> left_;
};

bool not_cleared_has_place(const Plan& plan, const FaultSpec& fault) {
  return any_step(plan, fault, 1, [&](std::int64_t step) {
    return any_parameter(plan, fault, [&](int p) {
      return has_gradient(plan.scenario, p, step) && has_gradient(plan.scenario, p, step - 1) &&
             is_held(plan, fault, p);
    });
  });
}

/// A gradient is stored in the dtype of sums, not rounded to its own.
template <class T>
class GradientNotRounded : public StoredGradientFault<T> {
 public:
  using StoredGradientFault<T>::StoredGradientFault;

 protected:
  void spoil(EngineParts<T>& engine, std::int64_t /*step*/) override {
    for (const int p : this->parameters()) {
      T* const gradient = engine.memory.gradient(p);
      const DType dtype = this->plan().parameter(p).dtype;
      if (gradient == nullptr || size_bytes(dtype) >= static_cast<std::int64_t>(sizeof(T)))
        continue;
      for (std::int64_t i = 0; i < engine.memory.shard_elems(p); ++i)
        gradient[i] *= T(1) + T(0x1p-20);
    }
  }
};

bool not_rounded_has_place(const Plan& plan, const FaultSpec& fault) {
  return is_emulated(plan.scenario) && any_step(plan, fault, 0, [&](std::int64_t step) {
           return any_parameter(plan, fault, [&](int p) {
             return size_bytes(plan.parameter(p).dtype) <
                        size_bytes(carrier_dtype(plan.scenario)) &&
                    has_gradient(plan.scenario, p, step) && is_held(plan, fault, p);
           });
         });
}

}  // namespace

std::vector<EngineFaultKind> gradient_fault_kinds() {
  return {
      engine_fault<ReuseReduceBuffer>("reuse_reduce_buffer", source_has_place<last_of_other_unit>),
      engine_fault<PreviousGradient>("previous_parameter_gradient", source_has_place<previous_one>),
      engine_fault<AliasedGradient>("aliased_gradient", source_has_place<next_one>),
      engine_fault<GradientNotCleared>("gradient_not_cleared", not_cleared_has_place),
      engine_fault<GradientNotRounded>("gradient_not_rounded", not_rounded_has_place)};
}

}  // namespace hpsim
