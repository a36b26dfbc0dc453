// Updates against numbers by hand, and Adam's spread against a search.

#include <algorithm>
#include <cmath>
#include <vector>

#include "baseline/tracked_optimizer.h"
#include "support/catch.h"

namespace hpsim {
namespace {

const Rounding kFloat32{0x1p-24, 7.5, false};

TrackedTensor number(double value, double variance = 0) {
  TrackedTensor tensor{PlainTensor<double>(1, 1, {value}), {}};
  if (variance != 0) tensor.variance = {variance};
  return tensor;
}

double value_of(const TrackedTensor& tensor) {
  return tensor.value.data[0];
}
double spread_of(const TrackedTensor& tensor) {
  return kFloat32.confidence * std::sqrt(tensor.variance[0]);
}

OptimizerSpec sgd(double weight_decay = 0, double momentum = 0, bool nesterov = false) {
  OptimizerSpec spec;
  spec.weight_decay = weight_decay;
  spec.momentum = momentum;
  spec.nesterov = nesterov;
  return spec;
}

OptimizerSpec adam(OptimizerSpec::Kind kind, double weight_decay = 0) {
  OptimizerSpec spec;
  spec.kind = kind;
  spec.lr = 0.01;
  spec.weight_decay = weight_decay;
  return spec;
}

TEST_CASE("sgd by hand") {
  const auto step = [](const OptimizerSpec& spec, std::int64_t t, double w,
                       std::vector<TrackedTensor> state, double g) {
    return update_tracked(spec, t, kFloat32, number(w), state, number(g));
  };
  CHECK(value_of(step(sgd(), 0, 2, {}, 0.5).parameter) == Approx(1.95).epsilon(1e-14));
  CHECK(value_of(step(sgd(0.1), 0, 2, {}, 0.5).parameter) == Approx(1.93).epsilon(1e-14));

  // The first buffer is g itself, whatever the buffer held; then 0.9 * 0.7 + (0.5 + 0.1 * 1.93).
  const TrackedUpdate first = step(sgd(0.1, 0.9), 0, 2, {number(0)}, 0.5);
  CHECK(value_of(first.state[0]) == Approx(0.7).epsilon(1e-14));
  CHECK(value_of(first.parameter) == Approx(1.93).epsilon(1e-14));
  const TrackedUpdate second = step(sgd(0.1, 0.9), 1, 1.93, {number(0.7)}, 0.5);
  CHECK(value_of(second.state[0]) == Approx(1.323).epsilon(1e-14));
  CHECK(value_of(second.parameter) == Approx(1.7977).epsilon(1e-14));

  // Nesterov: 0.7 + 0.9 * 0.7 = 1.33.
  const TrackedUpdate nesterov = step(sgd(0.1, 0.9, true), 0, 2, {number(0)}, 0.5);
  CHECK(value_of(nesterov.state[0]) == Approx(0.7).epsilon(1e-14));
  CHECK(value_of(nesterov.parameter) == Approx(1.867).epsilon(1e-14));
}

TEST_CASE("adam and adamw by hand") {
  using Kind = OptimizerSpec::Kind;
  const auto step = [](const OptimizerSpec& spec, std::int64_t t, double w, double m, double v,
                       double g) {
    return update_tracked(spec, t, kFloat32, number(w), {number(m), number(v)}, number(g));
  };
  // At the first step m / (1 - b1) = g and v / (1 - b2) = g².
  const TrackedUpdate first = step(adam(Kind::Adam), 0, 2, 0, 0, 0.5);
  CHECK(value_of(first.state[0]) == Approx(0.05).epsilon(1e-13));
  CHECK(value_of(first.state[1]) == Approx(0.00025).epsilon(1e-13));
  CHECK(value_of(first.parameter) == Approx(2 - 0.01 * 0.5 / (0.5 + 1e-8)).epsilon(1e-14));

  // m = 0.045 - 0.025, v = 0.00024975 + 0.0000625, corrections 1 - 0.81 and 1 - 0.998001.
  const TrackedUpdate second = step(adam(Kind::Adam), 1, 1.99, 0.05, 0.00025, -0.25);
  CHECK(value_of(second.state[0]) == Approx(0.02).epsilon(1e-13));
  CHECK(value_of(second.state[1]) == Approx(0.00031225).epsilon(1e-13));
  CHECK(
      value_of(second.parameter) ==
      Approx(1.99 - 0.01 / 0.19 * 0.02 / (std::sqrt(0.00031225 / 0.001999) + 1e-8)).epsilon(1e-14));

  // Adam adds 0.1 * 2 to the gradient; AdamW multiplies the weight by 0.999 and leaves g alone.
  CHECK(value_of(step(adam(Kind::Adam, 0.1), 0, 2, 0, 0, 0.5).parameter) ==
        Approx(2 - 0.01 * 0.7 / (0.7 + 1e-8)).epsilon(1e-14));
  const TrackedUpdate decoupled = step(adam(Kind::AdamW, 0.1), 0, 2, 0, 0, 0.5);
  CHECK(value_of(decoupled.parameter) == Approx(1.998 - 0.01 * 0.5 / (0.5 + 1e-8)).epsilon(1e-14));
  CHECK(value_of(decoupled.state[0]) == Approx(0.05).epsilon(1e-13));
}

/// step_size (b1 m + (1 - b1) g) / (sqrt((b2 v + (1 - b2) g²) / (1 - b2^t)) + eps).
double change(const OptimizerSpec& spec, double t, double m, double v, double g) {
  const double first = spec.beta1 * m + (1 - spec.beta1) * g;
  const double second = spec.beta2 * v + (1 - spec.beta2) * g * g;
  return spec.lr / (1 - std::pow(spec.beta1, t)) * first /
         (std::sqrt(second / (1 - std::pow(spec.beta2, t))) + spec.eps);
}

TEST_CASE("adam's spread is the largest change over the interval of the gradient") {
  struct Row {
    const char* what;
    double m, v, g, reach, eps;
  };
  const std::vector<Row> rows = {
      {"the sign is open: from -lr to lr", 0, 0, 1e-12, 1e-6, 1e-8},
      {"within eps", 0, 0, 1e-12, 1e-9, 1e-8},
      {"the peak at g = 111 is the farthest", 1, 1, 300, 210, 0},
      {"a peak inside, beyond the other side of 0", -1, 1, -100, 300, 0},
      {"eps moves the peak from 1.11e-6 to 1.38e-6", 1e-8, 1e-16, 3e-6, 2.1e-6, 1e-8},
      {"smooth", 0.1, 0.01, 0.3, 1e-3, 1e-8},
  };
  for (const Row& row : rows) {
    INFO(row.what);
    OptimizerSpec spec = adam(OptimizerSpec::Kind::Adam);
    spec.eps = row.eps;
    const double sigma = row.reach / kFloat32.confidence;
    // A step of weight 0, so that rounding hides nothing; t = 3.
    const TrackedUpdate update = update_tracked(
        spec, 2, kFloat32, number(0), {number(row.m), number(row.v)}, number(row.g, sigma * sigma));
    const double centre = change(spec, 3, row.m, row.v, row.g);
    double largest = 0;
    constexpr int kPoints = 200000;
    for (int i = 0; i <= kPoints; ++i) {
      const double g = row.g + row.reach * (2.0 * i / kPoints - 1);
      largest = std::max(largest, std::abs(change(spec, 3, row.m, row.v, g) - centre));
    }
    CHECK(spread_of(update.parameter) >= largest * (1 - 1e-12));
    // No more than that and a few roundings of the change.
    CHECK(spread_of(update.parameter) <= largest * (1 + 1e-6) + 1e-5 * std::abs(centre));
  }
}

TEST_CASE("spreads of adam's state") {
  const double sigma = 0.001;
  const TrackedUpdate update =
      update_tracked(adam(OptimizerSpec::Kind::Adam), 0, kFloat32, number(1),
                     {number(0), number(0)}, number(0.5, sigma * sigma));
  const double reach = kFloat32.confidence * sigma;
  CHECK(spread_of(update.state[0]) == Approx(0.1 * reach).epsilon(1e-4));
  // g² at the outer end: (0.5 + reach)² - 0.25.
  CHECK(spread_of(update.state[1]) == Approx(0.001 * (reach + reach * reach)).epsilon(1e-4));
}

}  // namespace
}  // namespace hpsim
