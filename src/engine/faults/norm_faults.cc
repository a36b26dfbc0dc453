// Faults of the norm by which gradients are clipped.

#include <algorithm>
#include <cmath>

#include "engine/faults/fault_tools.h"
#include "scenario/gradients.h"

namespace hpsim {
namespace {

double norm_type_of(const Plan& plan) {
  return plan.scenario.training.clip_grad_norm->norm_type;
}

/// In how many of the terms that are added up the shards of a parameter are counted.
using TimesCounted = double (*)(const Plan& plan, int p);

/// Sends a sum of |g|^p in which parameters are counted wrongly often.
template <class T, TimesCounted times_counted>
class NormCounted : public AimedFault<T> {
 public:
  using AimedFault<T>::AimedFault;

  std::optional<CollectiveCall> change_call(EngineParts<T>& engine,
                                            const CollectiveCall& call) override {
    if (!this->is_at(call.plan_step, StepKind::ClipGradients)) return call;
    for (const int p : this->parameters()) {
      const T* const gradient = engine.memory.gradient(p);
      if (gradient == nullptr || !this->plan().averaged_dims(p).empty()) continue;
      double power = 0;
      for (std::int64_t i = 0; i < engine.memory.shard_elems(p); ++i)
        power += std::pow(std::abs(static_cast<double>(gradient[i])), norm_type_of(this->plan()));
      const auto copies = static_cast<double>(num_copies(this->plan(), p));
      engine.norm_on_wire += power / copies * (times_counted(this->plan(), p) - 1);
    }
    return call;
  }
};

/// As often as there are copies.
double counted_by_all(const Plan& plan, int p) {
  return static_cast<double>(num_copies(plan, p));
}

/// A parameter that is not cut along the sharding dim: once by each rank along it.
double counted_per_shard(const Plan& plan, int p) {
  const auto& dim = plan.scenario.roles.fsdp_shard_dim;
  if (!dim || contains(plan.parameter(p).cut_dims(), *dim)) return 1;
  return static_cast<double>(plan.mesh().size(*dim));
}

/// A parameter that is not cut along tp: once by each rank along it.
double counted_per_tp_rank(const Plan& plan, int p) {
  const auto& dim = plan.scenario.roles.tp_dim;
  if (!dim || contains(plan.parameter(p).cut_dims(), *dim)) return 1;
  return static_cast<double>(plan.mesh().size(*dim));
}

/// A parameter that is not cut along ep: once by each rank along it.
double counted_per_ep_rank(const Plan& plan, int p) {
  const auto& dim = plan.scenario.roles.ep_dim;
  if (!dim || contains(plan.parameter(p).cut_dims(), *dim)) return 1;
  return static_cast<double>(plan.mesh().size(*dim));
}

/// Along the replicate dim: R times.
double counted_per_replica(const Plan& plan, int /*p*/) {
  const auto& dim = plan.scenario.roles.dp_replicate_dim;
  return dim ? static_cast<double>(plan.mesh().size(*dim)) : 1;
}

bool is_clipped(const Plan& plan) {
  return std::any_of(plan.steps.begin(), plan.steps.end(), [](const Step& step) {
    return step.kind == StepKind::ClipGradients && step.collective;
  });
}

bool is_in_norm(const Plan& plan, const FaultSpec& fault, int p) {
  return plan.averaged_dims(p).empty() && any_step(plan, fault, 0, [&](std::int64_t step) {
           return has_gradient(plan.scenario, p, step);
         });
}

template <TimesCounted times_counted>
bool counted_has_place(const Plan& plan, const FaultSpec& fault) {
  if (!is_clipped(plan) || std::isinf(norm_type_of(plan))) return false;
  return any_parameter(plan, fault, [&](int p) {
    return times_counted(plan, p) != 1 && is_in_norm(plan, fault, p) && is_held(plan, fault, p);
  });
}

template <class T>
using NormOfAllRanks = NormCounted<T, counted_by_all>;
template <class T>
using NormPerShard = NormCounted<T, counted_per_shard>;
template <class T>
using NormPerTpRank = NormCounted<T, counted_per_tp_rank>;
template <class T>
using NormPerEpRank = NormCounted<T, counted_per_ep_rank>;
template <class T>
using NormPerReplica = NormCounted<T, counted_per_replica>;

/// Every rank clips by what its own gradients say.
template <class T>
class NormLocal : public AimedFault<T> {
 public:
  using AimedFault<T>::AimedFault;

