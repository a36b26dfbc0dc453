// Micro-batches, valid positions, parts left out, frozen parameters and clipping: gradients are
// derivatives of the loss, trainings equal naive ones, and what has no gradient stays.

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "base/error.h"
#include "baseline/eigen_baseline.h"
#include "judged_training.h"
#include "support/catch.h"
#include "support/graphs.h"
#include "support/scenarios.h"

namespace hpsim {
namespace {

using test::activation;
using test::judge_training;
using test::linear;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// in, a residual of a norm and an mlp, a sequential of two linears, out.
ModelSpec parts_model() {
  test::GraphBuilder graph({3});
  const int x = graph.linear("in", 0, 4, 5);
  const int branch = graph.mlp("r.mlp", graph.rms_norm("r.norm", x, 5), 5, 6);
  const int y = graph.add("r", x, branch);
  const int z = graph.activation("s.a", graph.linear("s.l", y, 5, 5), ModuleType::Tanh);
  graph.linear("out", z, 5, 2);
  ModelSpec model = graph.model();
  model.groups = {{"r", x, y, ModuleGroup::Kind::Residual},
                  {"s", y, z, ModuleGroup::Kind::Sequential}};
  return model;
}

/// Parts of parts_model, as ranges of modules.
InactiveSpec left_out(const ModelSpec& model, const std::string& group,
                      std::vector<std::int64_t> ranks, std::vector<std::int64_t> micro_batches,
                      std::vector<std::int64_t> steps = {0, 1, 2, 3}) {
  const auto at = std::find_if(model.groups.begin(), model.groups.end(),
                               [&](const ModuleGroup& g) { return g.name == group; });
  return {at->first, at->end, std::move(ranks), std::move(steps), std::move(micro_batches)};
}

struct Policy {
  const char* name;
  std::function<void(Scenario&)> apply;
};

void use_micro_batches(Scenario& scenario) {
  scenario.training.micro_batches = 3;
  scenario.training.global_batch = 3 * 2 * scenario.num_data_ranks();
}

std::vector<Policy> policies() {
  std::vector<Policy> all;
  all.push_back({"micro-batches", use_micro_batches});
  all.push_back({"unequal tokens", [](Scenario& s) {
                   use_micro_batches(s);
                   s.data.tokens = {{6, 1, 4}, {2, 5, 3}};
                 }});
  all.push_back({"parts left out", [](Scenario& s) {
                   use_micro_batches(s);
                   s.data.inactive = {left_out(s.model, "r", {0}, {0, 2}),
                                      left_out(s.model, "s", {0, 1}, {2})};
                 }});
  all.push_back({"parts left out, and tokens", [](Scenario& s) {
                   use_micro_batches(s);
                   s.data.tokens = {{6, 1, 4}, {2, 5, 3}};
                   s.data.inactive = {left_out(s.model, "r", {1}, {1}),
                                      left_out(s.model, "s", {0, 1}, {0, 1})};
                   // All of both parts, around them.
                   s.data.inactive.push_back(
                       {s.model.groups[0].first, s.model.groups[1].end, {0}, {0, 1, 2, 3}, {1}});
                 }});
  return all;
}

/// (L(w + h) - L(w - h)) / 2h against every gradient.
void check_derivatives(Scenario scenario) {
  constexpr double kUnit = 0x1p-53;
  constexpr double kWidth = 0x1p-16;
  scenario.numerics.dtype = DType::Float64;
  scenario.training.steps = 2;
  if (scenario.training.loss_normalization != LossNormalization::LocalMean) {
    scenario.fully_shard.reduce_op = ReduceOp::Sum;
  }
  TrainingState state;
  state.parameters = run_baseline(scenario).initial;
  const auto step = [&] { return run_baseline(scenario, {state, state}).steps[1]; };
  const ReferenceStep reference = step();
  for (std::size_t p = 0; p < scenario.parameters.size(); ++p) {
    // Of many elements some, in rows and columns that wander.
    const std::size_t size = state.parameters[p].size();
    const std::size_t stride = size <= 6 ? 1 : size / 3 + 1;
    for (std::size_t i = p % stride; i < size; i += stride) {
      double& element = state.parameters[p][i];
      const double centre = element;
      double tolerance = 0;
      const auto quotient = [&](double h) {
        element = centre + h;
        const ReferenceScalar above = step().loss;
        element = centre - h;
        const ReferenceScalar below = step().loss;
        element = centre;
        tolerance += (above.spread + below.spread +
                      4 * kUnit * (std::abs(above.value) + std::abs(below.value))) /
                     (2 * h);
        return (above.value - below.value) / (2 * h);
      };
      const double narrow = quotient(kWidth);
      tolerance += std::abs(narrow - quotient(2 * kWidth));
      INFO(scenario.parameters[p].name << " element " << i);
      CHECK(std::abs(narrow - reference.gradients[p].value[i]) <= tolerance);
      CHECK(tolerance < 1e-6);
    }
  }
}

TEST_CASE("gradients under every policy are derivatives of the loss") {
  for (const auto normalization :
       {LossNormalization::LocalMean, LossNormalization::GlobalTokens, LossNormalization::Sum}) {
    for (const Policy& policy : policies()) {
      INFO(policy.name << ", normalization " << static_cast<int>(normalization));
      Scenario scenario = test::fsdp_scenario(parts_model(), 2);
      scenario.training.loss_normalization = normalization;
      policy.apply(scenario);
      check_derivatives(scenario);
    }
  }
}

TEST_CASE("gradients of elementwise parameters that some samples leave out are derivatives") {
  Scenario scenario =
      test::fsdp_scenario(test::elementwise_model({{"a", {3, 2}}, {"b", {4}}, {"c", {2}}}), 2);
  use_micro_batches(scenario);
  scenario.data.inactive = {{0, 1, {0}, {0, 1}, {0, 1}}, {1, 3, {0, 1}, {0, 1}, {2}}};
  check_derivatives(scenario);
}

TEST_CASE("gradients of a module used twice add up, with its bias") {
  ModelSpec model = test::modules_model({linear("l", 4, 4), activation("a", ModuleType::Tanh),
                                         linear("again", 4, 4), linear("out", 4, 2)});
  model.modules[2].tied_to = 0;
  model.modules[2].ties_bias = true;
  Scenario scenario = test::fsdp_scenario(model, 2);
  std::erase_if(scenario.parameters, [](const auto& p) { return p.name == "again.bias"; });
  REQUIRE(scenario.parameters.size() == 4);
  scenario.training.global_batch = 4;
  check_derivatives(scenario);
}

TEST_CASE("trainings under every policy stay within the bounds, and near them") {
  double worst_gradient = 0;
  std::uint32_t seed = 0;
  for (const auto normalization :
       {LossNormalization::LocalMean, LossNormalization::GlobalTokens, LossNormalization::Sum}) {
    for (const Policy& policy : policies()) {
      for (const double p : {1.0, 2.0, 3.0, kInfinity}) {
        Scenario scenario = test::fsdp_scenario(parts_model(), 2);
        scenario.training.loss_normalization = normalization;
        scenario.training.steps = 4;
        policy.apply(scenario);
        const std::size_t num_parameters = scenario.parameters.size();
        scenario.training.trained_from.assign(num_parameters, 0);
        scenario.training.trained_from[0] = 9;  // never
        scenario.training.trained_from[1] = 2;
        scenario.training.trained_from[num_parameters - 1] = 1;
        scenario.training.clip_grad_norm = ClipSpec{p == 1 ? 2.0 : 0.2, p};
        for (const OptimizerSpec& spec : test::optimizers()) {
          scenario.training.optimizer = spec;
          scenario.data.seed = seed;
          const test::Judge judge = judge_training<float>(scenario, seed++);
          INFO(policy.name << ", normalization " << static_cast<int>(normalization) << ", p " << p);
          for (int kind = 0; kind < test::kNumKinds; ++kind) {
            INFO(test::kNames[kind]);
            CHECK(judge.worst[kind] < 1);
          }
          worst_gradient = std::max(worst_gradient, judge.worst[test::kGradient]);
        }
      }
    }
  }
  CHECK(worst_gradient > 0.05);
}

TEST_CASE("the mean over all terms is told beside the loss") {
  Scenario scenario = test::fsdp_scenario(test::modules_model({linear("l", 3, 1, false)}), 1);
  scenario.training.micro_batches = 2;
  scenario.training.global_batch = 8;
  scenario.data.tokens = {{1, 4}};
  scenario.numerics.dtype = DType::Float64;
  const ReferenceRun run = run_baseline(scenario);
  test::NaiveTraining<double> naive(scenario, 0);
  CHECK(run.losses[0].value == Approx(naive.step().loss));
  Scenario global = scenario;
  global.training.loss_normalization = LossNormalization::GlobalTokens;
  const ReferenceStep of_global = run_baseline(global).steps[0];
  CHECK(run.steps[0].global_loss.value == Approx(of_global.loss.value).epsilon(1e-14));
  CHECK(of_global.global_loss.value == Approx(of_global.loss.value).epsilon(1e-14));
  CHECK(std::abs(run.losses[0].value - of_global.loss.value) > 1e-3);
}

TEST_CASE("parameters without a gradient stay, and their updates are counted one by one") {
  Scenario scenario = test::fsdp_scenario(test::elementwise_model({{"a", {3}}, {"b", {3}}}), 2);
  scenario.numerics.dtype = DType::Float64;
  scenario.training.steps = 3;
  scenario.training.optimizer.kind = OptimizerSpec::Kind::Adam;
  scenario.training.optimizer.lr = 0.01;
  scenario.training.optimizer.eps = 0;
  scenario.training.trained_from = {1, 0};
  const ReferenceRun run = run_baseline(scenario);
  const ReferenceStep& first = run.steps[0];
  CHECK(first.gradients[0].value.empty());
  CHECK(first.parameters[0].value == run.initial[0]);
  CHECK(first.parameters[0].spread == std::vector<double>(3));
  CHECK(first.state[0][0].value == std::vector<double>(3));
  double square = 0;
  for (const double g : first.gradients[1].value)
    square += g * g;
  CHECK(first.grad_norm.value == Approx(std::sqrt(square)));
  // Adam's first update is lr times the sign of the gradient, whatever the step.
  for (std::size_t i = 0; i < 3; ++i) {
    const double moved = run.steps[1].parameters[0].value[i] - run.initial[0][i];
    CHECK(moved == Approx(-0.01 * (run.steps[1].gradients[0].value[i] > 0 ? 1 : -1)));
    const double again = run.steps[1].parameters[1].value[i] - first.parameters[1].value[i];
    CHECK(std::abs(std::abs(again) - 0.01) > 1e-6);
  }

  // The first momentum buffer is the gradient.
  scenario.training.optimizer = OptimizerSpec{};
  scenario.training.optimizer.momentum = 0.9;
  const ReferenceRun sgd = run_baseline(scenario);
  CHECK(sgd.steps[1].state[0][0].value == sgd.steps[1].gradients[0].value);
  CHECK(sgd.steps[2].state[0][0].value != sgd.steps[2].gradients[0].value);
}

TEST_CASE("a parameter that nobody uses has no gradient, or zeros") {
  Scenario scenario = test::fsdp_scenario(parts_model(), 2);
  scenario.training.optimizer.weight_decay = 0.5;
  scenario.data.inactive = {left_out(scenario.model, "s", {0, 1}, {0})};
  const auto p = static_cast<std::size_t>(
      std::find_if(scenario.parameters.begin(), scenario.parameters.end(),
                   [](const auto& parameter) { return parameter.name == "s.l.weight"; }) -
      scenario.parameters.begin());
  const ReferenceRun none = run_baseline(scenario);
  CHECK(none.steps[0].gradients[p].value.empty());
  CHECK(none.steps[0].parameters[p].value == none.initial[p]);
  scenario.training.reduce_unused = true;
  const ReferenceRun zeros = run_baseline(scenario);
  CHECK(zeros.steps[0].gradients[p].value == std::vector<double>(25));
  CHECK(zeros.steps[0].gradients[p].spread == std::vector<double>(25));
  CHECK(zeros.steps[0].parameters[p].value[0] == Approx(0.95 * zeros.initial[p][0]));
}

template <class T>
void check_exact(const Scenario& scenario) {
  const ReferenceRun run = run_baseline(scenario);
  REQUIRE(run.exact);
  for (std::uint32_t seed = 0; seed < 4; ++seed) {
    test::NaiveTraining<T> naive(scenario, seed);
    CHECK(naive.state().parameters == run.initial);
    for (const ReferenceStep& expected : run.steps) {
      const test::NaiveStep got = naive.step();
      CHECK(got.loss == expected.loss.value);
      for (std::size_t p = 0; p < got.gradients.size(); ++p) {
        CHECK(got.gradients[p] == expected.gradients[p].value);
        CHECK(got.after.parameters[p] == expected.parameters[p].value);
      }
    }
  }
  bool has_changed = false;
  for (std::size_t p = 0; p < run.initial.size(); ++p)
    has_changed = has_changed || run.initial[p] != run.steps.back().parameters[p].value;
  CHECK(has_changed);
}

Scenario exact_scenario(ModelSpec model) {
  Scenario scenario = test::hsdp_scenario(std::move(model), 2, 2);
  test::make_exact(scenario);
  scenario.training.steps = 3;
  scenario.training.micro_batches = 3;
  scenario.training.global_batch = 2 * 3 * 4;
  scenario.training.optimizer.lr = 4;
  return scenario;
}

TEST_CASE("exact trainings under policies equal naive ones") {
  test::GraphBuilder graph({3});
  const int x = graph.linear("in", 0, 4, 5);
  const int y =
      graph.add("r", x, graph.activation("a", graph.linear("l", x, 5, 5), ModuleType::Relu));
  graph.linear("out", y, 5, 2);
  ModelSpec model = graph.model();
  model.groups = {{"r", x, y, ModuleGroup::Kind::Residual}};
  Scenario scenario = exact_scenario(model);
  scenario.numerics.dtype = DType::Float64;
  scenario.data.tokens.assign(4, {6, 2, 5});
  scenario.data.inactive = {left_out(model, "r", {0, 3}, {1})};
  scenario.training.trained_from.assign(scenario.parameters.size(), 0);
  scenario.training.trained_from[0] = 1;
  scenario.training.trained_from[2] = 9;
  for (const auto normalization :
       {LossNormalization::LocalMean, LossNormalization::GlobalTokens, LossNormalization::Sum}) {
    scenario.training.loss_normalization = normalization;
    check_exact<double>(scenario);
    scenario.training.optimizer.lr = 0x1p-6;
  }
}

/// Numbers of few bits: weights of a few rows and small integers.
Scenario narrow_exact_scenario(DType dtype) {
  Scenario scenario = test::fsdp_scenario(test::elementwise_model({{"w", {6}}}), 2);
  test::make_exact(scenario);
  for (FillSpec* fill : {&scenario.data.init, &scenario.data.input, &scenario.data.target})
    fill->max = 1;
  scenario.training.optimizer.clamp = 1;
  scenario.training.optimizer.lr = 32;
  scenario.training.micro_batches = 2;
  scenario.training.global_batch = 4;
  scenario.training.steps = 3;
  scenario.fully_shard.mp_policy.param_dtype = dtype;
  return scenario;
}

TEST_CASE("exact trainings in 16 bits equal naive ones") {
  for (const DType dtype : {DType::BFloat16, DType::Float16}) {
    check_exact<float>(narrow_exact_scenario(dtype));
    Scenario all = narrow_exact_scenario(dtype);
    all.numerics.dtype = dtype;
    check_exact<float>(all);
  }
}

std::string refusal_of(const Scenario& scenario) {
  try {
    static_cast<void>(run_baseline(scenario));
  } catch (const Error& error) {
    CHECK_FALSE(error.diagnostics().at(0).help.empty());
    return error.diagnostics()[0].message;
  }
  return "";
}

TEST_CASE("what 16 bits round is refused by step, name and dtype") {
  Scenario weights = narrow_exact_scenario(DType::BFloat16);
  weights.data.init.max = 1000;
  CHECK(refusal_of(weights) ==
        "exact mode, but at step 0 the gathered \"w\" is not exact in bfloat16");
  Scenario outputs = narrow_exact_scenario(DType::BFloat16);
  outputs.data.init.max = 100;
  outputs.data.input.max = 100;
  CHECK(refusal_of(outputs) ==
        "exact mode, but at step 0 the output of \"w\" is not exact in bfloat16");
  // Sums of four gradients with 7 bits each have 8 or 9.
  Scenario reduction = narrow_exact_scenario(DType::BFloat16);
  reduction.fully_shard.mp_policy = {};
  reduction.fully_shard.mp_policy.reduce_dtype = DType::BFloat16;
  reduction.data.target.max = 1000;
  CHECK(refusal_of(reduction) ==
        "exact mode, but at step 0 the gradient of \"w\" is not exact in bfloat16");
  reduction.fully_shard.mp_policy.reduce_dtype.reset();
  CHECK(refusal_of(reduction).empty());
  // A sixteenth is a number of bfloat16, but not with 8 bits before it.
  Scenario update = narrow_exact_scenario(DType::BFloat16);
  update.fully_shard.mp_policy = {};
  update.numerics.dtype = DType::BFloat16;
  update.training.optimizer.round_to.reset();
  update.training.optimizer.clamp.reset();
  update.training.optimizer.lr = 0x1p-12;
  CHECK(refusal_of(update) ==
        "exact mode, but at step 0 the update of \"w\" is not exact in bfloat16");
}

}  // namespace
}  // namespace hpsim
