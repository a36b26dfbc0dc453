// Ranks that update by gradients of their own and average: what they may compute in float32, in
// plain loops, against the bound, and against the bound of the usual way, which is too narrow.

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "baseline/tracked_optimizer.h"
#include "support/catch.h"

namespace hpsim {
namespace {

constexpr double kUnit = 0x1p-24;
constexpr int kElems = 400;

/// What one rank holds.
struct RankTensors {
  std::vector<float> gradient = std::vector<float>(kElems);
  std::vector<float> buffer = std::vector<float>(kElems);
};

struct Experiment {
  int num_ranks = 8;
  OptimizerSpec spec;
  double gradient_mean = 1;
  double gradient_scatter = 1;
  double buffer_mean = 1;
  double buffer_scatter = 1;
  double weight = 1;
};

/// Largest errors over bounds.
struct Ratios {
  double weight = 0;
  double buffer = 0;
};

TrackedTensor row(const std::vector<double>& values) {
  return {PlainTensor<double>(1, kElems, {values.begin(), values.end()}), {}};
}

/// One update by every rank, one sample each, and the mean of the results; judged from the means.
Ratios judge(const Experiment& e, std::uint32_t seed, bool knows_of_ranks) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> uniform(-1, 1);
  std::vector<float> weight(kElems);
  for (float& w : weight)
    w = static_cast<float>(e.weight * (1.5 + 0.5 * uniform(random)));
  std::vector<RankTensors> ranks(static_cast<std::size_t>(e.num_ranks));
  std::vector<double> gradient(kElems), buffer(kElems), scatter(kElems), squares(kElems);
  for (std::size_t i = 0; i < kElems; ++i) {
    const double g = e.gradient_mean * uniform(random);
    const double b = e.buffer_mean * uniform(random);
    for (RankTensors& rank : ranks) {
      rank.gradient[i] = static_cast<float>(g + e.gradient_scatter * uniform(random));
      rank.buffer[i] = static_cast<float>(b + e.buffer_scatter * uniform(random));
      gradient[i] += static_cast<double>(rank.gradient[i]) / e.num_ranks;
      buffer[i] += static_cast<double>(rank.buffer[i]) / e.num_ranks;
    }
    for (const RankTensors& rank : ranks) {
      scatter[i] += std::pow(rank.buffer[i] - buffer[i], 2) / e.num_ranks;
      squares[i] += std::pow(static_cast<double>(rank.gradient[i]) / e.num_ranks, 2);
    }
  }
  // The gradient is exact here, but its variance is what the rule of sums gives for its samples:
  // c n (sum x² + g²).
  TrackedTensor tracked_gradient = row(gradient);
  for (std::size_t i = 0; i < kElems; ++i) {
    tracked_gradient.variance.push_back(kUnit * kUnit / 3 * e.num_ranks *
                                        (squares[i] + gradient[i] * gradient[i]));
  }

  const bool has_buffer = e.spec.momentum != 0;
  const Rounding rounding{kUnit, 6.5, false};
  const std::vector<std::vector<double>> scatters = {scatter};
  RankMeans means{.num_ranks = e.num_ranks, .num_samples = e.num_ranks, .scatter = &scatters};
  if (!has_buffer) means.scatter = nullptr;
  if (!knows_of_ranks) means = {};
  std::vector<TrackedTensor> state;
  if (has_buffer) state.push_back(row(buffer));
  const TrackedUpdate expected = update_tracked(
      e.spec, 1, rounding, row({weight.begin(), weight.end()}), state, tracked_gradient, means);

