// Norms of gradients and what clipping makes of them, by hand and against random errors.

#include "baseline/gradient_norm.h"

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "support/catch.h"

namespace hpsim {
namespace {

constexpr double kConfidence = 6.5;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

TrackedTensor row(const std::vector<double>& values, const std::vector<double>& variances) {
  return {PlainTensor<double>(1, static_cast<std::int64_t>(values.size()),
                              {values.begin(), values.end()}),
          {variances.begin(), variances.end()}};
}

TEST_CASE("powers of small gradients do not underflow") {
  // (2 (1e-30)^16)^(1/16), whose powers are below the smallest double.
  const TrackedScalar norm = norm_of({row({1e-30, -1e-30}, {1e-70, 1e-70})}, 16);
  CHECK(std::abs(norm.value / (1e-30 * std::pow(2, 1.0 / 16)) - 1) < 1e-14);
  CHECK(std::abs(std::sqrt(norm.variance) / (1e-35 * std::pow(2, 1.0 / 16)) - 1) < 1e-9);
}

TEST_CASE("norms by hand") {
  const std::vector<TrackedTensor> gradients = {row({3}, {4}), TrackedTensor{},
                                                row({-4, 0}, {9, 0})};
  const auto value = [&](double p) { return norm_of(gradients, p).value; };
  CHECK(value(1) == Approx(7));
  CHECK(value(2) == 5);
  CHECK(value(3) == Approx(std::cbrt(27 + 64)));
  CHECK(value(kInfinity) == 4);
  // Deviations 2 and 3.
  const auto variance = [&](double p) { return norm_of(gradients, p).variance; };
  CHECK(variance(1) == Approx(25));
  CHECK(variance(2) == Approx(13));
  CHECK(variance(3) == Approx(std::pow(8 + 27, 2.0 / 3)));
  CHECK(variance(kInfinity) == 9);
}

TEST_CASE("a norm is off by no more than its elements allow") {
  std::mt19937 random(3);
  std::uniform_real_distribution<double> uniform(-1, 1);
  for (const double p : {1.0, 1.5, 2.0, 3.0, 7.0, kInfinity}) {
    double largest = 0;
    for (int trial = 0; trial < 300; ++trial) {
      TrackedTensor gradient = row(std::vector<double>(5), std::vector<double>(5));
      TrackedTensor off = gradient;
      for (std::size_t i = 0; i < 5; ++i) {
        const double deviation = 0.1 * std::abs(uniform(random));
        // Some elements at the end of their interval, away from zero or not.
        const double error = trial % 2 == 0 ? 1 : uniform(random);
        gradient.value.data[i] = uniform(random) * (i < 2 ? 1 : 0.01);
        gradient.variance[i] = deviation * deviation;
        const double sign = gradient.value.data[i] < 0 ? -1 : 1;
        off.value.data[i] = gradient.value.data[i] + sign * error * kConfidence * deviation;
      }
      const TrackedScalar norm = norm_of({gradient}, p);
      const double error = std::abs(norm_of({off}, p).value - norm.value);
      const double ratio = error / (kConfidence * std::sqrt(norm.variance));
      INFO(p << ", trial " << trial);
      CHECK(ratio <= 1 + 1e-9);
      largest = std::max(largest, ratio);
    }
    CHECK(largest > 0.5);
  }
}

TEST_CASE("sums of powers are rounded in float64") {
  // 2^-53 twice: the run's and the baseline's; of one power t = |g|^3 the sum's rule gives 2 t²,
  // the power 16 t², and the norm takes a third of it, relative; the root 16 of its own.
  const double unit = 2 * 0x1p-106 / 3;
  CHECK(norm_of({row({2}, {0})}, 3).variance / (4 * unit) == Approx((2 + 16) / 9.0 + 16));
}

TEST_CASE("the factor of clipping by hand") {
  const ClipSpec spec{2, 2};
  const auto clip = [&](double norm, double deviation) {
    return clip_factor(spec, {norm, deviation * deviation}, kConfidence);
  };
  CHECK(clip(1, 0).factor.value == 1);
  CHECK_FALSE(clip(1, 0).may_clip);
  CHECK_FALSE(clip(1, 0.1).may_clip);  // 1 + 0.65 < 2
  CHECK(clip(4, 0).factor.value == Approx(0.5).epsilon(1e-5));
  CHECK(clip(4, 0).factor.variance == 0);
  // Between 4 - 0.65 and 4 + 0.65: the lower end is further from 0.5.
  CHECK(kConfidence * std::sqrt(clip(4, 0.1).factor.variance) ==
        Approx(2 / 3.35 - 0.5).epsilon(1e-4));
  // Either branch: the factor is 1, or down to 2 / 2.55.
  const ClipFactor near = clip(1.9, 0.1);
  CHECK(near.may_clip);
  CHECK(near.factor.value == 1);
  CHECK(kConfidence * std::sqrt(near.factor.variance) == Approx(1 - 2 / 2.55).epsilon(1e-4));
  const ClipFactor above = clip(2.1, 0.1);
  CHECK(above.factor.value + kConfidence * std::sqrt(above.factor.variance) >= 1);
}

TEST_CASE("clipped gradients inherit from the norm, too") {
  const Rounding rounding{0x1p-24, kConfidence, false};
  const ClipFactor clip{{0.5, 0.01}, true};
  const TrackedTensor gradient = row({3, 0}, {4, 0});
  const TrackedTensor result = clipped(gradient, clip, rounding);
  CHECK(result.value.data == AlignedVector<double>{1.5, 0});
  CHECK(result.variance[0] == Approx(std::pow(0.5 * 2 + 3 * 0.1, 2)));
  CHECK(result.variance[1] == 0);
  CHECK(clipped(gradient, {{1, 0}, false}, rounding).variance == gradient.variance);
}

}  // namespace
}  // namespace hpsim
