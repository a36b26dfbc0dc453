// Bounds against naive trainings that round at every stage, in plain loops: errors lie within them
// and near them, and a stage in another dtype passes them.

#include <algorithm>
#include <cmath>
#include <optional>
#include <random>
#include <vector>

#include "baseline/tracked_arithmetic.h"
#include "judged_training.h"
#include "support/catch.h"
#include "support/graphs.h"
#include "support/scenarios.h"

namespace hpsim {
namespace {

using test::activation;
using test::Fault;
using test::Judge;
using test::judge_training;
using test::linear;
using test::Worst;

struct Precision {
  const char* name;
  DType numerics;
  MixedPrecision policy;
};

MixedPrecision policy(std::optional<DType> param, std::optional<DType> reduce,
                      std::optional<DType> output = {}) {
  MixedPrecision result;
  result.param_dtype = param;
  result.reduce_dtype = reduce;
  result.output_dtype = output;
  return result;
}

constexpr DType kF64 = DType::Float64;
constexpr DType kF32 = DType::Float32;
constexpr DType kBf16 = DType::BFloat16;
constexpr DType kF16 = DType::Float16;

/// Carried in float32.
std::vector<Precision> narrow_precisions() {
  return {{"bfloat16 compute", kF32, policy(kBf16, kF32)},
          {"bfloat16 compute and reduction", kF32, policy(kBf16, {})},
          {"bfloat16 compute, outputs float32", kF32, policy(kBf16, kF32, kF32)},
          {"float32 compute, bfloat16 reduction", kF32, policy({}, kBf16)},
          {"all bfloat16", kBf16, policy({}, {})},
          {"float16 compute, float32 reduction", kF32, policy(kF16, kF32)},
          {"float16 compute and reduction", kF32, policy(kF16, {})},
          {"float16 compute, bfloat16 reduction", kF32, policy(kF16, kBf16)},
          {"all float16", kF16, policy({}, {})}};
}

/// Carried in float64.
std::vector<Precision> float32_precisions() {
  return {{"float32 compute of float64", kF64, policy(kF32, {})},
          {"float32 reduction of float64", kF64, policy({}, kF32)},
          {"float64 compute of float32", kF32, policy(kF64, {})},
          {"float64 reduction of float32", kF32, policy({}, kF64)}};
}

ModelSpec chain() {
  return test::modules_model({linear("l0", 6, 11), activation("a0", ModuleType::Tanh),
                              linear("l1", 11, 9), activation("a1", ModuleType::Relu),
                              linear("l2", 9, 5)});
}

ModelSpec block() {
  test::GraphBuilder graph({4});
  const int x = graph.linear("in", 0, 5, 8);
  const int y = graph.add("r0", x, graph.attention("attn", graph.rms_norm("n0", x, 8), 8, 4, 2));
  graph.add("r1", y, graph.mlp("mlp", graph.layer_norm("n1", y, 8), 8, 12));
  return graph.model();
}

/// Data ranks, replicas, micro-batches, and when they are reduced.
std::vector<Scenario> scenarios() {
  std::vector<Scenario> all;
  all.push_back(test::fsdp_scenario(test::elementwise_model({{"a", {5, 3}}, {"b", {40}}}), 3));
  all.push_back(test::fsdp_scenario(chain(), 4));
  all.push_back(test::hsdp_scenario(chain(), 2, 3));
  all.back().training.micro_batches = 3;
  all.back().training.all_reduces = {false, false, true};
  all.push_back(test::hsdp_scenario(block(), 2, 2));
  all.back().training.micro_batches = 2;
  all.back().training.gradient_syncs = {false, true};
  all.push_back(test::fsdp_scenario(block(), 2));
  all.back().training.micro_batches = 3;
  all.push_back(test::fsdp_scenario(test::transformer_model(9, 8, 12, 4, 1, true), 3));
  test::use_tokens(all.back());
  all.back().training.micro_batches = 2;
  for (std::size_t i = 0; i < all.size(); ++i) {
    Scenario& scenario = all[i];
    scenario.training.steps = 2;
    scenario.training.global_batch =
        2 * scenario.num_data_ranks() * scenario.training.micro_batches;
    scenario.data.seed = i;
    if (i % 3 == 2) scenario.fully_shard.gradient_divide_factor = 7;
  }
  return all;
}

/// Largest err / bound of all scenarios and optimizers in one precision.
template <class T>
Worst judge_precision(const Precision& precision, std::uint32_t first_seed,
                      std::uint32_t num_seeds) {
  Worst worst{};
  std::vector<Scenario> all = scenarios();
  for (std::size_t i = 0; i < all.size(); ++i) {
    Scenario& scenario = all[i];
    scenario.numerics.dtype = precision.numerics;
    scenario.fully_shard.mp_policy = precision.policy;
    const std::vector<OptimizerSpec>& optimizers = test::optimizers();
    for (std::size_t o = 0; o < optimizers.size(); ++o) {
      // The short run takes turns.
      if (num_seeds == 1 && (o + i) % 2 != 0) continue;
      scenario.training.optimizer = optimizers[o];
      for (std::uint32_t seed = first_seed; seed < first_seed + num_seeds; ++seed) {
        scenario.data.seed = seed + i;
        const Judge judge = judge_training<T>(scenario, seed);
        INFO(precision.name << ", scenario " << i << ", seed " << seed);
        for (int kind = 0; kind < test::kNumKinds; ++kind) {
          INFO(test::kNames[kind]);
          CHECK(judge.worst[kind] < 1);
          worst[kind] = std::max(worst[kind], judge.worst[kind]);
        }
      }
    }
  }
  return worst;
}

void check_not_vacuous(const Precision& precision, const Worst& worst) {
  for (const test::Kind kind : {test::kGradient, test::kParameter, test::kState}) {
    INFO(precision.name << ", " << test::kNames[kind]);
    CHECK(worst[kind] > 0.05);
  }
}

TEST_CASE("errors of trainings in 16 bits lie within the bounds, and near them") {
  for (const Precision& precision : narrow_precisions())
    check_not_vacuous(precision, judge_precision<float>(precision, 0, 1));
}

TEST_CASE("errors of float32 stages beside float64 lie within the bounds, and near them") {
  for (const Precision& precision : float32_precisions())
    check_not_vacuous(precision, judge_precision<double>(precision, 0, 1));
}

TEST_CASE("errors of many trainings lie within the bounds of stages", "[.slow]") {
  for (const Precision& precision : narrow_precisions())
    static_cast<void>(judge_precision<float>(precision, 100, 10));
  for (const Precision& precision : float32_precisions())
    static_cast<void>(judge_precision<double>(precision, 100, 10));
}

/// A scenario of many samples: the last bits of what is reduced show.
Scenario planted_scenario(DType numerics, const MixedPrecision& mixed) {
  Scenario scenario = test::hsdp_scenario(chain(), 2, 2);
  scenario.training.micro_batches = 4;
  scenario.training.gradient_syncs = {false, false, false, true};
  scenario.training.global_batch = 4 * 4 * 4;
  scenario.numerics.dtype = numerics;
  scenario.fully_shard.mp_policy = mixed;
  return scenario;
}

double gradient_ratio(const Scenario& scenario, Fault fault) {
  return judge_training<float>(scenario, 1, fault).worst[test::kGradient];
}

TEST_CASE("stages in a wrong dtype pass the bounds") {
  const Scenario plain = planted_scenario(kF32, {});
  CHECK(gradient_ratio(plain, Fault::None) < 1);
  for (const Fault fault : {Fault::Bfloat16Reduction, Fault::Bfloat16Accumulation,
                            Fault::MissingMicroBatches, Fault::Float16Storage}) {
    INFO(static_cast<int>(fault));
    CHECK(gradient_ratio(plain, fault) > 1);
  }
  const Scenario low = planted_scenario(kF32, policy(kBf16, kF32));
  CHECK(gradient_ratio(low, Fault::None) < 1);
  CHECK(gradient_ratio(low, Fault::MissingMicroBatches) > 1);
  // float16 compute is so exact that bfloat16 shows.
  const Scenario half = planted_scenario(kF32, policy(kF16, kF32));
  CHECK(gradient_ratio(half, Fault::None) < 1);
  CHECK(gradient_ratio(half, Fault::MissingMicroBatches) > 1);
  CHECK(gradient_ratio(half, Fault::MissingSample) > 1);
}

// Input features over ranks: each rank's part of a sum is rounded, and so is the whole.
TEST_CASE("terms of ranks are rounded before they are added") {
  constexpr std::int64_t kRows = 200;
  constexpr std::int64_t kFeatures = 24;
  for (const std::int64_t num_ranks : {2, 4, 8}) {
    double largest = 0;
    double largest_without = 0;
    std::mt19937 random(5);
    std::uniform_real_distribution<float> uniform(-1, 1);
    const auto draw = [&](std::int64_t rows) {
      PlainTensor<double> tensor(rows, kFeatures);
      for (double& value : tensor.data) {
        float drawn = uniform(random);
        round_to(kBf16, &drawn, 1);
        value = static_cast<double>(drawn);
      }
      return TrackedTensor{tensor, {}};
    };
    const TrackedTensor x = draw(kRows);
    const TrackedTensor w = draw(1);
    const auto claim = [&](bool has_terms) {
      TrackedArithmetic arithmetic({0x1p-24, 6.5, false});
      if (has_terms) arithmetic.set_term_rounding(kBf16, 1);
      TrackedTensor y = arithmetic.linear(x, w, nullptr);
      arithmetic.round(y, kBf16);
      return y;
    };
    const TrackedTensor with = claim(true);
    const TrackedTensor without = claim(false);
    for (std::int64_t row = 0; row < kRows; ++row) {
      float sum = 0;
      for (std::int64_t rank = 0; rank < num_ranks; ++rank) {
        float part = 0;
        for (std::int64_t i = rank; i < kFeatures; i += num_ranks) {
          const auto at = static_cast<std::size_t>(row * kFeatures + i);
          part += static_cast<float>(x.value.data[at] * w.value.data[static_cast<std::size_t>(i)]);
        }
        round_to(kBf16, &part, 1);
        sum += part;
      }
      round_to(kBf16, &sum, 1);
      const auto at = static_cast<std::size_t>(row);
      const double error = std::abs(static_cast<double>(sum) - with.value.data[at]);
      largest = std::max(largest, error / (6.5 * std::sqrt(with.variance[at])));
      largest_without = std::max(largest_without, error / (6.5 * std::sqrt(without.variance[at])));
    }
    INFO(num_ranks << " ranks");
    CHECK(largest < 0.6);
    CHECK(largest > 0.1);
    CHECK(largest_without > 1);
  }
}

TEST_CASE("gradients that float16 cannot hold lie within the bounds") {
  Scenario scenario = planted_scenario(kF32, policy(kF16, {}));
  for (const double bound : {1e-2, 1e-3, 1e-4}) {
    scenario.data.target.bound = bound;
    scenario.data.input.bound = bound;
    for (std::uint32_t seed = 0; seed < 10; ++seed) {
      scenario.data.seed = seed;
      INFO(bound << ", seed " << seed);
      CHECK(judge_training<float>(scenario, seed).worst[test::kGradient] < 1);
    }
  }
}

}  // namespace
}  // namespace hpsim