  const auto lr = static_cast<float>(e.spec.lr);
  const auto momentum = static_cast<float>(e.spec.momentum);
  const auto decay = static_cast<float>(e.spec.weight_decay);
  const auto share = static_cast<float>(1.0 / e.num_ranks);
  Ratios worst;
  for (std::size_t i = 0; i < kElems; ++i) {
    float sum = 0;
    double buffers = 0;
    for (RankTensors& rank : ranks) {
      const float g = rank.gradient[i] + decay * weight[i];
      float direction = g;
      if (has_buffer) {
        rank.buffer[i] = momentum * rank.buffer[i] + g;
        direction = e.spec.nesterov ? g + momentum * rank.buffer[i] : rank.buffer[i];
        buffers += static_cast<double>(rank.buffer[i]) / e.num_ranks;
      }
      sum += weight[i] - lr * direction;
    }
    const auto ratio = [&](double got, const TrackedTensor& tensor) {
      const double value = tensor.value.data[i];
      const double bound =
          rounding.confidence * std::sqrt(tensor.variance[i]) + 4 * kUnit * std::abs(value);
      return std::abs(got - value) / bound;
    };
    worst.weight =
        std::max(worst.weight, ratio(static_cast<double>(sum * share), expected.parameter));
    if (has_buffer) worst.buffer = std::max(worst.buffer, ratio(buffers, expected.state[0]));
  }
  return worst;
}

Ratios judge_often(const Experiment& experiment, bool knows_of_ranks = true) {
  Ratios worst;
  for (std::uint32_t seed = 0; seed < 20; ++seed) {
    const Ratios ratios = judge(experiment, seed, knows_of_ranks);
    worst.weight = std::max(worst.weight, ratios.weight);
    worst.buffer = std::max(worst.buffer, ratios.buffer);
  }
  return worst;
}

OptimizerSpec sgd(double momentum, bool nesterov, double weight_decay) {
  OptimizerSpec spec;
  spec.momentum = momentum;
  spec.nesterov = nesterov;
  spec.weight_decay = weight_decay;
  return spec;
}

TEST_CASE("what ranks compute and average lies within the bound, and not far within") {
  for (const int num_ranks : {2, 3, 8, 64, 100}) {
    for (const OptimizerSpec& spec :
         {sgd(0, false, 0), sgd(0, false, 0.1), sgd(0.9, false, 0), sgd(0.9, true, 0.1)}) {
      for (const double scatter : {0.0, 1.0, 1e3}) {
        CAPTURE(num_ranks, spec.momentum, spec.nesterov, spec.weight_decay, scatter);
        Experiment e{.num_ranks = num_ranks, .spec = spec};
        e.gradient_scatter = e.buffer_scatter = scatter;
        const Ratios worst = judge_often(e);
        CHECK(worst.weight < 0.8);
        CHECK(worst.weight > 0.02);
        CHECK(worst.buffer < 0.8);
      }
    }
  }
}

TEST_CASE("the bound of the usual way does not cover what averaging rounds") {
  // Equal weights round alike in every partial sum.
  for (const int num_ranks : {100, 300, 1000}) {
    Experiment alike{.num_ranks = num_ranks};
    alike.spec.lr = 0;
    CHECK(judge_often(alike).weight < 0.8);
    CHECK(judge_often(alike).weight > 0.1);
    CHECK(judge_often(alike, false).weight > 1);
  }
  // Buffers that differ from rank to rank far more than their mean is large.
  Experiment apart{.num_ranks = 4, .spec = sgd(0.9, false, 0)};
  apart.buffer_mean = 0;
  apart.buffer_scatter = 100;
  apart.gradient_scatter = 0.01;
  CHECK(judge_often(apart).buffer < 1);
  apart.buffer_mean = 0;
  Ratios blind;
  for (std::uint32_t seed = 0; seed < 20; ++seed)
    blind.buffer = std::max(blind.buffer, judge(apart, seed, false).buffer);
  CHECK(blind.buffer > 1);
}

TEST_CASE("the variance of one average by hand") {
  // w = 1, g = 0 with V = 0, A = 2: ((A + 1) / 2 w)² for the sum; the update of each rank adds w²
  // (its difference) and lr g = 0. 1/2 is exact.
  const Rounding rounding{kUnit, 6, false};
  const double c = rounding.variance();
  const TrackedTensor one{PlainTensor<double>(1, 1, {1.0}), {}};
  const TrackedTensor zero{PlainTensor<double>(1, 1, {0.0}), {}};
  RankMeans two{.num_ranks = 2, .num_samples = 4};
  const auto variance = [&](const RankMeans& ranks, const TrackedTensor& gradient) {
    return update_tracked(sgd(0, false, 0), 0, rounding, one, {}, gradient, ranks)
               .parameter.variance[0] /
           c;
  };
  CHECK(variance({}, zero) == Approx(1));
  CHECK(variance(two, zero) == Approx(1 + 2.25));
  // 1/3 is rounded, and so is the product.
  CHECK(variance({.num_ranks = 3, .num_samples = 6}, zero) == Approx(1 + 4 + 2));
  // V = 8c: scatter A V / (c n) = 4. lr = 0.1: inherited 0.08, product 2 * 0.04, difference 1.04,
  // and the sum of the average (1.5 + 0.2)².
  TrackedTensor uncertain = zero;
  uncertain.variance = {8 * c};
  CHECK(variance({}, uncertain) == Approx(1 + 0.08));
  CHECK(variance(two, uncertain) == Approx(0.08 + 0.08 + 1.04 + 2.89));
}

TEST_CASE("the scatter of a buffer by hand") {
  // b = 0.5 b + g: (0.5 sqrt(16) + sqrt(4))² = 16, with A V / (c n) = 4.
  const Rounding rounding{kUnit, 6, false};
  const TrackedTensor zero{PlainTensor<double>(1, 1, {0.0}), {}};
  TrackedTensor gradient = zero;
  gradient.variance = {8 * rounding.variance()};
  const std::vector<std::vector<double>> scatter = {{16}};
  const RankMeans ranks{.num_ranks = 2, .num_samples = 4, .scatter = &scatter};
  const TrackedUpdate update =
      update_tracked(sgd(0.5, false, 0), 1, rounding, zero, {zero}, gradient, ranks);
  REQUIRE(update.scatter.size() == 1);
  CHECK(update.scatter[0][0] == Approx(16));
  // Inherited 8; a product with two roundings of 0.25 * 16, a sum of 16.
  CHECK(update.state[0].variance[0] / rounding.variance() == Approx(8 + 2 * 4 + 16));
  // The first buffer is the gradient.
  CHECK(update_tracked(sgd(0.5, false, 0), 0, rounding, zero, {zero}, gradient, ranks)
            .scatter[0][0] == Approx(4));
  CHECK(update_tracked(sgd(0.5, false, 0), 1, rounding, zero, {zero}, gradient).scatter.empty());
}

}  // namespace
}  // namespace hpsim
