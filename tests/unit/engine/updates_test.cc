// Clipping, and updates of parameters that are trained from different steps on.

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "one_rank_run.h"
#include "support/catch.h"
#include "support/scenarios.h"

namespace hpsim {
namespace {

using Numbers = std::vector<double>;

/// A training step of two parameters by plain sgd with lr 1: what is subtracted is the gradient.
Scenario by_gradient() {
  Scenario scenario = test::fsdp_scenario(test::elementwise_model({{"a", {3}}, {"b", {2, 2}}}), 1);
  scenario.training.optimizer.lr = 1;
  return scenario;
}

/// The p-norm of both gradients together.
double norm_of(const OneRankRun& run, double p) {
  Numbers all = run.gradient(0);
  const Numbers more = run.gradient(1);
  all.insert(all.end(), more.begin(), more.end());
  double sum = 0;
  for (const double value : all)
    sum = std::isinf(p) ? std::max(sum, std::abs(value)) : sum + std::pow(std::abs(value), p);
  return std::isinf(p) ? sum : std::pow(sum, 1 / p);
}

TEST_CASE("clipping by the norms 1, 2, 3 and infinity, by hand") {
  const OneRankRun unclipped(by_gradient());
  for (const double p : {1.0, 2.0, 3.0, HUGE_VAL}) {
    const double norm = norm_of(unclipped, p);
    for (const double part : {0.25, 4.0}) {  // of the norm, and beyond it
      Scenario scenario = by_gradient();
      scenario.training.clip_grad_norm = ClipSpec{.max_norm = part * norm, .norm_type = p};
      const OneRankRun run(scenario);
      CAPTURE(p, part);
      // As torch: the norm plus 1e-6.
      const double factor = std::min(1.0, part * norm / (norm + 1e-6));
      CHECK(run.result.step_record(Rank{0}, 0).clip_norm == Approx(norm).epsilon(1e-14));
      if (part > 1) CHECK(factor == 1);
      std::int64_t compared = 0;
      for (int q = 0; q < 2; ++q) {
        // Recorded as they were before.
        CHECK(run.gradient(q) == unclipped.gradient(q));
        const Numbers before = run.parameter(q, 0);
        const Numbers after = run.parameter(q, 1);
        const Numbers gradient = run.gradient(q);
        for (std::size_t i = 0; i < after.size(); ++i) {
          CHECK(after[i] == Approx(before[i] - factor * gradient[i]).epsilon(1e-14));
          ++compared;
        }
      }
      CHECK(compared == 7);
      const double power = run.result.step_record(Rank{0}, 0).norm_power;
      CHECK(power == Approx(std::isinf(p) ? norm : std::pow(norm, p)).epsilon(1e-14));
    }
  }
  // The factor is not that of another norm: they differ by more than rounding.
  CHECK(norm_of(unclipped, 1) > 1.01 * norm_of(unclipped, 2));
  CHECK(norm_of(unclipped, 2) > 1.01 * norm_of(unclipped, 3));
  CHECK(norm_of(unclipped, 3) > 1.01 * norm_of(unclipped, HUGE_VAL));
}

TEST_CASE("frozen parameters are not part of the norm, nor changed, by weight decay either") {
  Scenario scenario = by_gradient();
  scenario.training.trained_from = {0, 1};
  scenario.training.optimizer.weight_decay = 0.5;
  scenario.training.optimizer.momentum = 0.5;
  scenario.training.clip_grad_norm = ClipSpec{.max_norm = 0.125};
  const OneRankRun run(scenario);
  CHECK(run.parameter(1, 1) == run.parameter(1, 0));
  CHECK(run.parameter(0, 1) != run.parameter(0, 0));
  CHECK(run.state(1, 0, 0) == Numbers{0, 0, 0, 0});
  const Numbers gradient = run.gradient(0);
  CHECK(
      run.result.step_record(Rank{0}, 0).clip_norm ==
      Approx(std::sqrt(std::inner_product(gradient.begin(), gradient.end(), gradient.begin(), 0.0)))
          .epsilon(1e-14));
}

TEST_CASE("Adam counts the updates of each parameter: the first one moves by lr") {
  Scenario scenario = by_gradient();
  scenario.training.steps = 3;
  scenario.training.trained_from = {0, 2};
  scenario.training.optimizer = {.kind = OptimizerSpec::Kind::Adam, .lr = 0.25, .eps = 0};
  const OneRankRun run(scenario);
  CHECK(run.parameter(1, 2) == run.parameter(1, 0));
  CHECK(run.state(1, 1, 0) == Numbers(4, 0));
  const auto moved = [&](int p, std::int64_t time) {
    const Numbers before = run.parameter(p, time);
    const Numbers after = run.parameter(p, time + 1);
    Numbers all;
    for (std::size_t i = 0; i < after.size(); ++i)
      all.push_back(std::abs(after[i] - before[i]));
    return all;
  };
  for (const double by : moved(0, 0))
    CHECK(by == Approx(0.25).epsilon(1e-12));
  for (const double by : moved(1, 2))
    CHECK(by == Approx(0.25).epsilon(1e-12));
  // As by a count of all steps it would not: lr (1 - b1) / (1 - b1^3) sqrt((1 - b2^3) / (1 - b2)).
  const double by_all =
      0.25 * 0.1 / (1 - std::pow(0.9, 3)) * std::sqrt((1 - std::pow(0.999, 3)) / 0.001);
  CHECK(std::abs(by_all - 0.25) > 0.05);
  const Numbers gradient = run.gradient(1, 2);
  const Numbers average = run.state(1, 2, 0);
  for (std::size_t i = 0; i < 4; ++i)
    CHECK(average[i] == Approx(0.1 * gradient[i]).epsilon(1e-12));
}

TEST_CASE("a momentum buffer begins with the first gradient of its parameter") {
  Scenario scenario = by_gradient();
  scenario.training.steps = 2;
  scenario.training.trained_from = {0, 1};
  scenario.training.optimizer.momentum = 0.5;
  const OneRankRun run(scenario);
  CHECK(run.state(1, 1, 0) == run.gradient(1, 1));
  Numbers expected = run.gradient(0, 1);
  for (std::size_t i = 0; i < expected.size(); ++i)
    expected[i] += 0.5 * run.gradient(0, 0)[i];
  CHECK(run.state(0, 1, 0) == expected);
}

TEST_CASE("gradients of micro-batches add up to those of the whole batch") {
  Scenario whole = by_gradient();
  whole.training.global_batch = 4;
  Scenario parts = whole;
  parts.training.micro_batches = 4;
  const OneRankRun one(whole), four(parts);
  CHECK(four.loss() == Approx(one.loss()).epsilon(1e-14));
  for (int p = 0; p < 2; ++p) {
    for (std::size_t i = 0; i < one.gradient(p).size(); ++i)
      CHECK(four.gradient(p)[i] == Approx(one.gradient(p)[i]).epsilon(1e-13));
  }
  parts.training.gradient_syncs = {false, false, false, true};
  CHECK(OneRankRun(parts).gradient(1).at(3) == Approx(one.gradient(1)[3]).epsilon(1e-13));
  // Sums are not divided by the number of micro-batches, means are.
  whole.training.loss_normalization = parts.training.loss_normalization = LossNormalization::Sum;
  CHECK(OneRankRun(parts).gradient(0).at(2) ==
        Approx(OneRankRun(whole).gradient(0).at(2)).epsilon(1e-13));
}

}  // namespace
}  // namespace hpsim
