// Factors of gradients that ranks apply once too often, not at all, or wrongly.

#include "engine/faults/exchange_tools.h"
#include "scenario/gradients.h"
#include "scenario/precision.h"
#include "tensor/shape.h"

namespace hpsim {
namespace {

/// By what a fault multiplies the gradient of a parameter; 1: by nothing.
using WrongFactor = double (*)(const Plan& plan, int p);

/// k/F as the plan applies it once; of what the user reduces, 1/F; where the mean of weights
/// divides too, what that leaves.
double planned_factor(const Plan& plan, int p) {
  const Scenario& scenario = plan.scenario;
  const double divisor = gradient_divisor(scenario);
  if (plan.bucket(plan.parameter(p).bucket).is_ignored) return 1 / divisor;
  return scenario.fully_shard.gradient_scaling_factor *
         static_cast<double>(plan.mesh().size(plan.averaged_dims(p))) / divisor;
}

bool takes_average(const Plan& plan) {
  const FullyShardSpec& spec = plan.scenario.fully_shard;
  return spec.reduce_op == ReduceOp::Avg && !spec.gradient_divide_factor;
}

bool is_alone(const Plan& plan, int p) {
  return plan.parameter(p).shard_size() == 1;
}

bool is_expert(const Plan& plan, int p) {
  const auto ep = plan.scenario.roles.ep_dim;
  return ep && contains(cutting_dims(placements_of(plan.scenario, p)), *ep);
}

double sum_for_avg(const Plan& plan, int /*p*/) {
  return takes_average(plan) ? gradient_divisor(plan.scenario) : 1;
}

double by_numel(const Plan& plan, int p) {
  return 1 / mean_divisor(plan.scenario, num_elems(plan.parameter(p).shape));
}

double missing_when_alone(const Plan& plan, int p) {
  return is_alone(plan, p) ? 1 / planned_factor(plan, p) : 1;
}

double twice_when_alone(const Plan& plan, int p) {
  return is_alone(plan, p) ? planned_factor(plan, p) : 1;
}

/// Of what experts are divided by, when it is `divisor` instead of the number of data ranks.
double expert_factor(const Plan& plan, int p, std::int64_t divisor) {
  if (!is_expert(plan, p) || !takes_average(plan)) return 1;
  return gradient_divisor(plan.scenario) / mean_divisor(plan.scenario, divisor);
}

double expert_by_ep(const Plan& plan, int p) {
  const auto ep = plan.scenario.roles.ep_dim;
  return ep ? expert_factor(plan, p, plan.mesh().size(*ep)) : 1;
}

double expert_by_group(const Plan& plan, int p) {
  return expert_factor(plan, p, plan.parameter(p).rank_size());
}

double replicas_again(const Plan& plan, int p) {
  return 1 / mean_divisor(plan.scenario, plan.parameter(p).dp_size());
}

double predivision_again(const Plan& plan, int p) {
  const Bucket& bucket = plan.bucket(plan.parameter(p).bucket);
  return bucket.is_ignored ? 1 : predivision(bucket.reduce_dtype, gradient_divisor(plan.scenario));
}

/// The first step of the optimizer phase that reads gradients.
bool reads_gradients(const Plan& plan, const Step& step) {
  if (step.kind == StepKind::ClipGradients) return true;
  return step.kind == StepKind::Optimizer && !plan.scenario.training.clip_grad_norm;
}

template <class T, WrongFactor factor_of>
class ScaledGradients : public AimedFault<T> {
 public:
  using AimedFault<T>::AimedFault;

  void before(EngineParts<T>& engine, std::int64_t plan_step) override {
    const Step& step = this->step_at(plan_step);
    if (!reads_gradients(this->plan(), step) || !this->fault().is_in(step.step)) return;
    for (const int p : this->parameters()) {
      T* const gradient = engine.memory.gradient(p);
      const double factor = factor_of(this->plan(), p);
      if (gradient == nullptr || factor == 1) continue;
      const std::int64_t elems = engine.memory.shard_elems(p);
      for (std::int64_t i = 0; i < elems; ++i)
        gradient[i] *= static_cast<T>(factor);
      round_to(this->plan().parameter(p).dtype, gradient, elems);
    }
  }
};

template <WrongFactor factor_of>
bool has_factor(const Plan& plan, const FaultSpec& fault) {
  return any_step(plan, fault, 0, [&](std::int64_t step) {
    return any_parameter(plan, fault, [&](int p) {
      return has_gradient(plan.scenario, p, step) && factor_of(plan, p) != 1 &&
             is_held(plan, fault, p);
    });
  });
}

template <class T>
using SumForAvg = ScaledGradients<T, sum_for_avg>;
template <class T>
using ScaleTwice = ScaledGradients<T, planned_factor>;
template <class T>
using ScaleByNumel = ScaledGradients<T, by_numel>;
template <class T>
using ScaleMissingWhenAlone = ScaledGradients<T, missing_when_alone>;
template <class T>
using ScaleTwiceWhenAlone = ScaledGradients<T, twice_when_alone>;
template <class T>
using ExpertDivisorEp = ScaledGradients<T, expert_by_ep>;
template <class T>
using ExpertDivisorGroup = ScaledGradients<T, expert_by_group>;
template <class T>
using AverageOfReplicasAgain = ScaledGradients<T, replicas_again>;
template <class T>
using PredivisionTwice = ScaledGradients<T, predivision_again>;

}  // namespace

std::vector<EngineFaultKind> gradient_scales() {
  return {
      engine_fault<SumForAvg>("sum_for_avg", has_factor<sum_for_avg>),
      engine_fault<ScaleTwice>("scale_twice", has_factor<planned_factor>),
      engine_fault<ScaleByNumel>("scale_by_numel", has_factor<by_numel>),
      engine_fault<ScaleMissingWhenAlone>("scale_missing_when_alone",
                                          has_factor<missing_when_alone>),
      engine_fault<ScaleTwiceWhenAlone>("scale_twice_when_alone", has_factor<twice_when_alone>),
      engine_fault<ExpertDivisorEp>("expert_divisor_ep", has_factor<expert_by_ep>),
      engine_fault<ExpertDivisorGroup>("expert_divisor_group", has_factor<expert_by_group>),
      engine_fault<AverageOfReplicasAgain>("average_of_replicas_again", has_factor<replicas_again>),
      engine_fault<PredivisionTwice>("predivision_twice", has_factor<predivision_again>),
  };
}

}  // namespace hpsim
