// Bounds against naive trainings in the run's dtype: every error lies within them, they say
// something, and small faults pass them.

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "baseline/eigen_baseline.h"
#include "judged_training.h"
#include "support/catch.h"
#include "support/scenarios.h"

namespace hpsim {
namespace {

using test::activation;
using test::Fault;
using test::Judge;
using test::judge_all;
using test::judge_training;
using test::linear;
using test::NaiveStep;
using test::NaiveTraining;
using test::optimizers;
using test::ratio_of;
using test::Worst;

std::vector<Scenario> scenarios() {
  std::vector<Scenario> all;
  all.push_back(test::fsdp_scenario(test::elementwise_model({{"a", {5, 3}}, {"b", {40}}}), 3));
  all.push_back(test::fsdp_scenario(test::elementwise_model({{"w", {7, 8}}}), 4));
  all.back().training.global_batch = 64;
  const auto chain = [](ModuleType type, bool approximation = false) {
    return test::modules_model({linear("l0", 8, 17), activation("a0", type, approximation),
                                linear("l1", 17, 12), activation("a1", type, approximation),
                                linear("l2", 12, 6, false)});
  };
  all.push_back(test::fsdp_scenario(chain(ModuleType::Relu), 4));
  all.push_back(test::fsdp_scenario(chain(ModuleType::Tanh), 2));
  all.push_back(test::hsdp_scenario(chain(ModuleType::Silu), 2, 3));
  all.push_back(test::fsdp_scenario(chain(ModuleType::Gelu), 4));
  all.push_back(test::fsdp_scenario(chain(ModuleType::Gelu, true), 4));
  all.push_back(test::fsdp_scenario(test::modules_model({linear("only", 64, 5)}), 4));
  all.back().training.global_batch = 32;
  all.push_back(
      test::fsdp_scenario(test::modules_model({linear("l0", 32, 32), linear("l1", 32, 32, false),
                                               linear("l2", 32, 32), linear("l3", 32, 32)}),
                          4));
  for (std::size_t i = 0; i < all.size(); ++i) {
    all[i].training.steps = 4;
    all[i].data.seed = i;
    if (i % 3 == 1) all[i].training.loss_normalization = LossNormalization::Sum;
    if (i % 3 == 1) all[i].training.optimizer.lr = 0.01;
    if (i % 4 == 2) all[i].fully_shard.gradient_scaling_factor = 3;
    if (i % 4 == 3) all[i].fully_shard.gradient_divide_factor = 7;
  }
  return all;
}

TEST_CASE("errors of naive float32 trainings lie within the bounds, and near them") {
  const Worst worst = judge_all<float>(scenarios(), 8);
  for (int kind = 0; kind < test::kNumKinds; ++kind) {
    INFO(test::kNames[kind]);
    UNSCOPED_INFO("worst err / bound " << worst[kind]);
    CHECK(worst[kind] >= 0.01);
    CHECK(worst[kind] <= 0.5);
  }
}

TEST_CASE("errors of naive float64 trainings lie within the bounds") {
  std::vector<Scenario> all = scenarios();
  for (Scenario& scenario : all)
    scenario.numerics.dtype = DType::Float64;
  const Worst worst = judge_all<double>(all, 2);
  for (const double ratio : worst)
    CHECK(ratio >= 0.01);
}

TEST_CASE("a free training stays within its bounds for many steps") {
  Scenario scenario = test::fsdp_scenario(test::elementwise_model({{"w", {7, 8}}}), 4);
  scenario.training.global_batch = 256;  // errors of a weight are common to all samples
  scenario.training.steps = 40;
  for (const OptimizerSpec& spec : optimizers()) {
    scenario.training.optimizer = spec;
    scenario.training.optimizer.lr *= 10;
    const Judge judge = judge_training<float>(scenario, 1);
    CHECK(judge.worst[test::kFreeLoss] <= 1);
    CHECK(judge.worst[test::kFreeNorm] <= 1);
  }
}

/// Two tanh layers with a learning rate at which errors grow from step to step.
Scenario diverging_scenario(std::int64_t steps) {
  Scenario scenario = test::fsdp_scenario(
      test::modules_model(
          {linear("l0", 2, 3), activation("a", ModuleType::Tanh), linear("l1", 3, 1)}),
      4);
  scenario.training.global_batch = 64;
  scenario.training.steps = steps;
  scenario.training.optimizer.lr = 2;
  return scenario;
}

// Were the errors of a weight taken as independent between samples, err / bound would be 3 here.
TEST_CASE("errors of weights are common to all samples of a free training") {
  Scenario scenario = diverging_scenario(5);
  scenario.data.seed = 1;
  const Judge judge = judge_training<float>(scenario, 1);
  CHECK(judge.worst[test::kFreeLoss] <= 1);
  CHECK(judge.worst[test::kFreeNorm] <= 1);
  for (const ReferenceScalar& loss : run_baseline(scenario).losses) {
    CHECK(loss.spread < 0.01 * loss.value);
  }
}

TEST_CASE("a free training that diverges ends up without bounds, not with wrong ones") {
  for (std::uint32_t seed = 0; seed < 8; ++seed) {
    Scenario scenario = diverging_scenario(12);
    scenario.data.seed = seed;
    const ReferenceRun reference = run_baseline(scenario);
    NaiveTraining<float> naive(scenario, seed);
    for (std::size_t t = 0; t < 12; ++t) {
      const NaiveStep got = naive.step();
      const ReferenceScalar& loss = reference.losses[t];
      INFO("seed " << seed << " step " << t);
      CHECK(ratio_of(got.loss, loss.value, loss.spread, 0x1p-24) <= 1);
      CHECK(std::isinf(loss.spread) == std::isinf(reference.grad_norms[t].spread));
    }
    CHECK(std::isinf(reference.losses.back().spread));
    CHECK(reference.losses.front().spread < 1e-5);
  }
}

TEST_CASE("a relu at its kink may go either way") {
  // Multiples of 0.1 are not numbers of the dtype, and their sums often cancel to rounding errors.
  double largest = 0;
  Scenario scenario = test::fsdp_scenario(
      test::modules_model({linear("l0", 6, 12, false), activation("a0", ModuleType::Relu),
                           linear("l1", 12, 12, false), activation("a1", ModuleType::Relu),
                           linear("l2", 12, 4, false)}),
      4);
  for (FillSpec* fill : {&scenario.data.init, &scenario.data.input}) {
    *fill = FillSpec{FillSpec::Kind::Integer, 1, 1, 0.1};
  }
  for (std::uint32_t seed = 0; seed < 400; ++seed) {
    scenario.data.seed = seed / 4;
    NaiveTraining<float> naive(scenario, seed);
    const NaiveStep got = naive.step();
    const ReferenceRun reference = run_baseline(scenario);
    for (std::size_t p = 0; p < scenario.parameters.size(); ++p) {
      const ReferenceTensor& expected = reference.steps[0].gradients[p];
      double size = 0;
      for (const double value : expected.value)
        size = std::max(size, std::abs(value));
      for (std::size_t i = 0; i < expected.value.size(); ++i) {
        CHECK(ratio_of(got.gradients[p][i], expected.value[i], expected.spread[i], 0x1p-24) <= 1);
        if (size > 0) {
          largest = std::max(largest, std::abs(got.gradients[p][i] - expected.value[i]) / size);
        }
      }
    }
  }
  // Branches did differ: without them errors are millionths.
  CHECK(largest > 1e-2);
}

TEST_CASE("small faults pass the bounds") {
  const std::vector<Scenario> all = scenarios();
  for (std::size_t i = 0; i < all.size(); ++i) {
    for (const OptimizerSpec& spec : optimizers()) {
      INFO("scenario " << i);
      Scenario scenario = all[i];
      scenario.training.optimizer = spec;
      scenario.training.steps = 1;
      CHECK(judge_training<float>(scenario, 1).worst[test::kGradient] <= 1);
      CHECK(judge_training<float>(scenario, 1, Fault::Doubled).worst[test::kGradient] > 1);
      CHECK(judge_training<float>(scenario, 1, Fault::Doubled).worst[test::kNorm] > 1);
      CHECK(judge_training<float>(scenario, 1, Fault::MissingSample).worst[test::kGradient] > 1);
      CHECK(judge_training<float>(scenario, 1, Fault::OneTerm).worst[test::kGradient] > 1);
    }
  }
}

}  // namespace
}  // namespace hpsim
