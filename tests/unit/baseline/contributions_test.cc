// The terms of a gradient, against the gradients of batches in which only their positions are
// valid.

#include "baseline/contributions.h"

#include <cmath>

#include "baseline/eigen_baseline.h"
#include "baseline/sample_data.h"
#include "scenario/parse.h"
#include "support/catch.h"
#include "support/scenarios.h"

namespace hpsim::test {
namespace {

ContributionRequest whole(const Scenario& scenario, int p, std::int64_t num_parts = 1) {
  const auto& shape = scenario.parameters.at(static_cast<std::size_t>(p)).shape;
  return {.step = 0, .parameter = p, .elems = {{0, num_elems(shape)}}, .num_parts = num_parts};
}

/// "sum": what terms are divided by does not depend on what else is valid.
Scenario summed(Scenario scenario) {
  scenario.training.loss_normalization = LossNormalization::Sum;
  return scenario;
}

/// The gradient where only the first `count` positions of that micro-batch of that rank are valid.
std::vector<double> gradient_of(Scenario scenario, int p, std::int64_t data_rank,
                                std::int64_t micro_batch, std::int64_t count) {
  scenario.data.tokens.assign(
      static_cast<std::size_t>(scenario.num_data_ranks()),
      std::vector<std::int64_t>(static_cast<std::size_t>(scenario.training.micro_batches), 0));
  scenario.data.tokens[static_cast<std::size_t>(data_rank)][static_cast<std::size_t>(micro_batch)] =
      count;
  return gradients_of_step(scenario, 0, draw_parameters(scenario), 6)
      .gradients.at(static_cast<std::size_t>(p))
      .value;
}

void check_equal(const std::vector<double>& a, const std::vector<double>& b) {
  REQUIRE(a.size() == b.size());
  REQUIRE_FALSE(a.empty());
  for (std::size_t i = 0; i < a.size(); ++i)
    CHECK(std::abs(a[i] - b[i]) <= 1e-13 * (1 + std::abs(b[i])));
}

/// Every term of every parameter is the gradient of its samples, and they add up to G.
void check_terms(const Scenario& scenario) {
  const auto parameters = draw_parameters(scenario);
  const ReferenceStep step = gradients_of_step(scenario, 0, parameters, 6);
  const std::int64_t positions = num_positions(scenario.model) * scenario.micro_batch_size();
  for (int p = 0; p < static_cast<int>(parameters.size()); ++p) {
    CAPTURE(scenario.parameters[static_cast<std::size_t>(p)].name);
    const Contributions terms = contributions_to(scenario, whole(scenario, p), parameters);
    std::vector<double> sum(step.gradients[static_cast<std::size_t>(p)].value.size());
    for (std::int64_t d = 0; d < scenario.num_data_ranks(); ++d) {
      for (std::int64_t m = 0; m < scenario.training.micro_batches; ++m) {
        check_equal(terms.term(d, m, 0), gradient_of(scenario, p, d, m, positions));
        for (std::size_t i = 0; i < sum.size(); ++i)
          sum[i] += terms.term(d, m, 0)[i];
      }
    }
    check_equal(sum, step.gradients[static_cast<std::size_t>(p)].value);
  }
}

TEST_CASE("a term is the gradient of its samples alone") {
  Scenario layers = fsdp_scenario(
      modules_model({linear("l0", 5, 4), activation("a", ModuleType::Tanh), linear("l1", 4, 3)}),
      2);
  layers.training.micro_batches = 2;
  layers.training.global_batch = 8;
  layers.fully_shard.gradient_scaling_factor = 3;
  check_terms(summed(layers));
  layers.fully_shard.mp_policy.param_dtype = DType::BFloat16;
  check_terms(summed(layers));
  Scenario elementwise = fsdp_scenario(elementwise_model({{"w", {3, 2}}, {"v", {5}}}), 3);
  check_terms(summed(elementwise));
}

TEST_CASE("so it is in attention, norms, embeddings, tied weights and experts") {
  check_terms(summed(parse_scenario(R"x({"hpsim": 1,
      "mesh": {"shape": [2], "mesh_dim_names": ["fsdp"]},
      "model": [{"name": "wte", "type": "embedding", "num_embeddings": 5, "embedding_dim": 8},
                {"name": "attn", "type": "attention", "dim": 8, "heads": 2},
                {"name": "norm", "type": "layer_norm", "dim": 8},
                {"name": "moe", "type": "moe", "dim": 8, "hidden": 4, "experts": 3, "top_k": 2},
                {"name": "head", "type": "linear", "in_features": 8, "out_features": 5,
                 "bias": false, "tied_to": "wte.weight"}],
      "fully_shard": {"units": ["moe"]},
      "data": {"sample_shape": [4]}, "training": {"global_batch": 4, "loss": "cross_entropy"}})x",
                                    "transformer.json")));
}

TEST_CASE("a part is the gradient of a run of positions of every sample") {
  // One sample a micro-batch: the first 2 of 4 positions of the last module see no others.
  Scenario scenario = fsdp_scenario(
      modules_model({linear("l0", 5, 4), activation("a", ModuleType::Tanh), linear("l1", 4, 3)}),
      2);
  scenario.model.positions = {4};
  scenario.training.global_batch = 2;
  scenario = summed(scenario);
  const auto parameters = draw_parameters(scenario);
  for (const int p : {2, 3}) {
    const Contributions parts = contributions_to(scenario, whole(scenario, p, 2), parameters);
    const Contributions all = contributions_to(scenario, whole(scenario, p), parameters);
    for (std::int64_t d = 0; d < 2; ++d) {
      check_equal(parts.term(d, 0, 0), gradient_of(scenario, p, d, 0, 2));
      std::vector<double> sum = parts.term(d, 0, 0);
      for (std::size_t i = 0; i < sum.size(); ++i)
        sum[i] += parts.term(d, 0, 1)[i];
      check_equal(sum, all.term(d, 0, 0));
    }
  }
}

TEST_CASE("only the elements that are asked for are kept") {
  Scenario scenario = fsdp_scenario(elementwise_model({{"w", {3, 4}}}), 2);
  const auto parameters = draw_parameters(scenario);
  ContributionRequest request = whole(scenario, 0);
  const Contributions all = contributions_to(scenario, request, parameters);
  request.elems = {{1, 3}, {8, 10}};
  const Contributions some = contributions_to(scenario, request, parameters);
  for (std::int64_t d = 0; d < 2; ++d) {
    const std::vector<double>& of_all = all.term(d, 0, 0);
    CHECK(some.term(d, 0, 0) == std::vector<double>{of_all[1], of_all[2], of_all[8], of_all[9]});
  }
  CHECK(contribution_cost(scenario, request) == 2 * 12);
}

TEST_CASE("loss and gradients of a step are those of the baseline, with their bounds") {
  Scenario scenario = fsdp_scenario(
      modules_model({linear("l0", 5, 4), activation("a", ModuleType::Gelu), linear("l1", 4, 3)}),
      2);
  const ReferenceRun run = run_baseline(scenario);
  const ReferenceStep step =
      gradients_of_step(scenario, 0, draw_parameters(scenario), run.confidence);
  CHECK(step.loss.value == run.steps[0].loss.value);
  CHECK(step.loss.spread == run.steps[0].loss.spread);
  for (std::size_t p = 0; p < step.gradients.size(); ++p) {
    CHECK(step.gradients[p].value == run.steps[0].gradients[p].value);
    CHECK(step.gradients[p].spread == run.steps[0].gradients[p].spread);
  }
}

}  // namespace
}  // namespace hpsim::test
