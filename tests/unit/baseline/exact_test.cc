// Exact mode: equal to naive trainings in any order, and refused where an operation rounds.

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "base/error.h"
#include "baseline/eigen_baseline.h"
#include "baseline/exact_arithmetic.h"
#include "naive_training.h"
#include "support/catch.h"
#include "support/graphs.h"
#include "support/scenarios.h"

namespace hpsim {
namespace {

using test::activation;
using test::linear;
using test::NaiveStep;
using test::NaiveTraining;

Scenario exact_scenario(ModelSpec model, std::int64_t num_ranks) {
  Scenario scenario = test::fsdp_scenario(std::move(model), num_ranks);
  test::make_exact(scenario);
  return scenario;
}

ModelSpec chain() {
  return test::modules_model({linear("l0", 9, 17), activation("a", ModuleType::Relu),
                              linear("l1", 17, 5), linear("l2", 5, 3, false)});
}

void check_equal(const std::vector<double>& got, const ReferenceTensor& expected) {
  CHECK(got == expected.value);  // -0 == 0
  CHECK(expected.spread == std::vector<double>(got.size()));
}

template <class T>
void check_exact(const Scenario& scenario) {
  const ReferenceRun reference = run_baseline(scenario);
  REQUIRE(reference.exact);
  for (std::uint32_t seed = 0; seed < 6; ++seed) {
    NaiveTraining<T> naive(scenario, seed);
    CHECK(naive.state().parameters == reference.initial);
    for (const ReferenceStep& expected : reference.steps) {
      const NaiveStep got = naive.step();
      CHECK(got.loss == expected.loss.value);
      CHECK(expected.loss.spread == 0);
      CHECK(std::abs(got.grad_norm - expected.grad_norm.value) <= expected.grad_norm.spread);
      CHECK(expected.grad_norm.spread <= 1e-12 * expected.grad_norm.value);
      for (std::size_t p = 0; p < scenario.parameters.size(); ++p) {
        check_equal(got.gradients[p], expected.gradients[p]);
        check_equal(got.after.parameters[p], expected.parameters[p]);
        for (std::size_t s = 0; s < expected.state.size(); ++s) {
          check_equal(got.after.state[s][p], expected.state[s][p]);
        }
      }
    }
  }
  // Something happened: the loss and the weights changed.
  CHECK(reference.losses.front().value > 0);
  CHECK(reference.losses.front().value != reference.losses.back().value);
  CHECK(reference.initial[0] != reference.steps.back().parameters[0].value);
}

TEST_CASE("exact trainings equal naive ones in every order") {
  // 3 ranks: means and the avg scale divide by 4.
  Scenario elementwise = exact_scenario(test::elementwise_model({{"a", {7, 3}}, {"b", {5}}}), 3);
  elementwise.training.steps = 4;
  elementwise.training.optimizer.lr = 64;  // the mean divides by 64 and 4
  elementwise.data.init.scale = 0.25;
  elementwise.training.optimizer.round_to = 0.25;
  elementwise.training.optimizer.clamp = 0.5;
  check_exact<float>(elementwise);

  Scenario modules = exact_scenario(chain(), 4);
  modules.training.steps = 3;
  check_exact<float>(modules);
  modules.training.loss_normalization = LossNormalization::Sum;
  modules.fully_shard.reduce_op = ReduceOp::Sum;
  modules.training.optimizer.lr = 0x1p-12;
  check_exact<float>(modules);

  Scenario momentum = exact_scenario(chain(), 2);
  momentum.training.steps = 3;
  momentum.training.optimizer.momentum = 0.5;
  momentum.training.optimizer.weight_decay = 0.125;
  momentum.fully_shard.gradient_scaling_factor = 2;
  momentum.fully_shard.gradient_divide_factor = 8;
  momentum.numerics.dtype = DType::Float64;
  check_exact<double>(momentum);
  momentum.training.optimizer.nesterov = true;
  check_exact<double>(momentum);
}

TEST_CASE("exact trainings of graphs equal naive ones in every order") {
  test::GraphBuilder residual({3});
  const int x = residual.linear("l0", 0, 4, 6);
  const int h = residual.activation("a", residual.linear("l1", x, 6, 6), ModuleType::Relu);
  residual.linear("l2", residual.add("r", x, h), 6, 2);
  Scenario scenario = exact_scenario(residual.model(), 2);
  scenario.training.steps = 3;
  scenario.numerics.dtype = DType::Float64;
  check_exact<double>(scenario);

  // The output's weight is the embedding's, which two of three operations use.
  test::GraphBuilder tied({3});
  const int e = tied.embedding("tok", 5, 4);
  tied.linear("out", tied.add("twice", e, e), 4, 5, true, 0);
  Scenario tokens = exact_scenario(tied.model(), 3);
  tokens.data.input.kind = FillSpec::Kind::Token;
  tokens.data.input.vocabulary = 5;
  tokens.training.steps = 2;
  check_exact<float>(tokens);
}

TEST_CASE("weights are rounded to multiples, ties to even, then clamped") {
  Scenario scenario = exact_scenario(test::elementwise_model({{"w", {64}}}), 1);
  scenario.training.optimizer.lr = 64;  // the mean divides by 128
  const ReferenceRun run = run_baseline(scenario);
  int ties = 0;
  int clamped = 0;
  for (std::size_t i = 0; i < 64; ++i) {
    const double before = run.initial[0][i] - 64 * run.steps[0].gradients[0].value[i];
    double expected = std::floor(before);
    const double rest = before - expected;
    if (rest > 0.5 || (rest == 0.5 && std::fmod(expected, 2) != 0)) expected += 1;
    ties += rest == 0.5 ? 1 : 0;
    clamped += std::abs(expected) > 2 ? 1 : 0;
    expected = std::max(-2.0, std::min(2.0, expected));
    CHECK(run.steps[0].parameters[0].value[i] == expected);
  }
  CHECK(ties > 0);
  CHECK(clamped > 0);
}

std::string refusal_of(const Scenario& scenario) {
  try {
    static_cast<void>(run_baseline(scenario));
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::InvalidScenario);
    REQUIRE(error.diagnostics().size() == 1);
    CHECK(error.diagnostics()[0].file == "built.json");
    CHECK(error.diagnostics()[0].pointer == "/numerics/mode");
    CHECK_FALSE(error.diagnostics()[0].help.empty());
    return error.diagnostics()[0].message;
  }
  return "";
}

TEST_CASE("what rounds is refused by step and name") {
  const ModelSpec one = test::elementwise_model({{"w", {4, 4}}});

  Scenario uniform = exact_scenario(chain(), 2);
  uniform.data.input = FillSpec{};
  CHECK(refusal_of(uniform) ==
        "exact mode, but at step 0 the output of \"l0\" is not exact in float32");

  Scenario rate = exact_scenario(one, 2);
  rate.training.optimizer.lr = 0.1;
  CHECK(refusal_of(rate) ==
        "exact mode, but at step 0 the update of \"w\" is not exact in float32");

  Scenario divisor = exact_scenario(chain(), 2);
  divisor.fully_shard.gradient_divide_factor = 3;
  CHECK(refusal_of(divisor) ==
        "exact mode, but at step 0 the gradient of \"l2.weight\" is not exact in float32");

  // Squares of up to 5001 + 4 need 25 bits.
  Scenario large = exact_scenario(one, 2);
  large.data.target.max = 5001;
  CHECK(refusal_of(large) == "exact mode, but at step 0 the loss is not exact in float32");
  large.numerics.dtype = DType::Float64;
  CHECK(refusal_of(large).empty());

  // Unrounded weights after step 0 are multiples of 2^-4 (lr) / 32 (mean) / 2 (avg) = 2^-10; errors
  // of up to 2 * 2 + 2 then need 13 bits, and their squares 26.
  Scenario growing = exact_scenario(one, 2);
  growing.training.steps = 30;
  growing.training.optimizer.round_to.reset();
  growing.training.optimizer.clamp.reset();
  CHECK(refusal_of(growing) == "exact mode, but at step 1 the loss is not exact in float32");
}

/// Every operation on its own: silent for small integers, refused for thirds, at sizes that use
/// vector code with and without remainders.
TEST_CASE("every operation raises the flag when it rounds") {
  using Tensor = PlainTensor<float>;
  const Scenario scenario = exact_scenario(chain(), 1);
  const ExactArithmetic<float> exact(scenario, 0);
  const auto filled = [](std::int64_t rows, std::int64_t cols, float value) {
    Tensor tensor(rows, cols);
    for (std::size_t i = 0; i < tensor.data.size(); ++i) {
      tensor.data[i] = value * static_cast<float>(i % 5 + 1);
    }
    return tensor;
  };
  using Operation = std::function<void(const Tensor& x, const Tensor& y, const Tensor& w)>;
  const std::vector<std::pair<const char*, Operation>> operations = {
      {"linear", [&](auto& x, auto&, auto& w) { static_cast<void>(exact.linear(x, w, nullptr)); }},
      {"weight gradient",
       [&](auto& x, auto& y, auto&) { static_cast<void>(exact.weight_gradient(y, x)); }},
      {"bias gradient", [&](auto& x, auto&, auto&) { static_cast<void>(exact.bias_gradient(x)); }},
      {"input gradient",
       [&](auto&, auto& y, auto& w) { static_cast<void>(exact.input_gradient(y, w)); }},
      {"difference",
       [&](auto& x, auto&, auto&) {
         Tensor shifted = x;
         for (float& value : shifted.data)
           value *= 0x1p-3F;
         static_cast<void>(exact.difference(x, shifted));
       }},
      {"scaled columns",
       [&](auto& x, auto&, auto&) {
         static_cast<void>(exact.scaled_columns(x, exact.slice(x, 0, x.cols)));
       }},
      {"column products",
       [&](auto& x, auto&, auto&) { static_cast<void>(exact.column_products(x, x)); }},
      {"scaled", [&](auto& x, auto&, auto&) { static_cast<void>(exact.scaled(x, 3)); }},
      {"scaled gradient",
       [&](auto& x, auto&, auto&) {
         Tensor scaled = x;
         exact.scale_gradient(scaled, 3, 1);
       }},
      {"squares", [&](auto& x, auto&, auto&) {
         float sum = 0;
         exact.add_squares(sum, x);
       }}};
  for (const auto& entry : operations) {
    for (const std::int64_t size : {2, 17, 64}) {
      INFO(entry.first << " of size " << size);
      const auto run = [&](float value) {
        const Tensor x = filled(3, size, value);
        const Tensor y = filled(3, size + 1, value);
        const Tensor w = filled(size + 1, size, value);
        exact.piece(entry.first, [&] { entry.second(x, y, w); });
      };
      CHECK_NOTHROW(run(1.0F));
      CHECK_THROWS_AS(run(1.0F / 3.0F), Error);
    }
  }
}

}  // namespace
}  // namespace hpsim
