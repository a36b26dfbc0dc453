// Bounds of whole graphs against naive trainings in the run's dtype.

#include <cstdint>
#include <utility>
#include <vector>

#include "judged_training.h"
#include "support/catch.h"
#include "support/graphs.h"
#include "support/scenarios.h"

namespace hpsim {
namespace {

using test::Fault;
using test::GraphBuilder;
using test::judge_training;
using test::Worst;

GraphBuilder norms_graph() {
  GraphBuilder graph({3});
  const int x = graph.linear("l0", graph.layer_norm("n0", 0, 12), 12, 16);
  graph.linear("l1", graph.rms_norm("n1", x, 16), 16, 6);
  return graph;
}

/// Four residuals, the branches and the stream of which carry the same errors.
GraphBuilder residual_graph() {
  GraphBuilder graph({2});
  int x = graph.linear("in", 0, 6, 8);
  for (const char* name : {"r0", "r1", "r2", "r3"}) {
    const std::string branch = name;
    const int h =
        graph.activation(branch + ".a", graph.linear(branch + ".l", x, 8, 8), ModuleType::Tanh);
    x = graph.add(branch, x, h);
  }
  return graph;
}

GraphBuilder attention_graph(std::int64_t kv_heads, bool is_causal) {
  GraphBuilder graph({6});
  const int x = graph.linear("in", 0, 5, 16);
  const int h = graph.layer_norm("norm", x, 16);
  graph.add("r", x, graph.attention("attn", h, 16, 4, kv_heads, is_causal));
  return graph;
}

GraphBuilder mlp_graph(bool is_gated) {
  GraphBuilder graph({2});
  const int x = graph.linear("in", 0, 5, 8);
  graph.add("r", x, graph.mlp("mlp", graph.rms_norm("norm", x, 8), 8, 12, is_gated));
  return graph;
}

GraphBuilder experts_graph(std::int64_t top_k) {
  GraphBuilder graph({4});
  const int x = graph.linear("in", 0, 5, 8);
  graph.add("r", x, graph.moe("moe", graph.rms_norm("norm", x, 8), 8, 6, 4, top_k));
  return graph;
}

/// An embedding, two blocks of attention and experts, and an output over the vocabulary.
GraphBuilder experts_transformer(std::int64_t vocabulary) {
  GraphBuilder graph({6});
  int x = graph.embedding("tok", vocabulary, 8);
  for (const std::string name : {"b0", "b1"}) {
    x = graph.add(name + ".r1", x,
                  graph.attention(name + ".attn", graph.rms_norm(name + ".n1", x, 8), 8, 4, 2));
    x = graph.add(name + ".r2", x,
                  graph.moe(name + ".moe", graph.rms_norm(name + ".n2", x, 8), 8, 6, 5, 2));
  }
  graph.linear("out", graph.rms_norm("norm", x, 8), 8, vocabulary, false);
  return graph;
}

std::vector<Scenario> scenarios() {
  std::vector<Scenario> all;
  for (const GraphBuilder& graph :
       {norms_graph(), residual_graph(), attention_graph(4, true), attention_graph(2, false),
        attention_graph(1, true), mlp_graph(true), mlp_graph(false), experts_graph(1),
        experts_graph(2), experts_graph(4)}) {
    all.push_back(test::fsdp_scenario(graph.model(), 2));
  }
  all.push_back(test::hsdp_scenario(test::transformer_model(11, 8, 12, 5, 2), 2, 2));
  test::use_tokens(all.back());
  all.push_back(test::fsdp_scenario(test::transformer_model(9, 8, 12, 4, 1, true), 3));
  test::use_tokens(all.back());
  all.push_back(test::fsdp_scenario(experts_transformer(11).model(), 2));
  test::use_tokens(all.back());
  // Weights so large that rows attend to one position, whose errors they then have in common.
  all.push_back(test::fsdp_scenario(test::transformer_model(7, 8, 8, 16, 2), 2));
  test::use_tokens(all.back());
  all.back().data.init_bound_from_shape = false;
  all.back().data.init.bound = 1.5;
  for (std::size_t i = 0; i < all.size(); ++i) {
    all[i].training.steps = 3;
    all[i].data.seed = i;
    if (i % 3 == 1) all[i].training.loss_normalization = LossNormalization::Sum;
    if (i % 4 == 2) all[i].fully_shard.gradient_scaling_factor = 3;
    if (i % 4 == 3) all[i].fully_shard.gradient_divide_factor = 7;
  }
  return all;
}

TEST_CASE("errors of naive float32 trainings of graphs lie within the bounds, and near them") {
  const Worst worst = test::judge_all<float>(scenarios(), 4);
  for (int kind = 0; kind < test::kNumKinds; ++kind) {
    INFO(test::kNames[kind]);
    UNSCOPED_INFO("worst err / bound " << worst[kind]);
    CHECK(worst[kind] >= 0.01);
    CHECK(worst[kind] <= 0.5);
  }
}

TEST_CASE("errors of naive float64 trainings of graphs lie within the bounds") {
  std::vector<Scenario> all = scenarios();
  for (Scenario& scenario : all)
    scenario.numerics.dtype = DType::Float64;
  const Worst worst = test::judge_all<double>(all, 1);
  for (const double ratio : worst)
    CHECK(ratio >= 0.01);
}

TEST_CASE("small faults of graphs pass the bounds") {
  const std::vector<Scenario> all = scenarios();
  for (std::size_t i = 0; i < all.size(); ++i) {
    INFO("scenario " << i);
    Scenario scenario = all[i];
    scenario.training.steps = 1;
    CHECK(judge_training<float>(scenario, 1).worst[test::kGradient] <= 1);
    for (const Fault fault : {Fault::Doubled, Fault::MissingSample, Fault::OneTerm}) {
      // The last one's large weights make more than a thousandth out of a rounding error.
      if (fault == Fault::OneTerm && i + 1 == all.size()) continue;
      CHECK(judge_training<float>(scenario, 1, fault).worst[test::kGradient] > 1);
    }
  }
}

// Were rows of the same token taken as independent, err / bound would be 1.14 here.
TEST_CASE("rows of the same token round alike") {
  Scenario scenario = test::fsdp_scenario(test::transformer_model(7, 8, 8, 32, 2), 2);
  test::use_tokens(scenario);
  scenario.data.init_bound_from_shape = false;
  scenario.data.init.bound = 1.5;
  scenario.data.seed = 2;
  const test::Judge judge = judge_training<float>(scenario, 2);
  CHECK(judge.worst[test::kGradient] <= 0.6);
  CHECK(judge.vacuity <= 0.125);
}

}  // namespace
}  // namespace hpsim
