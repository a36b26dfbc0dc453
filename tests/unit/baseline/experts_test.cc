// Where positions go, which routes are certain, and what experts compute at the ends: none, one or
// all of them chosen.

#include <algorithm>
#include <cmath>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "baseline/eigen_baseline.h"
#include "baseline/expert_routes.h"
#include "baseline/sample_data.h"
#include "baseline/tracked_arithmetic.h"
#include "naive_ops.h"
#include "support/catch.h"
#include "support/graphs.h"
#include "support/scenarios.h"

namespace hpsim {
namespace {

using Routes = std::vector<std::int32_t>;

constexpr double kUnit = 0x1p-24;
constexpr Rounding kFloat32{kUnit, 6.5, false};
constexpr Rounding kFloat64{0x1p-53, 6.5, false};

ModuleSpec experts_spec(std::int64_t num_experts, std::int64_t top_k) {
  ModuleSpec spec;
  spec.type = ModuleType::Experts;
  spec.in_features = 4;
  spec.hidden = 3;
  spec.num_experts = num_experts;
  spec.top_k = top_k;
  return spec;
}

TEST_CASE("the largest come first, of equal ones the first") {
  CHECK(largest_first(std::vector<double>{0.2, 0.5, 0.3}, 2) == Routes{1, 2});
  CHECK(largest_first(std::vector<double>{0.3, 0.3, 0.4}, 2) == Routes{2, 0});
  CHECK(largest_first(std::vector<double>{0.5, 0.5, 0.0}, 1) == Routes{0});
  CHECK(largest_first(std::vector<double>{0.25, 0.25, 0.25, 0.25}, 4) == Routes{0, 1, 2, 3});
  CHECK(largest_first(std::vector<double>{0.1, 0.4, 0.1, 0.4}, 3) == Routes{1, 3, 0});
  CHECK(largest_first(std::vector<double>{NAN, NAN, NAN}, 2).size() == 2);
}

/// Of one row; no variances: exact.
ExpertRoutes route(const Rounding& rounding, const std::vector<double>& logits,
                   const std::vector<double>& variances, std::int64_t top_k) {
  const auto count = static_cast<std::int64_t>(logits.size());
  TrackedArithmetic arithmetic(rounding);
  return arithmetic.route(experts_spec(count, top_k),
                          {PlainTensor<double>(1, count, {logits.begin(), logits.end()}),
                           {variances.begin(), variances.end()}});
}

// Deviations of 1e-4 reach 6.5e-4 each; what softmax rounds is millionths.
TEST_CASE("routes are near ties as far as errors of both logits reach") {
  const std::vector<double> variances = {1e-8, 1e-8, 1e-8};
  const ExpertRoutes near = route(kFloat32, {0.5 - 1.29e-3, 0.1, 0.5}, variances, 1);
  CHECK(near.experts == Routes{2});
  REQUIRE(near.near_tie);
  CHECK(near.near_tie->row == 0);
  CHECK(near.near_tie->chosen == 2);
  CHECK(near.near_tie->other == 0);
  CHECK(near.near_tie->chosen_p > near.near_tie->other_p);
  CHECK_FALSE(route(kFloat32, {0.5 - 1.31e-3, 0.1, 0.5}, variances, 1).near_tie);
  // The same two among the chosen, or not: any order is right.
  CHECK_FALSE(route(kFloat32, {0.5, 0.1, 0.5}, variances, 2).near_tie);
  CHECK_FALSE(route(kFloat32, {0.5, 0.9, 0.5}, variances, 1).near_tie);
  CHECK_FALSE(route(kFloat32, {0.5, 0.5, 0.5}, variances, 3).near_tie);
}

TEST_CASE("an expert of lower probability may have an error that reaches further") {
  const ExpertRoutes routes = route(kFloat32, {1, 0.5, 0.4}, {0, 0, 1e-2}, 1);
  REQUIRE(routes.near_tie);
  CHECK(routes.near_tie->chosen == 0);
  CHECK(routes.near_tie->other == 2);
}

TEST_CASE("exact ties of exact logits are certain, those of others are not") {
  CHECK(route(kFloat32, {0.5, 0.5}, {}, 1).experts == Routes{0});
  CHECK_FALSE(route(kFloat32, {0.5, 0.5}, {}, 1).near_tie);
  CHECK_FALSE(route(kFloat32, {0.5, 0.5}, {0, 0}, 1).near_tie);
  CHECK(route(kFloat32, {0.5, 0.5}, {0, 1e-30}, 1).near_tie);
  // Two floats that are neighbours: exp may make them equal.
  CHECK(route(kFloat32, {0.5, 0.5 + kUnit}, {}, 1).near_tie);
  CHECK_FALSE(route(kFloat64, {0.5, 0.5 + kUnit}, {}, 1).near_tie);
}

TEST_CASE("of probabilities that underflow none is certain") {
  CHECK_FALSE(route(kFloat32, {0, -80, -90}, {}, 2).near_tie);
  CHECK(route(kFloat32, {0, -200, -300}, {}, 2).near_tie);
  CHECK_FALSE(route(kFloat64, {0, -200, -300}, {}, 2).near_tie);
  CHECK(route(kFloat64, {0, -800, -900}, {}, 2).near_tie);
}

struct Inputs {
  ModuleSpec spec;
  std::vector<test::NaiveTensor<double>> naive;  ///< x, logits, w1, w2, w3, dy
  std::vector<TrackedTensor> tracked;
};

/// 5 rows; `logits` are those of every row, or random ones.
Inputs draw_inputs(std::int64_t num_experts, std::int64_t top_k,
                   const std::vector<double>& logits = {}) {
  std::mt19937 random(5);
  std::uniform_real_distribution<double> value(-1, 1);
  Inputs inputs{experts_spec(num_experts, top_k), {}, {}};
  const std::vector<std::pair<std::int64_t, std::int64_t>> shapes = {
      {5, 4}, {5, num_experts}, {3 * num_experts, 4}, {4 * num_experts, 3}, {3 * num_experts, 4},
      {5, 4}};
  for (const auto& [rows, cols] : shapes) {
    test::NaiveTensor<double>& tensor = inputs.naive.emplace_back(rows, cols);
    for (double& element : tensor.data)
      element = value(random);
  }
  std::vector<double>& drawn = inputs.naive[1].data;
  for (std::size_t i = 0; i < drawn.size() && !logits.empty(); ++i)
    drawn[i] = logits[i % logits.size()];
  for (const auto& tensor : inputs.naive)
    inputs.tracked.push_back(
        {PlainTensor<double>(tensor.rows, tensor.cols, {tensor.data.begin(), tensor.data.end()}),
         {}});
  return inputs;
}

/// Within 2^-44 of the largest: sums of a few dozen terms of size 1.
void check_equal(const TrackedTensor& got, const test::NaiveTensor<double>& expected) {
  REQUIRE(got.value.data.size() == expected.data.size());
  for (std::size_t i = 0; i < expected.data.size(); ++i)
    CHECK(std::abs(got.value.data[i] - expected.data[i]) <= 0x1p-44);
}

/// Against plain loops; returns the gradients.
std::vector<TrackedTensor> check_experts(const Inputs& inputs) {
  test::NaiveOps<double> ops(0);
  TrackedArithmetic arithmetic(kFloat32);
  const auto& t = inputs.tracked;
  const auto& n = inputs.naive;
  check_equal(arithmetic.experts(inputs.spec, t[0], t[1], t[2], t[3], t[4]),
              ops.experts(inputs.spec, n[0], n[1], n[2], n[3], n[4]));
  auto gradients = arithmetic.experts_gradients(inputs.spec, t[0], t[1], t[2], t[3], t[4], t[5]);
  const auto expected = ops.experts_gradients(inputs.spec, n[0], n[1], n[2], n[3], n[4], n[5]);
  for (std::size_t i = 0; i < gradients.size(); ++i)
    check_equal(gradients[i], expected[i]);
  return {gradients.begin(), gradients.end()};
}

TEST_CASE("experts that no position chose have gradients of exactly 0") {
  const auto gradients = check_experts(draw_inputs(4, 1, {0.5, 0.25, 2, -1}));
  for (const std::size_t weight : {2U, 3U, 4U}) {
    const TrackedTensor& gradient = gradients[weight];
    const std::size_t size = gradient.value.data.size() / 4;
    for (std::size_t i = 0; i < gradient.value.data.size(); ++i) {
      const bool is_chosen = i / size == 2;
      CHECK((gradient.value.data[i] != 0) == is_chosen);
      CHECK((gradient.variance[i] > 0) == is_chosen);
    }
  }
  // Their logits have one nevertheless, since p is not renormalised.
  for (const double value : gradients[1].value.data)
    CHECK(value != 0);
}

TEST_CASE("some, one or all of the experts add up to what plain loops give") {
  check_experts(draw_inputs(5, 2));
  check_experts(draw_inputs(3, 3));
  // One expert of p = 1: its logit changes nothing.
  const auto gradients = check_experts(draw_inputs(1, 1));
  for (const double value : gradients[1].value.data)
    CHECK(value == 0);
}

/// Two steps of experts by themselves, and a state before the second whose router is given.
struct Training {
  Scenario scenario;
  std::vector<TrainingState> held;
};

Training training(std::int64_t num_experts, std::int64_t top_k, const std::vector<double>& router) {
  test::GraphBuilder graph({3});
  graph.moe("moe", 0, 2, 4, num_experts, top_k);
  Training result{test::fsdp_scenario(graph.model(), 2), {}};
  result.scenario.training.steps = 2;
  TrainingState state{draw_parameters(result.scenario), {}, {}};
  REQUIRE(state.parameters.front().size() == router.size());
  state.parameters.front() = router;
  result.held = {state, state};
  return result;
}

std::optional<Error> error_of(const Training& training) {
  try {
    static_cast<void>(run_baseline(training.scenario, training.held));
  } catch (const Error& error) {
    return error;
  }
  return std::nullopt;
}

TEST_CASE("equal rows of a router are refused as a near tie, with all that finds it") {
  Training tied = training(3, 1, {0.5, 0.25, 0.5, 0.25, -0.5, 0.125});
  // A row opposite to the others' is chosen by some positions; the first that does not is found.
  const std::optional<Error> error = error_of(tied);
  REQUIRE(error);
  CHECK(error->kind() == ErrorKind::InvalidScenario);
  const Diagnostic& found = error->diagnostics().front();
  INFO(to_string(found));
  CHECK(found.message.find("NEAR_TIE: at step 1 \"moe.experts\" sends sample 0, position ") == 0);
  CHECK(found.message.find(" to expert 0 of probability 0.") != std::string::npos);
  CHECK(found.message.find(", not to expert 1 of 0.") != std::string::npos);
  CHECK(found.message.find("rounding in float32") != std::string::npos);
  CHECK(found.help == "take another data.seed, or dtype \"float64\"");
  CHECK(found.file == "built.json");
  CHECK(found.pointer == "/model/1");

  tied.scenario.numerics.dtype = DType::Float64;
  const std::optional<Error> in_float64 = error_of(tied);
  REQUIRE(in_float64);
  CHECK(in_float64->diagnostics().front().help == "take another data.seed");
}

TEST_CASE("well separated routes are not refused, nor any where all experts are chosen") {
  CHECK_FALSE(error_of(training(3, 1, {0.5, 0.25, -0.25, 0.5, -0.5, 0.125})));
  CHECK_FALSE(error_of(training(3, 3, {0.5, 0.25, 0.5, 0.25, 0.5, 0.25})));
  // All positions to one of equal logits: a router of zeros is exact.
  const Training zeros = training(3, 1, {0, 0, 0, 0, 0, 0});
  const ReferenceRun run = run_baseline(zeros.scenario, zeros.held);
  REQUIRE(run.steps[1].routes.size() == 1);
  CHECK(run.steps[1].routes[0] == Routes(12, 0));
}

TEST_CASE("a step says where every position of the batch goes, by falling probability") {
  const std::vector<double> router = {0.5, 0.25, -0.25, 0.5, -0.5, 0.125, 0.75, -0.5};
  const Training separate = training(4, 2, router);
  const Scenario& scenario = separate.scenario;
  const ReferenceRun run = run_baseline(scenario, separate.held);
  const AlignedVector<double> x = draw_samples(scenario, "input", scenario.data.input, 1, 6, 0, 6);
  Routes expected;
  for (std::size_t row = 0; row < 12; ++row) {
    std::vector<std::pair<double, std::int32_t>> logits;
    for (std::size_t e = 0; e < 4; ++e) {
      const double logit = router[2 * e] * x[2 * row] + router[2 * e + 1] * x[2 * row + 1];
      logits.emplace_back(-logit, static_cast<std::int32_t>(e));
    }
    std::sort(logits.begin(), logits.end());
    expected.insert(expected.end(), {logits[0].second, logits[1].second});
  }
  REQUIRE(run.steps[1].routes.size() == 1);
  CHECK(run.steps[1].routes[0] == expected);
  CHECK(std::count(expected.begin(), expected.end(), 0) > 0);
  CHECK(std::count(expected.begin(), expected.end(), 3) > 0);
}

// Step 0 moves a router of zeros, whose ties are exact, by 1e-30, which exp cannot tell from 0.
TEST_CASE("a near tie takes the bounds of a free training, and refuses one that is judged") {
  Training moved = training(2, 1, {0.5, 0.25, -0.25, 0.5});
  Scenario& scenario = moved.scenario;
  scenario.training.steps = 3;
  scenario.training.optimizer.lr = 1e-30;
  scenario.data.init_bound_from_shape = false;
  scenario.data.init = FillSpec{FillSpec::Kind::Integer, 1, 1, 1};
  const auto has_zeros = [&] {
    const std::vector<double> router = draw_parameters(scenario).front();
    return std::count(router.begin(), router.end(), 0) == 4;
  };
  while (!has_zeros())
    ++scenario.data.seed;
  moved.held.push_back(moved.held.back());
  const ReferenceRun run = run_baseline(scenario, moved.held);
  CHECK(std::isfinite(run.losses[0].spread));
  CHECK(std::isfinite(run.grad_norms[0].spread));
  for (const std::size_t step : {1U, 2U}) {
    CHECK(std::isinf(run.losses[step].spread));
    CHECK(std::isinf(run.grad_norms[step].spread));
    CHECK(std::isfinite(run.steps[step].loss.spread));
  }

  const std::optional<Error> error = error_of({scenario, {}});
  REQUIRE(error);
  CHECK(error->diagnostics().front().message.find("NEAR_TIE: at step 1 ") == 0);
}

}  // namespace
}  // namespace hpsim
