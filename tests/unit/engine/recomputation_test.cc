// Parts that backward computes again: the same numbers, and the memory that the plan says.

#include <algorithm>
#include <utility>
#include <vector>

#include "one_rank_run.h"
#include "support/catch.h"
#include "support/graphs.h"
#include "support/scenarios.h"
#include "trace/plan_ledger.h"

namespace hpsim {
namespace {

using test::GraphBuilder;

constexpr auto kActivations = static_cast<std::size_t>(MemoryKind::Activations);

Scenario with(Scenario scenario, std::vector<RecomputedSpec> recomputed) {
  scenario.training.recomputed = std::move(recomputed);
  return scenario;
}

/// Every number of two runs, bit for bit, in all steps.
void check_same_numbers(const OneRankRun& a, const OneRankRun& b) {
  const TrainingSpec& training = a.plan->scenario.training;
  for (std::int64_t step = 0; step < training.steps; ++step) {
    CHECK(a.loss(step) == b.loss(step));
    for (int p = 0; p < static_cast<int>(a.plan->parameters.size()); ++p) {
      CAPTURE(step, p);
      CHECK(a.gradient(p, step) == b.gradient(p, step));
      CHECK(a.parameter(p, step + 1) == b.parameter(p, step + 1));
    }
  }
}

/// What the rank really took and gave back is what the plan says.
void check_memory(const OneRankRun& run) {
  const RankRecord& record = run.result.rank_record(Rank{0});
  const PlannedMemory planned = planned_memory(*run.plan, {0});
  CHECK(record.ledger.peak() == planned.ledger.peak());
  CHECK(record.ledger.live() == planned.ledger.live());
  CHECK(planned.ledger.live()[kActivations] == 0);
}

/// Runs the scenario with and without; both must come to the same.
OneRankRun check_recomputed(const Scenario& scenario, std::vector<RecomputedSpec> recomputed) {
  const OneRankRun without(scenario);
  OneRankRun run(with(scenario, std::move(recomputed)));
  const auto again = std::count_if(run.plan->steps.begin(), run.plan->steps.end(),
                                   [](const Step& step) { return step.is_recomputed; });
  CHECK(again > 0);
  check_same_numbers(run, without);
  check_memory(run);
  return run;
}

/// in 3 -> 4, x + l2(gelu(l1(x))), n, out 4 -> 2: modules in, l1, act, l2, add, n, out.
Scenario residual_scenario() {
  GraphBuilder graph;
  const int x = graph.linear("in", 0, 3, 4, false);
  const int l1 = graph.linear("l1", x, 4, 6, false);
  const int act = graph.activation("act", l1, ModuleType::Gelu);
  const int sum = graph.add("add", x, graph.linear("l2", act, 6, 4, false));
  graph.linear("out", graph.layer_norm("n", sum, 4), 4, 2, false);
  Scenario scenario = test::fsdp_scenario(graph.model(), 1);
  scenario.training.steps = 2;
  return scenario;
}

TEST_CASE("any part of a model computes the same numbers again") {
  const Scenario scenario = residual_scenario();
  const int num_modules = 7;
  for (int first = 0; first < num_modules; ++first) {
    for (int end = first + 1; end <= num_modules; ++end) {
      CAPTURE(first, end);
      check_recomputed(scenario, {{first, end}});
    }
  }
  check_recomputed(scenario, {{0, 1}, {1, 4}, {5, 6}});
}

TEST_CASE("micro-batches, frozen modules, reductions at the end") {
  Scenario scenario = residual_scenario();
  scenario.training.micro_batches = 2;
  scenario.training.gradient_syncs = {false, true};
  check_recomputed(scenario, {{0, 5}});
  scenario.training.trained_from = {2, 2, 0, 0, 1, 0};  // in and l1 never, n's bias from step 1 on
  REQUIRE(scenario.training.trained_from.size() == scenario.parameters.size());
  check_recomputed(scenario, {{0, 5}});
  check_recomputed(scenario, {{2, 4}});
}

InactiveSpec without(int first, int end) {
  return {.first = first, .end = end, .data_ranks = {0}, .steps = {0, 1}, .micro_batches = {0}};
}

TEST_CASE("parts that are left out, inside, around, the same, at its beginning or its end") {
  // The residual [1, 5) gives what it adds to.
  Scenario residual = residual_scenario();
  residual.data.inactive = {without(1, 5)};
  for (const auto& [first, end] : std::vector<std::pair<int, int>>{
           {1, 5}, {0, 7}, {0, 5}, {1, 7}, {2, 3}, {1, 2}, {1, 4}, {2, 5}, {4, 5}}) {
    CAPTURE(first, end);
    check_recomputed(residual, {{first, end}});
  }
  // Of a to e, all 4 -> 4, b to d are left out: what goes around them is copied.
  GraphBuilder graph;
  int x = 0;
  for (const char* name : {"a", "b", "c", "d", "e"})
    x = graph.linear(name, x, 4, 4, false);
  Scenario chain = test::fsdp_scenario(graph.model(), 1);
  chain.training.steps = 2;
  chain.data.inactive = {without(1, 4)};
  chain.training.reduce_unused = true;
  for (const auto& [first, end] : std::vector<std::pair<int, int>>{
           {1, 4}, {0, 5}, {0, 4}, {1, 5}, {2, 3}, {1, 2}, {1, 3}, {2, 4}, {3, 4}}) {
    CAPTURE(first, end);
    check_recomputed(chain, {{first, end}});
  }
}

TEST_CASE("attention, gated mlps and norms of a transformer, tied weights, a cross entropy") {
  Scenario scenario = test::fsdp_scenario(test::transformer_model(11, 8, 12, 5, 2, true), 1);
  test::use_tokens(scenario);
  const auto num_modules = static_cast<int>(scenario.model.modules.size());
  // Embedding, two equal blocks, norm, output.
  const int block = (num_modules - 3) / 2;
  const OneRankRun plain(scenario);
  const OneRankRun blocks =
      check_recomputed(scenario, {{1, 1 + block}, {1 + block, 1 + 2 * block}});
  const auto peak = [](const OneRankRun& run) {
    return run.result.rank_record(Rank{0}).ledger.peak()[kActivations];
  };
  CHECK(peak(blocks) < peak(plain));
  check_recomputed(scenario, {{0, num_modules}});
}

TEST_CASE("experts route, and keep, the same once more") {
  GraphBuilder graph;
  const int x = graph.linear("in", 0, 3, 4, false);
  graph.linear("out", graph.moe("moe", x, 4, 5, 3, 2), 4, 2, false);
  Scenario scenario = test::fsdp_scenario(graph.model(), 1);
  scenario.training.steps = 2;
  const int num_modules = 4;  // in, router, experts, out
  for (int first = 0; first < num_modules; ++first) {
    for (int end = first + 1; end <= num_modules; ++end) {
      CAPTURE(first, end);
      check_recomputed(scenario, {{first, end}});
    }
  }
  // Nothing needs the gradient of what frozen experts give: they keep nothing.
  scenario.training.trained_from = {2, 2, 2, 2, 2, 0};  // in, router, w1, w2, w3, out
  REQUIRE(scenario.training.trained_from.size() == scenario.parameters.size());
  check_memory(OneRankRun(scenario));
}

}  // namespace
}  // namespace hpsim
