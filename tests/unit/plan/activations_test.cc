// Layouts of activations, and where the steps change them.

#include <fmt/format.h>

#include <algorithm>

#include "plan/build_plan.h"
#include "plan/passes/passes.h"
#include "plan/verify_plan.h"
#include "support/catch.h"
#include "unit/plan/activation_scenarios.h"

namespace hpsim {
namespace {

using test::ActivationCase;
using test::colwise_chain;
using test::function_json;
using test::linear_json;
using test::scenario_of;
using test::told_changes;
using test::told_steps;
using Texts = std::vector<std::string>;

const char* const kTpOnly = R"("tp")";
const char* const kFsdpTp = R"("fsdp", "tp")";

std::vector<ModuleLayout> layouts_of(const ActivationCase& test) {
  Plan plan;
  plan.scenario = scenario_of(test);
  std::vector<ModuleLayout> layouts;
  for (const ModulePlan& planned : lay_out_activations(std::move(plan)).modules)
    layouts.push_back(planned.layout);
  return layouts;
}

/// "input -> output, given; gradient".
std::string told(const ModuleLayout& layout) {
  return to_string(layout.inputs.at(0)) + " -> " + to_string(layout.output) + ", " +
         to_string(layout.given) + "; " + to_string(layout.input_gradients.at(0));
}

struct Row {
  std::string weight;    ///< placement along tp; empty: an activation function
  std::string arriving;  ///< how the module before it, or the data, leaves its input
  std::string input;
  std::string output;
  std::string gradient;  ///< of the input
};

/// The module under test is the last one of a model on a mesh (tp 2), behind a linear that hands on
/// what the row asks for.
ModuleLayout layout_of(const Row& row) {
  ActivationCase test{"2", kTpOnly, {linear_json("before", 4, 4)}, {}};
  std::string placements;
  if (row.arriving == "Shard(1)") placements = R"x("before.weight": {"tp": "Shard(0)"})x";
  if (row.arriving == "Partial(sum)") placements = R"x("before.weight": {"tp": "Shard(1)"})x";
  if (row.weight.empty()) {
    test.modules.push_back(function_json("last"));
  } else {
    test.modules.push_back(linear_json("last", 4, 4));
    placements += fmt::format(R"({}"last.weight": {{"tp": "{}"}})", placements.empty() ? "" : ", ",
                              row.weight);
  }
  test.more = fmt::format(R"("placements": {{{}}})", placements);
  if (placements.empty()) test.more = R"("training": {})";
  if (row.arriving == "Shard(0)") test.more += R"(, "data": {"data_dims": ["tp"]})";
  const auto layouts = layouts_of(test);
  CHECK(to_string(layouts.at(0).given) == "[" + row.arriving + "]");
  return layouts.at(1);
}

TEST_CASE("what every placement of a weight makes of every layout that arrives") {
  const Row rows[] = {
      {"Replicate", "Shard(0)", "Shard(0)", "Shard(0)", "Shard(0)"},
      {"Replicate", "Replicate", "Replicate", "Replicate", "Replicate"},
      {"Replicate", "Shard(1)", "Replicate", "Replicate", "Replicate"},
      {"Replicate", "Partial(sum)", "Replicate", "Replicate", "Replicate"},
      {"Shard(0)", "Shard(0)", "Replicate", "Shard(1)", "Partial(sum)"},
      {"Shard(0)", "Replicate", "Replicate", "Shard(1)", "Partial(sum)"},
      {"Shard(0)", "Shard(1)", "Replicate", "Shard(1)", "Partial(sum)"},
      {"Shard(0)", "Partial(sum)", "Replicate", "Shard(1)", "Partial(sum)"},
      {"Shard(1)", "Shard(0)", "Shard(1)", "Partial(sum)", "Shard(1)"},
      {"Shard(1)", "Replicate", "Shard(1)", "Partial(sum)", "Shard(1)"},
      {"Shard(1)", "Shard(1)", "Shard(1)", "Partial(sum)", "Shard(1)"},
      {"Shard(1)", "Partial(sum)", "Shard(1)", "Partial(sum)", "Shard(1)"},
      {"", "Shard(0)", "Shard(0)", "Shard(0)", "Shard(0)"},
      {"", "Replicate", "Replicate", "Replicate", "Replicate"},
      {"", "Shard(1)", "Shard(1)", "Shard(1)", "Shard(1)"},
      {"", "Partial(sum)", "Replicate", "Replicate", "Replicate"},
  };
  for (const Row& row : rows) {
    CAPTURE(row.weight, row.arriving);
    const ModuleLayout layout = layout_of(row);
    CHECK(to_string(layout.inputs.at(0)) == "[" + row.input + "]");
    CHECK(to_string(layout.output) == "[" + row.output + "]");
    CHECK(layout.given == layout.output);
    CHECK(to_string(layout.input_gradients.at(0)) == "[" + row.gradient + "]");
  }
}

TEST_CASE("rowwise hands on Replicate along tp only, and never gathers samples that nobody cut") {
  // The weight's columns are cut over tp by style and over ep by hand: tp cuts first.
  const auto layouts = layouts_of({"2, 2",
                                   R"("tp", "ep")",
                                   {linear_json("down", 8, 4)},
                                   R"x("parallelize": {"down": "rowwise"},
                                      "placements": {"down.weight": {"ep": "Shard(1)"}},
                                      "data": {"data_dims": []})x"});
  CHECK(told(layouts[0]) ==
        "[Shard(1), Shard(1)] -> [Partial(sum), Partial(sum)], [Replicate, Partial(sum)]; "
        "[Shard(1), Shard(1)]");
}

TEST_CASE("rowwise whose cut a placement takes back hands on what it computes") {
  const auto layouts = layouts_of({"2",
                                   kTpOnly,
                                   {linear_json("down", 8, 4)},
                                   R"("parallelize": {"down": "rowwise"},
                                      "placements": {"down.weight": {"tp": "Replicate"}},
                                      "data": {"data_dims": ["tp"]})"});
  CHECK(told(layouts[0]) == "[Shard(0)] -> [Shard(0)], [Shard(0)]; [Shard(0)]");
}

TEST_CASE("each mesh dim follows its own row: samples over fsdp, features over tp") {
  const auto layouts =
      layouts_of({"2, 2",
                  kFsdpTp,
                  {linear_json("up", 6, 8), function_json("act"), linear_json("down", 8, 4)},
                  R"("parallelize": {"up": "colwise", "down": "rowwise"})"});
  CHECK(told(layouts[0]) ==
        "[Shard(0), Replicate] -> [Shard(0), Shard(1)], [Shard(0), Shard(1)]; "
        "[Shard(0), Partial(sum)]");
  CHECK(told(layouts[1]) ==
        "[Shard(0), Shard(1)] -> [Shard(0), Shard(1)], [Shard(0), Shard(1)]; "
        "[Shard(0), Shard(1)]");
  CHECK(told(layouts[2]) ==
        "[Shard(0), Shard(1)] -> [Shard(0), Partial(sum)], [Shard(0), Replicate]; "
        "[Shard(0), Shard(1)]");
  CHECK(cutting_order(layouts[0].inputs.at(0), 0) == MeshDims{0});
}

TEST_CASE("a cut of rows after another stays strided, as the features that they compute") {
  const auto layouts =
      layouts_of({"2, 2",
                  R"("tp", "ep")",
                  {linear_json("up", 4, 8), linear_json("down", 8, 4)},
                  R"x("placements": {"up.weight": {"tp": "StridedShard(0, 2)", "ep": "Shard(0)"},
                                    "down.weight": {"tp": "StridedShard(1, 2)", "ep": "Shard(1)"}},
                     "data": {"data_dims": []})x"});
  CHECK(told(layouts[0]) ==
        "[Replicate, Replicate] -> [StridedShard(1, 2), Shard(1)], [StridedShard(1, 2), Shard(1)]; "
        "[Partial(sum), Partial(sum)]");
  CHECK(told(layouts[1]) ==
        "[StridedShard(1, 2), Shard(1)] -> [Partial(sum), Partial(sum)], "
        "[Partial(sum), Partial(sum)]; [StridedShard(1, 2), Shard(1)]");
}

TEST_CASE("along a mesh dim of one rank nothing is cut, and no sum has terms") {
  const auto layouts = layouts_of({"2, 1",
                                   kFsdpTp,
                                   {linear_json("up", 6, 8), linear_json("down", 8, 4)},
                                   R"("parallelize": {"up": "colwise", "down": "rowwise"})"});
  for (const ModuleLayout& layout : layouts) {
    CHECK(told(layout) ==
          "[Shard(0), Replicate] -> [Shard(0), Replicate], [Shard(0), Replicate]; "
          "[Shard(0), Replicate]");
  }
}

TEST_CASE("colwise and rowwise: one all-reduce in forward, before the unit is freed") {
  const Plan plan = build_plan(scenario_of(
      {"2, 2",
       kFsdpTp,
       {linear_json("up", 6, 8), function_json("act"), linear_json("down", 8, 4)},
       R"("parallelize": {"up": "colwise", "down": "rowwise"}, "training": {"steps": 2})"}));
  // Two samples on each data rank, 4 features.
  const Texts expected = {"unshard up",
                          "forward up",
                          "reshard up",
                          "forward act",
                          "unshard down",
                          "forward down",
                          "all_reduce(tp) output of \"down\" 8->8",
                          "reshard down",
                          "loss",
                          "unshard down",
                          "backward down",
                          "reshard down",
                          "reduce_scatter down",
                          "store_gradient down",
                          "backward act",
                          "unshard up",
                          "backward up",
                          "reshard up",
                          "reduce_scatter up",
                          "store_gradient up",
                          "optimizer"};
  CHECK(told_steps(plan, 0) == expected);
  CHECK(told_steps(plan, 1) == expected);
  const auto it = std::find_if(plan.steps.begin(), plan.steps.end(),
                               [](const Step& step) { return step.redistribution >= 0; });
  REQUIRE(it != plan.steps.end());
  CHECK(it->phase == Phase::Forward);
  CHECK(it->module == 2);
  CHECK(it->why.before == "[Shard(0), Partial(sum)]");
  CHECK(it->why.after == "[Shard(0), Replicate]");
  CHECK(it->why.rule.find("rowwise gives Replicate") == 0);
  CHECK(it->collective->prescale == 1);
  CHECK(it->collective->scale == 1);
  CHECK_NOTHROW(verify_plan(plan));
}

/// The step that changes an activation for the `n`-th time.
const Step& change(const Plan& plan, int n) {
  int seen = 0;
  for (const Step& step : plan.steps) {
    if (step.redistribution >= 0 && seen++ == n) return step;
  }
  FAIL("no change number " << n);
  return plan.steps.front();
}

TEST_CASE("colwise behind colwise: its input is gathered, the gradient reduce-scattered") {
  const Plan plan = build_plan(scenario_of(colwise_chain()));
  const Texts expected = {"unshard in",
                          "forward in",
                          "reshard in",
                          "unshard up",
                          "forward up",
                          "reshard up",
                          "unshard mid",
                          "all_gather(tp) input of \"mid\" 8->16",  // 2 samples of 8 / 2 features
                          "forward mid",
                          "reshard mid",
                          "forward act",
                          "unshard down",
                          "forward down",
                          "all_reduce(tp) output of \"down\" 8->8",  // 2 samples of 4 features
                          "reshard down",
                          "loss",
                          "unshard down",
                          "backward down",
                          "reshard down",
                          "reduce_scatter down",
                          "store_gradient down",
                          "backward act",
                          "unshard mid",
                          "backward mid",
                          "reduce_scatter(tp) gradient of the input of \"mid\" 16->8",
                          "reshard mid",
                          "reduce_scatter mid",
                          "store_gradient mid",
                          "unshard up",
                          "backward up",
                          "all_reduce(tp) gradient of the input of \"up\" 12->12",  // 2 x 6
                          "reshard up",
                          "reduce_scatter up",
                          "store_gradient up",
                          "unshard in",
                          "backward in",
                          "reshard in",
                          "reduce_scatter in",
                          "store_gradient in",
                          "optimizer"};
  CHECK(told_steps(plan) == expected);

  const Step& gathers = change(plan, 0);
  CHECK(gathers.why.before == "[Shard(0), Shard(1)]");
  CHECK(gathers.why.after == "[Shard(0), Replicate]");
  CHECK(gathers.why.rule.find("takes every input feature") != std::string_view::npos);
  const Step& scatters = change(plan, 2);
  CHECK(scatters.phase == Phase::Backward);
  CHECK(scatters.why.before == "[Shard(0), Partial(sum)]");
  CHECK(scatters.why.after == "[Shard(0), Shard(1)]");
  CHECK(scatters.why.rule.find("each has a term of its gradient") != std::string_view::npos);
  CHECK(change(plan, 3).why.after == "[Shard(0), Replicate]");
  CHECK_NOTHROW(verify_plan(plan));
}

TEST_CASE("uneven features: the longest part gives the size of a slot") {
  ActivationCase test = colwise_chain();
  test.modules = {linear_json("up", 4, 5), linear_json("mid", 5, 3), linear_json("down", 3, 1)};
  const Plan plan = build_plan(scenario_of(test));
  // 5 features are 3 and 2 on two ranks; slots of 2 samples by 3.
  CHECK(told_changes(plan) == Texts{"all_gather(tp) input of \"mid\" 6->12",
                                    "all_reduce(tp) output of \"down\" 2->2",
                                    "reduce_scatter(tp) gradient of the input of \"mid\" 12->6"});
}

TEST_CASE("terms of a sum stay so until a function, or the loss, needs the sum") {
  const Plan plan = build_plan(scenario_of(
      {"2, 2",
       kFsdpTp,
       {linear_json("a", 4, 6), function_json("f"), linear_json("b", 6, 2)},
       R"x("placements": {"a.weight": {"tp": "Shard(1)"}, "b.weight": {"tp": "Shard(1)"}})x"}));
  // The input of "a" is cut where it lies; of its gradient nobody needs anything. "f" takes the sum
  // whole, which "b" cuts; the gradient of that cut is put together again.
  CHECK(told_changes(plan) ==
        Texts{"slice(tp) input of \"a\"", "all_reduce(tp) input of \"f\" 12->12",
              "slice(tp) input of \"b\"", "all_reduce(tp) output of the model 4->4",
              "all_gather(tp) gradient of the input of \"b\" 6->12"});
  CHECK(change(plan, 0).why.rule.find("of its columns") != std::string_view::npos);
  CHECK(change(plan, 1).why.rule.find("an activation function needs the sum") == 0);
  CHECK(change(plan, 3).why.rule.find("the loss needs the sum") == 0);
  CHECK(change(plan, 4).why.rule == "backward of a redistribution is the transposed one");
  const Texts steps = told_steps(plan);
  const auto at = [&](const std::string& text) {
    return std::find(steps.begin(), steps.end(), text) - steps.begin();
  };
  CHECK(at("slice(tp) input of \"a\"") == 1);  // behind unshard a
  CHECK(steps[2] == "forward a");
  CHECK(at("all_reduce(tp) input of \"f\" 12->12") + 1 == at("forward f"));
  CHECK(at("all_reduce(tp) output of the model 4->4") + 1 == at("loss"));
  CHECK_NOTHROW(verify_plan(plan));
}

TEST_CASE("why a linear takes the sum, or a cut is undone that comes back") {
  const Plan sums = build_plan(scenario_of(
      {"2",
       kTpOnly,
       {linear_json("a", 4, 6), linear_json("b", 6, 2)},
       R"x("placements": {"a.weight": {"tp": "Shard(1)"}, "b.weight": {"tp": "Shard(0)"}})x"}));
  CHECK(told_changes(sums).at(1) == "all_reduce(tp) input of \"b\" 12->12");
  CHECK(change(sums, 1).why.rule == "a linear needs the sum: its input comes as terms of one");

  // Features cut over tp, and within over ep; "b" takes them cut over ep alone.
  const Plan nested = build_plan(scenario_of({"2, 2",
                                              R"("tp", "ep")",
                                              {linear_json("a", 4, 8), linear_json("b", 8, 2)},
                                              R"x("data": {"data_dims": []}, "placements":
          {"a.weight": {"tp": "Shard(0)", "ep": "Shard(0)"}, "b.weight": {"ep": "Shard(1)"}})x"}));
  const Texts changes = told_changes(nested);
  REQUIRE(changes.size() >= 3);
  CHECK(changes[0] == "all_gather(ep) input of \"b\" 4->8");  // 2 samples
  CHECK(changes[1] == "all_gather(tp) input of \"b\" 8->16");
  CHECK(changes[2] == "slice(ep) input of \"b\"");
  CHECK(change(nested, 0).why.rule ==
        "a cut inside another one is undone first, and made anew where it is wanted");
  CHECK(change(nested, 1).why.rule.find("takes every input feature") != std::string_view::npos);
  CHECK(change(nested, 2).why.rule.find("of its columns") != std::string_view::npos);
  CHECK_NOTHROW(verify_plan(nested));
}

TEST_CASE("samples cut along tp are put together for a weight that tp cuts") {
  const Plan plan = build_plan(
      scenario_of({"2, 2",
                   kFsdpTp,
                   {linear_json("in", 4, 6), linear_json("up", 6, 8), linear_json("out", 8, 2)},
                   R"("parallelize": {"up": "colwise"}, "data": {"data_dims": ["fsdp", "tp"]},
                      "training": {"global_batch": 12})"}));
  // 3 samples on each of 4 data ranks; behind "up" every rank of tp computes with 6.
  CHECK(told_changes(plan) == Texts{"all_gather(tp) input of \"up\" 18->36",
                                    "all_gather(tp) input of \"out\" 24->48",
                                    "slice(tp) gradient of the input of \"out\"",
                                    "reduce_scatter(tp) gradient of the input of \"up\" 36->18"});
  CHECK(change(plan, 0).why.rule.find("takes the samples of all ranks") != std::string_view::npos);
  CHECK(plan.parameters[0].partial_dims == MeshDims{0, 1});
  CHECK(plan.parameters[1].partial_dims == MeshDims{0});
  CHECK(plan.parameters[2].partial_dims == MeshDims{0});
  CHECK_NOTHROW(verify_plan(plan));
}

TEST_CASE("nothing in backward serves the model's input, nor what has no parameters before it") {
  const Plan plan = build_plan(
      scenario_of({"2",
                   kTpOnly,
                   {function_json("f"), linear_json("up", 4, 6), linear_json("down", 6, 2)},
                   R"("parallelize": {"up": "colwise", "down": "rowwise"},
                      "data": {"sample_shape": [4]})"}));
  CHECK(told_steps(plan) == Texts{"forward f", "forward up", "forward down",
                                  "all_reduce(tp) output of \"down\" 4->4", "loss", "backward down",
                                  "scale_gradient down", "store_gradient down", "backward up",
                                  "scale_gradient up", "store_gradient up", "optimizer"});
}

/// A block b on fsdp 2: `modules`, JSON; the units are b and b.in.
Plan nested_units(const std::string& modules) {
  return build_plan(
      scenario_of({"2",
                   R"("fsdp")",
                   {R"({"name": "b", "type": "sequential", "modules": [)" + modules + "]}"},
                   R"("data": {"sample_shape": [4]}, "fully_shard": {"units": ["b", "b.in"]})"}));
}

std::string inner_json() {
  return R"({"name": "in", "type": "sequential", "modules": [)" + linear_json("w", 4, 4) + "]}";
}

TEST_CASE("a unit is whole from the first to the last module of its part") {
  // The first gelu computes nothing that has a gradient: no backward, and yet the unit ends there.
  const Plan plan = nested_units(function_json("first") + ", " + inner_json() + ", " +
                                 linear_json("v", 4, 4) + ", " + function_json("last"));
  CHECK(told_steps(plan) == Texts{"unshard b",           "forward b.first",     "unshard b.in",
                                  "forward b.in.w",      "reshard b.in",        "forward b.v",
                                  "forward b.last",      "reshard b",           "loss",
                                  "unshard b",           "backward b.last",     "backward b.v",
                                  "unshard b.in",        "backward b.in.w",     "reshard b.in",
                                  "reduce_scatter b.in", "store_gradient b.in", "reshard b",
                                  "reduce_scatter b",    "store_gradient b",    "optimizer"});
}

TEST_CASE("units that begin or end together nest: outer first, and inner first") {
  const Plan plan = nested_units(inner_json() + ", " + linear_json("v", 4, 4));
  CHECK(told_steps(plan) == Texts{"unshard b", "unshard b.in", "forward b.in.w", "reshard b.in",
                                  "forward b.v", "reshard b", "loss", "unshard b", "backward b.v",
                                  "unshard b.in", "backward b.in.w", "reshard b.in",
                                  "reduce_scatter b.in", "store_gradient b.in", "reshard b",
                                  "reduce_scatter b", "store_gradient b", "optimizer"});
  const Plan swapped = nested_units(linear_json("v", 4, 4) + ", " + inner_json());
  const std::vector<std::string> steps = told_steps(swapped);
  CHECK(Texts(steps.begin(), steps.begin() + 10) ==
        Texts{"unshard b", "forward b.v", "unshard b.in", "forward b.in.w", "reshard b.in",
              "reshard b", "loss", "unshard b", "unshard b.in", "backward b.in.w"});
}

}  // namespace
}  // namespace hpsim
