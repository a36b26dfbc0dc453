#include "judged_training.h"

#include <algorithm>
#include <cmath>

#include "base/dtype.h"
#include "baseline/eigen_baseline.h"
#include "support/catch.h"

namespace hpsim::test {

double ratio_of(double got, double expected, double spread, double unit) {
  const double error = std::abs(got - expected);
  return error == 0 ? 0 : error / (spread + 4 * unit * std::abs(expected));
}

namespace {

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

}  // namespace

void Judge::scalar(Kind kind, double got, const ReferenceScalar& expected) {
  worst[kind] = std::max(worst[kind], ratio_of(got, expected.value, expected.spread, unit));
}

void Judge::tensor(Kind kind, const std::vector<double>& got, const ReferenceTensor& expected) {
  REQUIRE(got.size() == expected.value.size());
  if (got.empty()) return;
  REQUIRE(got.size() == expected.spread.size());
  std::vector<double> bounds;
  std::vector<double> sizes;
  for (std::size_t i = 0; i < got.size(); ++i) {
    worst[kind] =
        std::max(worst[kind], ratio_of(got[i], expected.value[i], expected.spread[i], unit));
    bounds.push_back(expected.spread[i] + 4 * unit * std::abs(expected.value[i]));
    sizes.push_back(std::abs(expected.value[i]));
  }
  if (median(sizes) > 0) vacuity = std::max(vacuity, median(bounds) / median(sizes));
}

template <class T>
Judge judge_training(const Scenario& scenario, std::uint32_t seed, Fault fault) {
  NaiveTraining<T> naive(scenario, seed, fault);
  std::vector<TrainingState> held;
  std::vector<NaiveStep> steps;
  for (std::int64_t t = 0; t < scenario.training.steps; ++t) {
    held.push_back(naive.state());
    steps.push_back(naive.step());
  }
  const ReferenceRun reference = run_baseline(scenario, held);
  Judge judge{reference.unit_roundoff};
  for (std::size_t t = 0; t < steps.size(); ++t) {
    const ReferenceStep& expected = reference.steps[t];
    judge.scalar(kLoss, steps[t].loss, expected.loss);
    judge.scalar(kNorm, steps[t].grad_norm, expected.grad_norm);
    judge.scalar(kFreeLoss, steps[t].loss, reference.losses[t]);
    judge.scalar(kFreeNorm, steps[t].grad_norm, reference.grad_norms[t]);
    for (std::size_t p = 0; p < scenario.parameters.size(); ++p) {
      judge.tensor(kGradient, steps[t].gradients[p], expected.gradients[p]);
      judge.tensor(kParameter, steps[t].after.parameters[p], expected.parameters[p]);
      for (std::size_t s = 0; s < expected.state.size(); ++s) {
        judge.tensor(kState, steps[t].after.state[s][p], expected.state[s][p]);
      }
    }
  }
  return judge;
}

namespace {

OptimizerSpec optimizer(OptimizerSpec::Kind kind, double lr, double weight_decay = 0,
                        double momentum = 0, bool nesterov = false) {
  OptimizerSpec spec;
  spec.kind = kind;
  spec.lr = lr;
  spec.weight_decay = weight_decay;
  spec.momentum = momentum;
  spec.nesterov = nesterov;
  return spec;
}

}  // namespace

const std::vector<OptimizerSpec>& optimizers() {
  using OptimizerKind = OptimizerSpec::Kind;
  static const std::vector<OptimizerSpec> specs = {
      optimizer(OptimizerKind::Sgd, 0.1), optimizer(OptimizerKind::Sgd, 0.1, 0.01, 0.9),
      optimizer(OptimizerKind::Sgd, 0.05, 0.01, 0.9, true),
      optimizer(OptimizerKind::Adam, 1e-3, 0.01), optimizer(OptimizerKind::AdamW, 1e-2, 0.1)};
  return specs;
}

template <class T>
Worst judge_all(std::vector<Scenario> all, std::uint32_t num_seeds) {
  Worst worst{};
  for (std::size_t i = 0; i < all.size(); ++i) {
    for (const OptimizerSpec& spec : optimizers()) {
      for (std::uint32_t seed = 0; seed < num_seeds; ++seed) {
        Scenario& scenario = all[i];
        scenario.training.optimizer = spec;
        if (scenario.training.loss_normalization == LossNormalization::Sum) {
          scenario.training.optimizer.lr *= 0.01;
        }
        const Judge judge = judge_training<T>(scenario, seed);
        for (int kind = 0; kind < kNumKinds; ++kind) {
          INFO("scenario " << i << " optimizer " << static_cast<int>(spec.kind) << " momentum "
                           << spec.momentum << " seed " << seed << " " << kNames[kind]);
          CHECK(judge.worst[kind] <= 1);
          worst[kind] = std::max(worst[kind], judge.worst[kind]);
        }
        INFO("scenario " << i << " seed " << seed);
        CHECK(judge.vacuity <= 0.125);
      }
    }
  }
  return worst;
}

template Judge judge_training<float>(const Scenario&, std::uint32_t, Fault);
template Judge judge_training<double>(const Scenario&, std::uint32_t, Fault);
template Worst judge_all<float>(std::vector<Scenario>, std::uint32_t);
template Worst judge_all<double>(std::vector<Scenario>, std::uint32_t);

}  // namespace hpsim::test
