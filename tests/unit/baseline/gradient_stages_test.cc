// Which numbers are rounded on the way of a gradient, by hand.

#include "baseline/gradient_stages.h"

#include <algorithm>
#include <tuple>
#include <vector>

#include "scenario/module_layouts.h"
#include "support/catch.h"
#include "support/scenarios.h"

namespace hpsim {
namespace {

/// A sum, its dtype, and the factor that it has there.
using Event = std::tuple<double, DType, double>;

/// Of one element, whose gradient of rank d and micro-batch m is 10^d (m + 1).
std::vector<Event> events(const GradientStages& stages) {
  std::vector<Event> result;
  follow_stages<double>(
      stages, 1, 1,
      [](const GradientStages::Source& source, std::int64_t m) {
        double sum = 0;
        for (const std::int64_t rank : source)
          sum += std::pow(10, rank) * static_cast<double>(m + 1);
        return PlainTensor<double>(1, 1, {sum});
      },
      [&](const PlainTensor<double>& sum, DType dtype, double factor) {
        result.emplace_back(sum.data[0], dtype, factor);
      });
  std::sort(result.begin(), result.end());
  return result;
}

std::vector<Event> sorted(std::vector<Event> all) {
  std::sort(all.begin(), all.end());
  return all;
}

constexpr DType kB = DType::BFloat16;
constexpr DType kH = DType::Float16;

GradientStages stages_of(const Scenario& scenario) {
  return gradient_stages(scenario, 0, partial_dims(scenario).at(0));
}

TEST_CASE("stages of two ranks by hand") {
  Scenario scenario = test::fsdp_scenario(test::elementwise_model({{"w", {4}}}), 2);
  scenario.fully_shard.mp_policy.param_dtype = kH;
  scenario.fully_shard.mp_policy.reduce_dtype = kB;
  scenario.fully_shard.gradient_scaling_factor = 3;
  const GradientStages stages = stages_of(scenario);
  CHECK(stages.is_emulated());
  CHECK_FALSE(stages.splits_samples);
  // Own gradients 1 and 10, what is added up, times 3, their sum; times 1/2 rounds nothing; what is
  // stored is float32.
  CHECK(events(stages) == sorted({{1, kH, 1},
                                  {10, kH, 1},
                                  {1, kB, 1},
                                  {10, kB, 1},
                                  {1, kB, 3},
                                  {10, kB, 3},
                                  {11, kB, 3}}));
  CHECK_FALSE(
      stages_of(test::fsdp_scenario(test::elementwise_model({{"w", {4}}}), 2)).is_emulated());
}

TEST_CASE("without replicas there is none to wait for: every sum is stored") {
  Scenario scenario = test::fsdp_scenario(test::elementwise_model({{"w", {4}}}), 2);
  scenario.numerics.dtype = kB;
  scenario.fully_shard.mp_policy.param_dtype = DType::Float32;
  scenario.training.micro_batches = 2;
  scenario.training.global_batch = 4;
  scenario.training.all_reduces = {false, true};
  // 1 + 10, then 2 + 20, and what is stored of both.
  CHECK(events(stages_of(scenario)) == sorted({{11, kB, 0.5}, {22, kB, 0.5}, {33, kB, 0.5}}));
}

TEST_CASE("stages of replicas and micro-batches by hand") {
  Scenario scenario = test::hsdp_scenario(test::elementwise_model({{"w", {4}}}), 2, 2);
  scenario.training.micro_batches = 3;
  scenario.numerics.dtype = kB;
  scenario.training.global_batch = 12;
  scenario.training.gradient_syncs = {true, false, true};
  scenario.training.all_reduces = {false, false, true};
  std::vector<Event> expected;
  for (const double rank : {1.0, 10.0, 100.0, 1000.0}) {
    for (const double m : {1, 2, 3})
      expected.emplace_back(m * rank, kB, 1);  // the gradient
    for (const double added : {1, 2, 5})
      expected.emplace_back(added * rank, kB, 1);  // 1 | 2, 2 + 3
  }
  for (const double replica : {11.0, 1100.0}) {
    expected.emplace_back(replica, kB, 1);      // reduce-scatter of the first
    expected.emplace_back(5 * replica, kB, 1);  // and of the others
    expected.emplace_back(6 * replica, kB, 1);  // which the first waited for
  }
  expected.emplace_back(6666, kB, 1);        // all-reduce
  expected.emplace_back(6666, kB, 1.0 / 4);  // stored
  CHECK(events(stages_of(scenario)) == sorted(expected));

  // All three are reduced and stored: 1111, 2222, 3333, and the sums of what is stored.
  scenario.training.gradient_syncs.clear();
  scenario.training.all_reduces.clear();
  expected.clear();
  for (const double rank : {1.0, 10.0, 100.0, 1000.0}) {
    for (const double m : {1, 2, 3}) {
      expected.emplace_back(m * rank, kB, 1);
      expected.emplace_back(m * rank, kB, 1);
    }
  }
  for (const double m : {1, 2, 3}) {
    expected.emplace_back(11 * m, kB, 1);
    expected.emplace_back(1100 * m, kB, 1);
    expected.emplace_back(1111 * m, kB, 1);
    expected.emplace_back(1111 * m, kB, 1.0 / 4);
  }
  expected.emplace_back(3333, kB, 1.0 / 4);
  expected.emplace_back(6666, kB, 1.0 / 4);
  CHECK(events(stages_of(scenario)) == sorted(expected));
}

TEST_CASE("float16 is divided before the sum, and rounds by underflow even then") {
  Scenario scenario = test::fsdp_scenario(test::elementwise_model({{"w", {4}}}), 4);
  scenario.fully_shard.mp_policy.reduce_dtype = kH;
  const GradientStages stages = stages_of(scenario);
  CHECK(stages.prescale == 0.5);
  CHECK(stages.scale == 0.5);
  std::vector<Event> expected;
  for (const double rank : {1.0, 10.0, 100.0, 1000.0}) {
    expected.emplace_back(rank, kH, 1);
    expected.emplace_back(rank, kH, 0.5);
  }
  expected.emplace_back(1111, kH, 0.5);
  expected.emplace_back(1111, kH, 0.25);
  CHECK(events(stages) == sorted(expected));
}

TEST_CASE("a data dim along which a parameter is cut makes one gradient of its ranks") {
  Scenario scenario = test::hsdp_scenario(test::elementwise_model({{"w", {4}}}), 2, 2);
  const GradientStages cut = gradient_stages(scenario, 0, {1});
  REQUIRE(cut.replicas.size() == 1);
  CHECK(cut.replicas[0] == std::vector<GradientStages::Source>{{0, 2}, {1, 3}});
  const GradientStages copies = gradient_stages(scenario, 0, {0, 1});
  REQUIRE(copies.replicas.size() == 2);
  CHECK(copies.replicas[1] == std::vector<GradientStages::Source>{{2}, {3}});
}

}  // namespace
}  // namespace hpsim
