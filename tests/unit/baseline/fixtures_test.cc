// Losses, gradients, norms and parameters of PyTorch 2.14 in float64.

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "baseline/eigen_baseline.h"
#include "support/catch.h"
#include "support/graphs.h"
#include "support/scenarios.h"

namespace hpsim {
namespace {

using nlohmann::json;
using test::activation;
using test::linear;

json read_fixture(const std::string& name) {
  std::ifstream file(std::string(HPSIM_SOURCE_DIR) + "/tests/data/torch/" + name + ".json");
  REQUIRE(file);
  return json::parse(file);
}

/// The fixtures were made by one process: one data rank with the whole batch.
Scenario fixture_scenario(ModelSpec model, std::int64_t steps, std::int64_t global_batch) {
  Scenario scenario = test::fsdp_scenario(std::move(model), 1);
  scenario.training.steps = steps;
  scenario.training.global_batch = global_batch;
  return scenario;
}

/// 1e-12 of each tensor's largest magnitude.
void check_tensor(const std::vector<double>& got, const json& expected) {
  const auto values = expected.get<std::vector<double>>();
  REQUIRE(got.size() == values.size());
  double largest = 0;
  for (const double value : values)
    largest = std::max(largest, std::abs(value));
  double worst = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    worst = std::max(worst, std::abs(got[i] - values[i]));
  }
  CHECK(largest > 0);
  CHECK(worst <= 1e-12 * largest);
}

void check_scalar(double got, const json& expected) {
  CHECK(std::abs(got - expected.get<double>()) <= 1e-12 * std::abs(expected.get<double>()));
}

void check_gradients(const Scenario& scenario, const ReferenceStep& step, const json& expected) {
  REQUIRE(expected.size() == scenario.parameters.size());
  for (std::size_t i = 0; i < scenario.parameters.size(); ++i) {
    INFO(scenario.parameters[i].name);
    check_tensor(step.gradients[i].value, expected.at(scenario.parameters[i].name));
  }
}

void check_fixture(const Scenario& scenario, const std::string& name) {
  const json fixture = read_fixture(name);
  const ReferenceRun run = run_baseline(scenario);
  REQUIRE(run.steps.size() == fixture.at("steps").size());
  for (std::size_t t = 0; t < run.steps.size(); ++t) {
    INFO(name << " step " << t);
    const json& expected = fixture.at("steps").at(t);
    check_scalar(run.losses[t].value, fixture.at("losses").at(t));
    check_scalar(run.grad_norms[t].value, fixture.at("grad_norms").at(t));
    check_scalar(run.steps[t].loss.value, fixture.at("losses").at(t));
    check_gradients(scenario, run.steps[t], expected.at("grads"));
    for (std::size_t i = 0; i < scenario.parameters.size(); ++i) {
      INFO(scenario.parameters[i].name);
      check_tensor(run.steps[t].parameters[i].value,
                   expected.at("params").at(scenario.parameters[i].name));
    }
  }
}

TEST_CASE("elementwise trainings equal PyTorch's") {
  check_fixture(fixture_scenario(test::elementwise_model({{"weight", {7, 8}}}), 2, 8),
                "elementwise_7x8");

  Scenario two = fixture_scenario(test::elementwise_model({{"a", {5, 3}}, {"b", {6, 2, 2}}}), 2, 8);
  two.data.seed = 3;
  two.training.optimizer.lr = 0.5;
  two.training.optimizer.momentum = 0.9;
  check_fixture(two, "elementwise_two");

  Scenario integer = fixture_scenario(test::elementwise_model({{"weight", {9, 4}}}), 1, 8);
  integer.data.seed = 1;
  for (FillSpec* fill : {&integer.data.init, &integer.data.input, &integer.data.target}) {
    fill->kind = FillSpec::Kind::Integer;
  }
  integer.training.optimizer.lr = 0.5;
  check_fixture(integer, "elementwise_integer");
}

TEST_CASE("a chain of linear, relu and tanh under sgd equals PyTorch's") {
  check_fixture(
      fixture_scenario(test::modules_model({linear("l0", 8, 7), activation("a0", ModuleType::Relu),
                                            linear("l1", 7, 5), activation("a1", ModuleType::Tanh),
                                            linear("l2", 5, 3, false)}),
                       3, 16),
      "linear_chain");
}

TEST_CASE("linear and gelu under adamw equals PyTorch's") {
  Scenario scenario =
      fixture_scenario(test::modules_model({linear("l0", 6, 10), activation("a0", ModuleType::Gelu),
                                            linear("l1", 10, 6)}),
                       3, 8);
  scenario.data.seed = 5;
  scenario.training.optimizer.kind = OptimizerSpec::Kind::AdamW;
  scenario.training.optimizer.lr = 0.01;
  scenario.training.optimizer.weight_decay = 0.1;
  check_fixture(scenario, "linear_adamw");
}

TEST_CASE("norms over a sequence equal PyTorch's") {
  test::GraphBuilder graph({3});
  graph.rms_norm("rn", graph.linear("l", graph.layer_norm("ln", 0, 6), 6, 6), 6);
  check_fixture(fixture_scenario(graph.model(), 2, 4), "norms");
}

TEST_CASE("attention, causal or not, with grouped queries equals PyTorch's") {
  test::GraphBuilder causal({5});
  causal.attention("attn", 0, 8, 4, 4);
  check_fixture(fixture_scenario(causal.model(), 2, 4), "attention");
  test::GraphBuilder full({4});
  full.attention("attn", 0, 8, 4, 2, false);
  check_fixture(fixture_scenario(full.model(), 2, 4), "attention_gqa_full");
}

TEST_CASE("an mlp, gated or not, equals PyTorch's") {
  test::GraphBuilder gated({3});
  gated.mlp("mlp", 0, 6, 10);
  check_fixture(fixture_scenario(gated.model(), 2, 4), "mlp_gated");
  test::GraphBuilder plain({3});
  plain.mlp("mlp", 0, 6, 10, false);
  check_fixture(fixture_scenario(plain.model(), 2, 4), "mlp_plain");
}

TEST_CASE("a transformer under adamw with a cross entropy equals PyTorch's") {
  Scenario scenario = fixture_scenario(test::transformer_model(11, 8, 12, 5, 2), 2, 4);
  test::use_tokens(scenario);
  scenario.training.optimizer.kind = OptimizerSpec::Kind::AdamW;
  scenario.training.optimizer.lr = 0.01;
  scenario.training.optimizer.weight_decay = 0.01;
  check_fixture(scenario, "transformer");
}

TEST_CASE("a mixture of experts equals PyTorch's") {
  test::GraphBuilder graph({4});
  graph.moe("moe", 0, 6, 5, 4, 2);
  check_fixture(fixture_scenario(graph.model(), 2, 4), "moe_top2");
}

TEST_CASE("a mixture of experts in a residual under a tied output equals PyTorch's") {
  test::GraphBuilder graph({4});
  const int x = graph.embedding("tok", 9, 6);
  const int y = graph.add("b", x, graph.moe("b.moe", graph.layer_norm("b.norm", x, 6), 6, 4, 4, 1));
  graph.linear("out", y, 6, 9, false, 0);
  Scenario scenario = fixture_scenario(graph.model(), 2, 4);
  test::use_tokens(scenario);
  scenario.data.seed = 2;
  check_fixture(scenario, "transformer_moe_tied");
}

TEST_CASE("clipping under adam and in the infinity norm equals PyTorch's") {
  Scenario silu =
      fixture_scenario(test::modules_model({linear("l0", 6, 10), activation("a0", ModuleType::Silu),
                                            linear("l1", 10, 6)}),
                       3, 8);
  silu.data.seed = 6;
  silu.training.optimizer.kind = OptimizerSpec::Kind::Adam;
  silu.training.optimizer.lr = 0.01;
  silu.training.clip_grad_norm = ClipSpec{0.05, 2};
  check_fixture(silu, "linear_adam_clip");

  Scenario gelu = fixture_scenario(
      test::modules_model(
          {linear("l0", 4, 5), activation("a0", ModuleType::Gelu, true), linear("l1", 5, 2)}),
      2, 8);
  gelu.training.optimizer.momentum = 0.9;
  gelu.training.optimizer.nesterov = true;
  gelu.training.optimizer.weight_decay = 0.01;
  const json clip = read_fixture("linear_clip_inf").at("scenario").at("training");
  gelu.training.clip_grad_norm = ClipSpec{clip.at("clip_grad_norm").at("max_norm").get<double>(),
                                          std::numeric_limits<double>::infinity()};
  check_fixture(gelu, "linear_clip_inf");
}

}  // namespace
}  // namespace hpsim
