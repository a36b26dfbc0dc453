// Gradients of the float64 program against central differences of its losses. The tolerance is
// computed: the truncation error from two widths, the rounding error from the losses' own bounds.

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "baseline/eigen_baseline.h"
#include "support/catch.h"
#include "support/graphs.h"
#include "support/scenarios.h"

namespace hpsim {
namespace {

using test::activation;
using test::linear;

constexpr double kUnit = 0x1p-53;

/// The second of two steps, judged from the given parameters.
ReferenceStep step_from(const Scenario& scenario, const TrainingState& state) {
  return run_baseline(scenario, {state, state}).steps[1];
}

struct Difference {
  double value = 0;
  double tolerance = 0;
};

/// (L(w + h) - L(w - h)) / 2h in one element. Its truncation error is about a third of its
/// difference to the one of width 2h; the losses are off by their bounds.
Difference central_difference(const Scenario& scenario, TrainingState state, std::size_t parameter,
                              std::size_t element) {
  constexpr double kWidth = 0x1p-16;
  const auto quotient = [&](double h) {
    const double centre = state.parameters[parameter][element];
    state.parameters[parameter][element] = centre + h;
    const ReferenceScalar above = step_from(scenario, state).loss;
    state.parameters[parameter][element] = centre - h;
    const ReferenceScalar below = step_from(scenario, state).loss;
    state.parameters[parameter][element] = centre;
    const double rounding =
        above.spread + below.spread + 4 * kUnit * (std::abs(above.value) + std::abs(below.value));
    return Difference{(above.value - below.value) / (2 * h), rounding / (2 * h)};
  };
  const Difference narrow = quotient(kWidth);
  const Difference wide = quotient(2 * kWidth);
  return {narrow.value, std::abs(narrow.value - wide.value) + narrow.tolerance + wide.tolerance};
}

void check_gradients(ModelSpec model, LossNormalization normalization,
                     LossKind loss = LossKind::Mse) {
  Scenario scenario = test::fsdp_scenario(std::move(model), 2);
  if (loss == LossKind::CrossEntropy) test::use_tokens(scenario);
  scenario.numerics.dtype = DType::Float64;
  scenario.training.steps = 2;
  scenario.training.global_batch = 6;
  scenario.training.loss_normalization = normalization;
  // The gradient of the reported loss: avg for the mean over ranks, sum for sums.
  if (normalization == LossNormalization::Sum) scenario.fully_shard.reduce_op = ReduceOp::Sum;
  TrainingState state;
  state.parameters = run_baseline(scenario).initial;
  const ReferenceStep step = step_from(scenario, state);
  for (std::size_t p = 0; p < scenario.parameters.size(); ++p) {
    const std::vector<double>& gradient = step.gradients[p].value;
    double largest = 0;
    double largest_tolerance = 0;
    for (const double value : gradient)
      largest = std::max(largest, std::abs(value));
    // Of many elements some, in rows and columns that wander.
    const std::size_t stride = gradient.size() <= 10 ? 1 : gradient.size() / 8 + 1;
    for (std::size_t i = p % stride; i < gradient.size(); i += stride) {
      const Difference difference = central_difference(scenario, state, p, i);
      INFO(scenario.parameters[p].name << " element " << i);
      CHECK(std::abs(difference.value - gradient[i]) <= difference.tolerance);
      largest_tolerance = std::max(largest_tolerance, difference.tolerance);
    }
    // A gradient that is wrong by one part in a thousand would be seen.
    CHECK(largest_tolerance < 1e-3 * largest);
  }
}

TEST_CASE("gradients of every module type are derivatives of the loss") {
  const std::vector<ModuleSpec> activations = {
      activation("a", ModuleType::Relu), activation("a", ModuleType::Tanh),
      activation("a", ModuleType::Silu), activation("a", ModuleType::Gelu),
      activation("a", ModuleType::Gelu, true)};
  for (const auto normalization : {LossNormalization::LocalMean, LossNormalization::Sum}) {
    for (const ModuleSpec& spec : activations) {
      INFO(name_of(spec.type) << (spec.tanh_approximation ? " tanh" : ""));
      ModuleSpec last = spec;
      last.name += "2";
      check_gradients(
          test::modules_model({linear("l0", 5, 6), spec, linear("l1", 6, 4, false), last}),
          normalization);
    }
    check_gradients(test::modules_model({activation("first", ModuleType::Tanh), linear("l0", 5, 3),
                                         linear("l1", 3, 7)}),
                    normalization);
    check_gradients(test::elementwise_model({{"a", {3, 2}}, {"b", {5}}}), normalization);
  }
}

/// Every graph under mse, for a mean and for a sum.
void check_graph(const test::GraphBuilder& graph) {
  for (const auto normalization : {LossNormalization::LocalMean, LossNormalization::Sum})
    check_gradients(graph.model(), normalization);
}

TEST_CASE("gradients of norms are derivatives of the loss") {
  for (const bool is_layer_norm : {true, false}) {
    test::GraphBuilder graph({2});
    const auto norm = [&](const std::string& name, int x, double eps) {
      return is_layer_norm ? graph.layer_norm(name, x, 5, eps) : graph.rms_norm(name, x, 5, eps);
    };
    // A large eps, of which the derivative makes something too.
    const int x = norm("n1", graph.linear("l0", norm("n0", 0, 1e-5), 5, 5), 0.3);
    graph.linear("l1", x, 5, 3);
    check_graph(graph);
  }
}

TEST_CASE("gradients of residuals are derivatives of the loss") {
  test::GraphBuilder graph({3});
  const int x = graph.linear("l0", 0, 4, 4);
  const int y =
      graph.add("r0", x, graph.activation("a", graph.linear("l1", x, 4, 4), ModuleType::Tanh));
  // One activation read four times, twice by one operation.
  const int z = graph.add("twice", y, y);
  graph.add("r1", graph.linear("l2", z, 4, 4), graph.add("r2", y, x));
  check_graph(graph);
}

TEST_CASE("gradients of attention are derivatives of the loss") {
  const auto check = [](std::int64_t heads, std::int64_t kv_heads, bool is_causal) {
    INFO(heads << " heads, " << kv_heads << " of keys, causal " << is_causal);
    const std::int64_t dim = 2 * heads;
    test::GraphBuilder graph({3});
    graph.attention("attn", graph.linear("l", 0, 2, dim, false), dim, heads, kv_heads, is_causal);
    check_gradients(graph.model(), LossNormalization::LocalMean);
  };
  check(4, 2, true);
  for (const bool is_causal : {true, false}) {
    check(2, 2, is_causal);
    check(2, 1, is_causal);
  }
}

TEST_CASE("gradients of an mlp are derivatives of the loss") {
  for (const bool is_gated : {true, false}) {
    test::GraphBuilder graph({2});
    graph.mlp("mlp", graph.linear("l", 0, 3, 4), 4, 5, is_gated);
    check_graph(graph);
  }
}

TEST_CASE("gradients of experts are derivatives of the loss") {
  for (const std::int64_t top_k : {1, 2, 3}) {
    INFO("top " << top_k);
    test::GraphBuilder graph({2});
    graph.moe("moe", graph.linear("l", 0, 3, 4), 4, 5, 3, top_k);
    check_graph(graph);
  }
}

TEST_CASE("gradients of a cross entropy are derivatives of the loss") {
  for (const auto normalization : {LossNormalization::LocalMean, LossNormalization::Sum}) {
    check_gradients(test::modules_model({linear("l0", 4, 5), activation("a", ModuleType::Tanh),
                                         linear("l1", 5, 7)}),
                    normalization, LossKind::CrossEntropy);
  }
  for (const bool is_tied : {false, true}) {
    check_gradients(test::transformer_model(7, 4, 5, 3, 1, is_tied), LossNormalization::LocalMean,
                    LossKind::CrossEntropy);
  }
}

TEST_CASE("the gradient of a tied weight is the sum over the linears that use it") {
  test::GraphBuilder graph;
  const int x = graph.activation("a", graph.linear("l0", 0, 4, 4), ModuleType::Tanh);
  graph.linear("l1", graph.activation("b", graph.linear("l2", x, 4, 4, true, 0), ModuleType::Silu),
               4, 4, false, 0);
  const ModelSpec& model = graph.model();
  CHECK(names_of(list_parameters(model)) ==
        std::vector<std::string>{"l0.weight", "l0.bias", "l2.bias"});
  check_graph(graph);
}

}  // namespace
}  // namespace hpsim
