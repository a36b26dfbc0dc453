#include "report/plan_report.h"

#include <nlohmann/json.hpp>

#include "mesh/group.h"
#include "plan/build_plan.h"
#include "report/explain_report.h"
#include "report/table.h"
#include "report/text_parts.h"
#include "support/catch.h"
#include "support/scenarios.h"

namespace hpsim {
namespace {

using test::activation;
using test::elementwise_model;
using test::fsdp_scenario;
using test::linear;
using test::modules_model;

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

std::size_t count_lines(const std::string& text) {
  return static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
}

Plan small_plan(std::int64_t steps = 1) {
  Scenario scenario = fsdp_scenario(elementwise_model({{"w", {7, 8}}}), 4);
  scenario.training.steps = steps;
  return build_plan(scenario);
}

TEST_CASE("a plan that verify_plan rejects fails, with its findings") {
  Plan plan = small_plan();
  CHECK(make_plan_report(plan).passed);
  for (Step& step : plan.steps) {
    if (step.kind == StepKind::ReduceScatter) step.collective->scale = 1;
  }
  const PlanReport report = make_plan_report(plan);
  CHECK_FALSE(report.passed);
  REQUIRE_FALSE(report.findings.empty());
  const std::string text = plan_text(report, {}, false);
  CHECK(has(text, "\nFAIL  4 checks, 1 failed: sync-set"));
  CHECK(has(text, "✗ sync-set"));
  CHECK(has(text, report.findings[0].message.substr(0, 30)));
  const nlohmann::ordered_json json = plan_json(report, {});
  CHECK(json.at("verdict") == "fail");
  CHECK(json.at("findings").size() == report.findings.size());
}

TEST_CASE("optimizer steps that do other work are named") {
  Plan plan = small_plan(4);
  CHECK(step_differences(plan).empty());
  CHECK(has(plan_text(make_plan_report(plan), {}, false),
            "optimizer step 0 of 4; all of them do the same"));
  const std::size_t per_step = plan.steps.size() / 4;
  plan.steps[2 * per_step + 4].collective->prescale = 3;
  const auto differences = step_differences(plan);
  REQUIRE(differences.size() == 1);
  CHECK(differences[0].step == 2);
  CHECK(differences[0].position == 4);
  CHECK(has(plan_text(make_plan_report(plan), {}, false),
            "other work than in step 0: step 2 from its step 4 on"));
  CHECK(plan_json(make_plan_report(plan), {}).at("optimizer_steps").at("differ_from_first") ==
        nlohmann::ordered_json::array({2}));
  plan.steps.pop_back();  // the last optimizer step is shorter
  CHECK(step_differences(plan).back().step == 3);
}

/// Rows 2 2 2 1 of w, 16 elements per slot, 64 gathered, 2 samples per rank. With momentum, 64 B of
/// state are there from step 1 on, so that the most is alive in its backward: slot, gathered,
/// gradients, inputs and targets, state: 64 + 256 + 256 + 2 * 2 * 56 * 4 + 64 = 1536.
TEST_CASE("where the most memory is needed is told with its optimizer step, listed or not") {
  Scenario scenario = fsdp_scenario(elementwise_model({{"w", {7, 8}}}), 4);
  scenario.training.steps = 2;
  scenario.training.optimizer.momentum = 0.5;
  const PlanReport report = make_plan_report(build_plan(scenario));
  const std::int64_t peak = report.memory.peak_step();
  const Step& step = report.plan.steps.at(static_cast<std::size_t>(peak));
  REQUIRE(step.kind == StepKind::Backward);
  REQUIRE(step.step == 1);
  std::string text = plan_text(report, {}, false);
  std::replace(text.begin(), text.end(), '\n', ' ');
  CHECK(has(text, "backward of \"w\" of optimizer step 1; 128 B are left"));
  const nlohmann::ordered_json json = plan_json(report, {});
  CHECK(json.at("steps").back().at("step") == 0);
  CHECK(json.at("memory").at("init").at("peak") == 64 + 224);  // its slots, and w whole
  CHECK(json.at("memory").at("peak").at("bytes") == 1536);
  CHECK(json.at("memory").at("peak").at("plan_step") == peak);
  CHECK(json.at("memory").at("peak").at("step") == 1);
  CHECK(json.at("memory").at("live_at_end") == 128);
}

TEST_CASE("where ranks are of too many kinds, a plan says that it tells no memory") {
  PlanReport report = make_plan_report(small_plan());
  report.memory = {};
  CHECK(has(plan_text(report, {}, false), "Memory per rank: ranks hold too many different sets"));
  CHECK(plan_json(report, {}).at("memory").is_null());
}

TEST_CASE("which optimizer steps are shown, and their numbers") {
  const PlanReport report = make_plan_report(small_plan(3));
  const auto steps = [&](const PlanView& view) { return plan_json(report, view).at("steps"); };
  CHECK(steps({}).size() == 10);
  CHECK(steps({.full = true}).size() == 30);
  const auto second = steps({.step = 1});
  CHECK(second.size() == 10);
  CHECK(second.at(0).at("index") == 10);
  CHECK(second.at(0).at("step") == 1);
  CHECK(second.at(0).at("collective").at("seq") == 3);  // three collectives come before
  CHECK(second.at(1).at("collective").is_null());
  CHECK(second.at(1).at("module") == "w");
}

TEST_CASE("one more unit that does the same is named once") {
  const ModelSpec model = modules_model({linear("l0", 8, 8), linear("l1", 8, 8)});
  const std::string text =
      plan_text(make_plan_report(build_plan(fsdp_scenario(model, 4))), {}, false);
  CAPTURE(text);
  // 0 to 5 forward, too few to fold; 6 loss; 7 to 11 unshard, backward, reshard,
  // reduce_scatter, store_gradient of l1.
  CHECK(has(text, "\n  … the same 5 steps for 1 more: l0 (12 to 16)\n"));
}

TEST_CASE("steps that repeat unit after unit are folded, unless all are asked for") {
  std::vector<ModuleSpec> modules;
  for (int i = 0; i < 100; ++i) {
    modules.push_back(linear("l" + std::to_string(i), 8, 8));
    modules.push_back(activation("a" + std::to_string(i), ModuleType::Relu));
  }
  const PlanReport report = make_plan_report(build_plan(fsdp_scenario(modules_model(modules), 4)));
  const std::string text = plan_text(report, {}, false);
  // Forward: unshard, forward, reshard, then the activation. l0 is shown; 4 to 399 are the others.
  CHECK(has(text, "\n  … the same 4 steps for 99 more: l1 to l99 (4 to 399)\n"));
  // Backward: activation, unshard, backward, reshard, reduce_scatter, store_gradient: 401 to 1000.
  CHECK(has(text, "\n  … the same 6 steps for 99 more: a98 to a0 (407 to 1000)\n"));
  CHECK(count_lines(text) < 50);
  const std::string full = plan_text(report, {.full = true}, false);
  CHECK(count_lines(full) > 1000);
  CHECK_FALSE(has(full, "more"));
}

TEST_CASE("a long plan without repeats is folded in the middle") {
  std::vector<ModuleSpec> modules;
  for (int i = 0; i < 100; ++i)
    modules.push_back(linear("l" + std::to_string(i), 8 + i, 9 + i));
  const PlanReport report = make_plan_report(build_plan(fsdp_scenario(modules_model(modules), 4)));
  const std::string text = plan_text(report, {}, false);
  CHECK(has(text, "more lines; --full shows all"));
  CHECK(has(text, "  801  optimizer"));
  CHECK(has(text, "more layouts; --full lists them"));
  CHECK(count_lines(text) < 110);
}

TEST_CASE("ranks in words") {
  const auto text = [](const std::vector<std::int64_t>& numbers, std::int64_t total = 0) {
    std::vector<Rank> ranks;
    for (const std::int64_t number : numbers)
      ranks.push_back({number});
    return ranks_text(ranks, std::max(total, static_cast<std::int64_t>(numbers.size())));
  };
  CHECK(text({3}) == "rank 3");
  CHECK(text({0, 4}) == "ranks 0, 4");
  CHECK(text({6, 7}) == "ranks 6, 7");
  CHECK(text({0, 1, 2, 3, 8}) == "ranks 0..3, 8");
  CHECK(text({3, 2, 1, 0}) == "ranks 3, 2, 1, 0");
  CHECK(text({0, 1, 2}, 100) == "ranks 0..2, … (100)");
}

TEST_CASE("a label beside wrapped text") {
  CHECK(labelled("fsdp", 2, 4, "short") == "  fsdp  short\n");
  CHECK(labelled("tp", 2, 4, "short") == "  tp    short\n");
  CHECK(labelled("fsdp", 2, 4, "") == "  fsdp\n");
  CHECK(labelled("", 2, 4, "short") == "        short\n");
  CHECK(labelled("too_long", 2, 4, "short") == "  too_long\n        short\n");
  const std::string words(90, 'x');
  CHECK(labelled("fsdp", 2, 4, words + " yy zz") == "  fsdp  " + words + "\n        yy zz\n");
}

TEST_CASE("the header breaks between its parts") {
  Scenario scenario = fsdp_scenario(elementwise_model({{"w", {7, 8}}}), 4);
  CHECK(
      header_text(scenario, "plan", {}) ==
      "built\nplan · mesh fsdp 4 · 4 ranks · float32 derived · 1 step of 8 samples · sgd lr 0.1\n");
  scenario.mesh = Mesh({4, 1, 1}, {"a_mesh_dim_with_a_long_name", "and_another_one", "fsdp"});
  const std::string text = header_text(scenario, "plan", {});
  CHECK(has(text, "· 4 ranks · float32 derived\n1 step of 8 samples"));
}

TEST_CASE("a group of a large mesh is listed as far as it is asked for") {
  const Mesh mesh({1000, 1000, 1000}, {"a", "b", "c"});
  const auto ranks = group_of(mesh, {0, 1}, Rank{7}, 3);
  REQUIRE(ranks.size() == 3);
  CHECK(ranks[0].value == 7);
  CHECK(ranks[1].value == 1007);
  CHECK(ranks[2].value == 2007);
}

TEST_CASE("runs of parts in words") {
  const auto texts = [](const Shape& shape, std::int64_t fsdp, std::int64_t tp) {
    Scenario scenario = fsdp_scenario(elementwise_model({{"w", shape}}), fsdp);
    if (tp > 1) {
      scenario.mesh = Mesh({fsdp, tp}, {"fsdp", "tp"});
      scenario.roles.tp_dim = 1;
      scenario.placements = {{Replicate{}, Shard{0}}};
    }
    const Plan plan = build_plan(scenario);
    const AxisCut cut = axis_cuts(plan.mesh(), plan.parameters[0]).at(0);
    std::vector<std::string> found;
    for (const PartRun& run : cut.runs)
      found.push_back(run_text(plan.mesh(), shape, cut, run));
    return found;
  };
  using Texts = std::vector<std::string>;
  CHECK(texts({7, 8}, 4, 1) ==
        Texts{"fsdp 0..2: 2 rows each, [0, 6)", "fsdp 3: 1 row + 1 of padding, [6, 7)"});
  CHECK(texts({2, 3}, 4, 1) ==
        Texts{"fsdp 0..1: 1 row each, [0, 2)", "fsdp 2..3: no row, a slot of 1 row each"});
  CHECK(texts({70, 2}, 4, 7) ==
        Texts{"tp 0..6, fsdp 0..2: 3 rows each, from 10 tp + 3 fsdp on",
              "tp 0..6, fsdp 3: 1 row + 2 of padding each, from 10 tp + 9 on"});
}

TEST_CASE("collectives of different sizes are told as such") {
  Scenario scenario = fsdp_scenario(elementwise_model({{"w", {5, 2}}}), 2);
  scenario.mesh = Mesh({2, 2}, {"fsdp", "tp"});
  scenario.roles.tp_dim = 1;
  scenario.placements = {{Replicate{}, Shard{0}}};
  // tp leaves 3 and 2 rows, which fsdp cuts into slots of 2 and 1 rows of 2 elements.
  const std::string text = plan_text(make_plan_report(build_plan(scenario)), {}, false);
  CHECK(has(text, "≤4 -> ≤8"));
  CHECK(has(text, "≤16 -> ≤32 B"));
  CHECK(has(text, "tensor parallelism leaves ranks different sizes"));
}

TEST_CASE("more parameters than fit are folded") {
  std::vector<ElementwiseSpec> parameters;
  for (int i = 0; i < 40; ++i)
    parameters.push_back({"p" + std::to_string(i), {7, 8}});
  const Plan plan = build_plan(fsdp_scenario(elementwise_model(parameters), 4));
  ExplainView view;
  for (int p = 0; p < 40; ++p)
    view.parameters.push_back(p);
  const std::string text = explain_text(plan, view, false);
  CHECK(has(text, "\np10 (7, 8)"));
  CHECK_FALSE(has(text, "\np11 (7, 8)"));
  CHECK(has(text, "… 29 more parameters; --full tells all of them"));
  view.full = true;
  CHECK(has(explain_text(plan, view, false), "\np39 (7, 8)"));
  CHECK(explain_json(plan, view).at("parameters").size() == 40);
}

TEST_CASE("a plan that averages weights says so, and why") {
  Scenario scenario = fsdp_scenario(elementwise_model({{"w", {7, 8}}}), 6);
  scenario.fully_shard.shards_parameters = false;
  scenario.fully_shard.sync_object = SyncObject::Weight;
  scenario.fully_shard.gradient_scaling_factor = 2;
  const Plan plan = build_plan(scenario);
  const std::string text = plan_text(make_plan_report(plan), {}, false);
  CHECK(has(text, "6  average_weights  (root)  fsdp 6       1  56 -> 56  224 -> 224 B  1/6    "));
  CHECK(has(text, "sync_object \"weight\": copies that were updated"));
  CHECK(has(text, "[Partial(avg)] -> [Replicate]"));

  CHECK(has(explain_text(plan, {.parameters = {0}}, false),
            "all_reduce of the weights over fsdp 6; k/F = 1/3"));
  const std::string detail = explain_text(plan, {.parameters = {0}, .in_detail = true}, false);
  CHECK(has(detail, "left so: all_reduce averages the weights instead"));
  CHECK(has(detail, "k is applied in step"));
  CHECK(has(detail, "average_weights  param  whole Partial(fsdp) -> whole"));
  const nlohmann::ordered_json json = plan_json(make_plan_report(plan), {});
  CHECK(json.at("steps").back().at("kind") == "average_weights");
  CHECK(json.at("steps").back().at("collective").at("op") == "all_reduce");
}

}  // namespace
}  // namespace hpsim
