// Faults of what earlier micro-batches of an optimizer step left of gradients.

#include <algorithm>
#include <set>
#include <tuple>

#include "engine/faults/exchange_tools.h"
#include "scenario/gradients.h"

namespace hpsim {
namespace {

/// By what is multiplied what earlier micro-batches left when micro-batch `micro_batch` begins its
/// backward.
using FactorOfEarlier = double (*)(const Plan& plan, int p, std::int64_t micro_batch);

double rescaled(const Plan& plan, int p, std::int64_t /*micro_batch*/) {
  const double divisor = gradient_divisor(plan.scenario);
  if (plan.bucket(plan.parameter(p).bucket).is_ignored) return 1 / divisor;
  return plan.scenario.fully_shard.gradient_scaling_factor / divisor;
}

double only_last(const Plan& /*plan*/, int /*p*/, std::int64_t /*micro_batch*/) {
  return 0;
}

double without_first(const Plan& /*plan*/, int /*p*/, std::int64_t micro_batch) {
  return micro_batch == 1 ? 0 : 1;
}

template <class T, FactorOfEarlier factor_of>
class EarlierGradients : public AimedFault<T> {
 public:
  EarlierGradients(const Plan& plan, Rank rank, const FaultSpec& fault)
      : AimedFault<T>(plan, rank, fault),
        parameters_of_module_(parameters_of_modules(plan.scenario)) {}

  void before(EngineParts<T>& engine, std::int64_t plan_step) override {
    const Step& step = this->step_at(plan_step);
    if (step.kind != StepKind::Backward || step.micro_batch == 0) return;
    if (!this->fault().is_in(step.step)) return;
    for (const int p : parameters_of_module_.at(static_cast<std::size_t>(step.module))) {
      if (!is_aimed_at(this->plan(), this->fault(), p)) continue;
      if (!seen_.emplace(step.step, step.micro_batch, p).second) continue;
      const double factor = factor_of(this->plan(), p, step.micro_batch);
      if (factor != 1) engine.memory.scale_waiting(p, static_cast<T>(factor));
    }
  }

 private:
  std::vector<std::vector<int>> parameters_of_module_;
  std::set<std::tuple<std::int64_t, std::int64_t, int>> seen_;  ///< step, micro-batch, parameter
};

/// Whether an earlier micro-batch of the step leaves a gradient of the parameter.
bool has_earlier_gradient(const Plan& plan, int p, std::int64_t step, std::int64_t micro_batch) {
  for (std::int64_t m = 0; m < micro_batch; ++m) {
    if (has_gradient(plan.scenario, p, step, m)) return true;
  }
  return false;
}

template <FactorOfEarlier factor_of>
bool has_factor(const Plan& plan, const FaultSpec& fault) {
  return any_step(plan, fault, 0, [&](std::int64_t step) {
    return any_parameter(plan, fault, [&](int p) {
      for (std::int64_t m = 1; m < plan.scenario.training.micro_batches; ++m) {
        if (has_gradient(plan.scenario, p, step, m) && has_earlier_gradient(plan, p, step, m) &&
            factor_of(plan, p, m) != 1 && is_held(plan, fault, p))
          return true;
      }
      return false;
    });
  });
}

template <class T>
using RescaleEachMicroBatch = EarlierGradients<T, rescaled>;
template <class T>
using ZeroEachMicroBatch = EarlierGradients<T, only_last>;
template <class T>
using SkipMicroBatch = EarlierGradients<T, without_first>;

}  // namespace

std::vector<EngineFaultKind> micro_batch_faults() {
  return {
      engine_fault<RescaleEachMicroBatch>("rescale_each_micro_batch", has_factor<rescaled>),
      engine_fault<ZeroEachMicroBatch>("zero_each_micro_batch", has_factor<only_last>),
      engine_fault<SkipMicroBatch>("skip_micro_batch", has_factor<without_first>),
  };
}

}  // namespace hpsim
