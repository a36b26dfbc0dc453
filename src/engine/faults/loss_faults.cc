// Faults of how losses of ranks become one.

#include <algorithm>

#include "engine/faults/exchange_tools.h"

namespace hpsim {
namespace {

/// With the plan that mean_of_means executes, every rank divides by its own number of terms: its
/// loss, as it is recorded, is then over the number of data ranks.
template <class T>
class MeanOfMeans : public AimedFault<T> {
 public:
  using AimedFault<T>::AimedFault;

  void before(EngineParts<T>& engine, std::int64_t plan_step) override {
    const Step& step = this->step_at(plan_step);
    if (step.kind != StepKind::Loss) return;
    const double* const losses = engine.result.losses(engine.rank, step.step);
    earlier_.assign(losses, losses + engine.result.layout().num_loss_terms());
  }

  void after(EngineParts<T>& engine, std::int64_t plan_step) override {
    const Step& step = this->step_at(plan_step);
    if (step.kind != StepKind::Loss) return;
    const Scenario& scenario = this->plan().scenario;
    const double divisor = mean_divisor(scenario, scenario.num_data_ranks());
    double* const losses = engine.result.losses(engine.rank, step.step);
    for (std::size_t i = 0; i < earlier_.size(); ++i)
      losses[i] = earlier_[i] + (losses[i] - earlier_[i]) / divisor;
  }

 private:
  std::vector<double> earlier_;  ///< of the micro-batches before
};

/// Whether ranks, or micro-batches, have unequal numbers of terms in a mean over all of them.
bool has_unequal_means(const Plan& plan, const FaultSpec& /*fault*/) {
  const Scenario& scenario = plan.scenario;
  if (scenario.training.loss_normalization != LossNormalization::GlobalTokens) return false;
  const auto& tokens = scenario.data.tokens;
  return std::any_of(tokens.begin(), tokens.end(), [&](const auto& of_rank) {
    return std::any_of(of_rank.begin(), of_rank.end(),
                       [&](std::int64_t count) { return count != tokens[0].at(0); });
  });
}

}  // namespace

std::vector<EngineFaultKind> loss_faults() {
  return {engine_fault<MeanOfMeans>("mean_of_means", has_unequal_means)};
}

}  // namespace hpsim