  std::optional<CollectiveCall> change_call(EngineParts<T>& engine,
                                            const CollectiveCall& call) override {
    if (this->is_at(call.plan_step, StepKind::ClipGradients)) own_ = engine.norm_on_wire;
    return call;
  }
  void after_exchange(EngineParts<T>& engine, std::int64_t plan_step) override {
    if (this->is_at(plan_step, StepKind::ClipGradients) && this->step_at(plan_step).collective)
      engine.norm_on_wire = own_;
  }

 private:
  double own_ = 0;
};

/// The norms of all ranks are averaged.
template <class T>
class NormAverage : public AimedFault<T> {
 public:
  using AimedFault<T>::AimedFault;

  std::optional<CollectiveCall> change_call(EngineParts<T>& engine,
                                            const CollectiveCall& call) override {
    if (this->is_at(call.plan_step, StepKind::ClipGradients))
      engine.norm_on_wire = std::pow(engine.norm_on_wire, 1 / norm_type_of(this->plan()));
    return call;
  }
  void after_exchange(EngineParts<T>& engine, std::int64_t plan_step) override {
    const Step& step = this->step_at(plan_step);
    if (!this->is_at(plan_step, StepKind::ClipGradients) || !step.collective) return;
    engine.norm_on_wire =
        std::pow(engine.norm_on_wire / static_cast<double>(step.collective->group_size),
                 norm_type_of(this->plan()));
  }
};

/// Gradients are clipped to half of what they should be.
template <class T>
class ClipTooFar : public AimedFault<T> {
 public:
  using AimedFault<T>::AimedFault;

  void after(EngineParts<T>& engine, std::int64_t plan_step) override {
    if (!this->is_at(plan_step, StepKind::ClipGradients)) return;
    for (const int p : this->parameters()) {
      T* const gradient = engine.memory.gradient(p);
      if (gradient == nullptr) continue;
      for (std::int64_t i = 0; i < engine.memory.shard_elems(p); ++i)
        gradient[i] /= 2;
    }
  }
};

/// Several ranks have a part of the norm.
bool norm_local_has_place(const Plan& plan, const FaultSpec& fault) {
  return is_clipped(plan) && any_parameter(plan, fault, [&](int p) {
           return is_in_norm(plan, fault, p) && is_held(plan, fault, p);
         });
}

bool norm_average_has_place(const Plan& plan, const FaultSpec& fault) {
  return norm_local_has_place(plan, fault) && !std::isinf(norm_type_of(plan)) &&
         norm_type_of(plan) > 1;
}

bool clip_has_place(const Plan& plan, const FaultSpec& fault) {
  return plan.scenario.training.clip_grad_norm && any_step(plan, fault, 0, [&](std::int64_t step) {
           return any_parameter(plan, fault, [&](int p) {
             return has_gradient(plan.scenario, p, step) && is_held(plan, fault, p);
           });
         });
}

}  // namespace

std::vector<EngineFaultKind> norm_fault_kinds() {
  return {
      engine_fault<NormOfAllRanks>("norm_all_ranks", counted_has_place<counted_by_all>),
      engine_fault<NormPerShard>("norm_counted_per_shard", counted_has_place<counted_per_shard>),
      engine_fault<NormPerTpRank>("norm_counted_per_tp_rank",
                                  counted_has_place<counted_per_tp_rank>),
      engine_fault<NormPerEpRank>("norm_counted_per_ep_rank",
                                  counted_has_place<counted_per_ep_rank>),
      engine_fault<NormPerReplica>("norm_counted_per_replica",
                                   counted_has_place<counted_per_replica>),
      engine_fault<NormLocal>("norm_local", norm_local_has_place),
      engine_fault<NormAverage>("norm_average_of_norms", norm_average_has_place),
      engine_fault<ClipTooFar>("clip_too_far", clip_has_place)};
}

}  // namespace hpsim
