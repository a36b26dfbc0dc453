// Faults of dtypes: what is rounded where it should not be.

#include <algorithm>

#include "engine/faults/fault_tools.h"
#include "scenario/gradients.h"

namespace hpsim {
namespace {

/// Whether everything is computed in dtypes of which bounds tell bfloat16.
bool computes_in_wide_dtypes(const Plan& plan) {
  const auto is_wide = [](DType dtype) {
    return dtype == DType::Float32 || dtype == DType::Float64;
  };
  return std::all_of(plan.buckets.begin(), plan.buckets.end(),
                     [&](const Bucket& bucket) {
                       return is_wide(bucket.dtype) && is_wide(bucket.reduce_dtype);
                     }) &&
         std::all_of(plan.values.begin(), plan.values.end(),
                     [&](const ActivationValue& value) { return is_wide(value.dtype); });
}

/// Gradients are rounded to bfloat16 on the way to their reduction.
template <class T>
class CastTwice : public AimedFault<T> {
 public:
  using AimedFault<T>::AimedFault;
  static bool has_place(const Plan& plan, const FaultSpec& fault) {
    return any_plan_step(plan, fault, [&](const Step& step) {
      return is_at(plan, step) && any_rank(plan, fault, [&](const Coordinate& coordinate) {
               const std::vector<int>& members = plan.gradient_row(step.row).parameters;
               return std::any_of(members.begin(), members.end(),
                                  [&](int p) { return held_elems(plan, p, coordinate) > 0; });
             });
    });
  }

  std::optional<CollectiveCall> change_call(EngineParts<T>& /*engine*/,
                                            const CollectiveCall& call) override {
    const Step& step = this->step_at(call.plan_step);
    if (is_at(this->plan(), step) && this->is_aimed_at_bucket(step)) {
      // What is sent of gradients is the rank's own until then.
      round_to(DType::BFloat16, static_cast<T*>(const_cast<void*>(call.input)), call.elems_in);
    }
    return call;
  }

 private:
  static bool is_at(const Plan& plan, const Step& step) {
    const bool reduces = step.kind == StepKind::ReduceScatter || step.kind == StepKind::AllReduce;
    return reduces && !plan.scenario.is_exact() && computes_in_wide_dtypes(plan);
  }
};

/// Updated weights are kept in the dtype of compute.
template <class T>
class MasterWeightsRounded : public AimedFault<T> {
 public:
  using AimedFault<T>::AimedFault;
  static bool has_place(const Plan& plan, const FaultSpec& fault) {
    return any_step(plan, fault, 0, [&](std::int64_t step) {
      return any_parameter(plan, fault, [&](int p) {
        return is_rounded(plan, p, step) &&
               any_rank(plan, fault, [&](const auto& at) { return held_elems(plan, p, at) > 0; });
      });
    });
  }

  void after(EngineParts<T>& engine, std::int64_t plan_step) override {
    const Step& step = this->step_at(plan_step);
    if (step.kind != StepKind::Optimizer || !this->fault().is_in(step.step)) return;
    for (const int p : this->parameters()) {
      if (!is_rounded(this->plan(), p, step.step)) continue;
      round_to(this->plan().parameter(p).compute_dtype, engine.memory.shard(p),
               engine.memory.shard_elems(p));
      record_parameter(engine, step.step + 1, p);
    }
  }

 private:
  static bool is_rounded(const Plan& plan, int p, std::int64_t step) {
    const PlannedParameter& parameter = plan.parameter(p);
    return unit_roundoff(parameter.compute_dtype) > unit_roundoff(parameter.dtype) &&
           has_gradient(plan.scenario, p, step);
  }
};

}  // namespace

std::vector<EngineFaultKind> rounding_fault_kinds() {
  return {
      engine_fault<CastTwice>("cast_twice"),
      engine_fault<MasterWeightsRounded>("master_weights_rounded"),
  };
}

}  // namespace hpsim
