// Parts of the model that a rank leaves out: what goes around them, and what is zero inside.

#include <vector>

#include "one_rank_run.h"
#include "support/catch.h"
#include "support/graphs.h"
#include "support/scenarios.h"

namespace hpsim {
namespace {

using Numbers = std::vector<double>;
using test::GraphBuilder;

InactiveSpec without(int first, int end, std::vector<std::int64_t> micro_batches = {0}) {
  return {.first = first,
          .end = end,
          .data_ranks = {0},
          .steps = {0},
          .micro_batches = std::move(micro_batches)};
}

Scenario on_one_rank(const GraphBuilder& graph, std::vector<InactiveSpec> inactive) {
  Scenario scenario = test::fsdp_scenario(graph.model(), 1);
  scenario.data.inactive = std::move(inactive);
  return scenario;
}

void check_close(const Numbers& got, const Numbers& expected) {
  REQUIRE(got.size() == expected.size());
  for (std::size_t i = 0; i < got.size(); ++i)
    CHECK(got[i] == Approx(expected[i]).epsilon(1e-13).margin(1e-15));
}

/// in 3 -> 4; if `with_part`, mid 4 -> 4; out 4 -> 2. Without biases: a weight each.
GraphBuilder chain(bool with_part) {
  GraphBuilder graph;
  int x = graph.linear("in", 0, 3, 4, false);
  if (with_part) x = graph.linear("mid", x, 4, 4, false);
  graph.linear("out", x, 4, 2, false);
  return graph;
}

TEST_CASE("a part that is left out is the identity: as if the model had it not") {
  const OneRankRun run(on_one_rank(chain(true), {without(1, 2)}));
  const OneRankRun shorter(on_one_rank(chain(false), {}));
  CHECK(run.loss() == shorter.loss());
  check_close(run.gradient(0), shorter.gradient(0));
  check_close(run.gradient(2), shorter.gradient(1));
  // It is unused: no gradient, no update.
  CHECK(run.parameter(1, 1) == run.parameter(1, 0));
  CHECK(OneRankRun(on_one_rank(chain(true), {})).loss() != run.loss());
}

TEST_CASE("unused parameters have gradients of zeros where these are reduced") {
  Scenario scenario = on_one_rank(chain(true), {without(1, 2)});
  scenario.training.reduce_unused = true;
  scenario.training.optimizer.weight_decay = 0.5;
  const OneRankRun run(scenario);
  CHECK(run.gradient(1) == Numbers(16, 0.0));
  const Numbers before = run.parameter(1, 0);
  const Numbers after = run.parameter(1, 1);
  for (std::size_t i = 0; i < before.size(); ++i)
    CHECK(after[i] == Approx(before[i] * (1 - 0.1 * 0.5)).epsilon(1e-14));
}

TEST_CASE("the first and the last module can be left out") {
  // The model's input is 4 wide, as is its output.
  GraphBuilder two;
  two.linear("b", two.linear("a", 0, 4, 4, false), 4, 4, false);
  GraphBuilder first, last;
  first.linear("a", 0, 4, 4, false);
  last.linear("b", 0, 4, 4, false);
  const OneRankRun without_last(on_one_rank(two, {without(1, 2)}));
  const OneRankRun only_first(on_one_rank(first, {}));
  CHECK(without_last.loss() == only_first.loss());
  check_close(without_last.gradient(0), only_first.gradient(0));
  const OneRankRun without_first(on_one_rank(two, {without(0, 1)}));
  const OneRankRun only_last(on_one_rank(last, {}));
  CHECK(without_first.loss() == only_last.loss());
  check_close(without_first.gradient(1), only_last.gradient(0));
}

/// x + branch(x), x = in(input), then out: modules in, l1, gelu, l2, add, out.
GraphBuilder residual(bool with_branch) {
  GraphBuilder graph;
  int x = graph.linear("in", 0, 3, 4, false);
  if (with_branch) {
    const int l1 = graph.linear("l1", x, 4, 6, false);
    const int act = graph.activation("act", l1, ModuleType::Gelu);
    x = graph.add("add", x, graph.linear("l2", act, 6, 4, false));
  }
  graph.linear("out", x, 4, 2, false);
  return graph;
}

TEST_CASE("of a residual that is left out, what is added to remains") {
  const OneRankRun run(on_one_rank(residual(true), {without(1, 5)}));
  const OneRankRun shorter(on_one_rank(residual(false), {}));
  CHECK(run.loss() == shorter.loss());
  check_close(run.gradient(0), shorter.gradient(0));
  check_close(run.gradient(3), shorter.gradient(1));
  Scenario zeros = on_one_rank(residual(true), {without(1, 5)});
  zeros.training.reduce_unused = true;
  const OneRankRun reduced(zeros);
  CHECK(reduced.gradient(1) == Numbers(24, 0.0));
  CHECK(reduced.gradient(2) == Numbers(24, 0.0));
  check_close(reduced.gradient(0), shorter.gradient(0));
}

TEST_CASE("only the micro-batches that are named leave the part out") {
  // Mean of two losses: one with the part, one without.
  const auto loss_of = [](std::vector<InactiveSpec> inactive) {
    Scenario scenario = on_one_rank(chain(true), std::move(inactive));
    scenario.training.micro_batches = 2;
    return OneRankRun(scenario).loss();
  };
  const double all = loss_of({});
  const double none = loss_of({without(1, 2, {0, 1})});
  const double first = loss_of({without(1, 2, {0})});
  const double second = loss_of({without(1, 2, {1})});
  CHECK(first != all);
  CHECK(first != none);
  CHECK(first + second == Approx(all + none).epsilon(1e-14));
}

TEST_CASE("an elementwise parameter that is left out leaves the loss") {
  Scenario scenario = test::fsdp_scenario(test::elementwise_model({{"a", {3}}, {"b", {2}}}), 1);
  const OneRankRun whole(scenario);
  scenario.data.inactive = {without(1, 2)};
  const OneRankRun run(scenario);
  CHECK(run.result.losses(Rank{0}, 0)[0] == whole.result.losses(Rank{0}, 0)[0]);
  CHECK(run.result.losses(Rank{0}, 0)[1] == 0);
  CHECK(whole.result.losses(Rank{0}, 0)[1] != 0);
  CHECK(run.gradient(0) == whole.gradient(0));
  CHECK(run.parameter(1, 1) == run.parameter(1, 0));
  scenario.training.reduce_unused = true;
  CHECK(OneRankRun(scenario).gradient(1) == Numbers{0, 0});
}

}  // namespace
}  // namespace hpsim
