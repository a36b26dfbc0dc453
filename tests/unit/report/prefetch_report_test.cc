// What reports, plans and goldens say of all-gathers that are begun ahead of compute.

#include <nlohmann/json.hpp>

#include "exec/executor.h"
#include "plan/build_plan.h"
#include "plan/verify_plan.h"
#include "report/explain_report.h"
#include "report/golden.h"
#include "report/json.h"
#include "report/plan_report.h"
#include "report/report.h"
#include "support/catch.h"
#include "support/scenarios.h"
#include "verify/compare_runs.h"

namespace hpsim {
namespace {

using Json = nlohmann::ordered_json;
using test::linear;

/// Layers l0, l1, l2 of 4 x 4 without bias over 2 ranks: 8 numbers on each, 16 gathered.
Scenario layers(std::int64_t ahead) {
  Scenario scenario =
      test::fsdp_scenario(test::modules_model({linear("l0", 4, 4, false), linear("l1", 4, 4, false),
                                               linear("l2", 4, 4, false)}),
                          2);
  scenario.fully_shard.forward_prefetch = ahead;
  return scenario;
}

Report report_on(const Scenario& scenario) {
  const VerifiedPlan plan = verify_plan(build_plan(scenario));
  const RunResult run = make_executor(Backend::Symbolic)->run(plan, {});
  return make_report(plan, run, {}, compare_runs(plan, run, {}));
}

/// [unit, overlaps, completed_before] of the gathers of forward.
Json overlaps_of(const Json& collectives) {
  Json all = Json::array();
  for (const Json& each : collectives) {
    if (each["op"] != "all_gather" || each.value("phase", "forward") != "forward") continue;
    all.push_back({each["unit"], each.contains("overlaps") ? each["overlaps"] : Json(nullptr),
                   each.contains("completed_before") ? each["completed_before"] : Json(nullptr)});
  }
  return all;
}

TEST_CASE("a report says beside which compute an all-gather runs, and before which it is done") {
  const Report one = report_on(layers(1));
  const Json expected = Json::parse(R"x([
      ["l0", null, null],
      ["l1", ["forward of l0"], "forward of l1"],
      ["l2", ["forward of l1"], "forward of l2"]])x");
  CHECK(overlaps_of(comparable_json(one, false)["collectives"]) == expected);
  CHECK(overlaps_of(make_golden(one)["collectives"][0]["forward"]) == expected);
  // The first and the last of what is computed meanwhile.
  CHECK(overlaps_of(comparable_json(report_on(layers(2)), false)["collectives"]) ==
        Json::parse(R"x([
      ["l0", null, null],
      ["l1", ["forward of l0"], "forward of l1"],
      ["l2", ["forward of l0", "forward of l1"], "forward of l2"]])x"));
  CHECK(overlaps_of(comparable_json(report_on(layers(0)), false)["collectives"]) ==
        Json::parse(R"x([["l0", null, null], ["l1", null, null], ["l2", null, null]])x"));
}

TEST_CASE("where nothing is computed meanwhile the list is empty") {
  Scenario scenario = layers(1);
  scenario.units = assign_units(scenario.model, scenario.parameters, {"l1", "l2"}, true);
  scenario.fully_shard.backward_prefetch = 1;
  // In backward the root, l0, is asked for first, then l2.
  const Json golden = make_golden(report_on(scenario))["collectives"][0]["backward"];
  CHECK(golden[0]["unit"] == "(root)");
  CHECK(golden[1] == Json::parse(R"x({
      "op": "all_gather", "unit": "l2", "overlaps": [], "completed_before": "backward of l2",
      "mesh_dims": ["fsdp"], "dtype": "float32", "elements": [8, 16], "bytes": [32, 64]})x"));
}

std::vector<std::string> differences(std::int64_t before, std::int64_t now) {
  const std::string golden = golden_text(make_golden(report_on(layers(before))));
  std::vector<std::string> messages;
  for (const auto& difference : compare_golden("g", golden, report_on(layers(now))).differences) {
    if (difference.section == "collectives") messages.push_back(difference.message);
  }
  return messages;
}

TEST_CASE("another overlap is a difference of goldens, in words") {
  using Texts = std::vector<std::string>;
  CHECK(differences(1, 1).empty());
  CHECK(differences(1, 2) ==
        Texts{"forward: all_gather over fsdp: overlaps (forward of l1,) → (forward of l0, forward "
              "of l1) (unit l2)"});
  const Texts gone = differences(1, 0);
  CHECK(gone == Texts{"forward: all_gather over fsdp: completed_before forward of l1 → none for "
                      "unit l1, other values for the others (units l1, l2)",
                      "forward: all_gather over fsdp: overlaps (forward of l0,) → none for unit "
                      "l1, other values for the others (units l1, l2)"});
}

TEST_CASE("optimizer steps that overlap otherwise do not do the same") {
  Scenario scenario = layers(1);
  scenario.training.steps = 2;
  Plan plan = build_plan(scenario);
  CHECK(step_differences(plan).empty());
  // 0 unshard l0, 1 unshard l1 async: of the second step.
  const std::size_t second = plan.steps.size() / 2;
  REQUIRE(plan.steps[second + 1].is_async);
  plan.steps[second + 1].is_async = false;
  REQUIRE(step_differences(plan).size() == 1);
  CHECK(step_differences(plan)[0].position == 1);
}

TEST_CASE("a note says where nothing can be begun ahead of time") {
  using Texts = std::vector<std::string>;
  CHECK(report_on(layers(1)).notes.empty());
  CHECK(report_on(layers(0)).notes.empty());
  // One unit of all layers, and one that is whole from forward on.
  Scenario scenario = layers(2);
  scenario.units = assign_units(scenario.model, scenario.parameters, {}, true);
  scenario.fully_shard.backward_prefetch = 1;
  scenario.fully_shard.reshard_after_forward = false;
  CHECK(report_on(scenario).notes ==
        Texts{"forward_prefetch 2 begins nothing: in forward only the unit that is asked for first "
              "is gathered",
              "backward_prefetch 1 begins nothing: in backward no unit is gathered"});
}

TEST_CASE("a plan lists what is begun, and where it is awaited") {
  const PlanReport report = make_plan_report(build_plan(layers(1)));
  const std::string text = plan_text(report, {}, false);
  CAPTURE(text);
  CHECK(text.find(" 1  unshard async   l1  fsdp 2       1  8 -> 16 ") != std::string::npos);
  CHECK(text.find(" 4  wait_unshard    l1 ") != std::string::npos);
  CHECK(text.find("forward_prefetch: right after a unit's own unshard") != std::string::npos);
  const Json steps = plan_json(report, {})["steps"];
  CHECK(steps[1]["kind"] == "unshard");
  CHECK(steps[1]["async"] == true);
  CHECK(steps[1]["collective"]["overlaps"] == Json::parse(R"(["forward of l0"])"));
  CHECK_FALSE(steps[0].contains("async"));
  CHECK(steps[4]["kind"] == "wait_unshard");
  CHECK(steps[4]["unit"] == "l1");
  CHECK(steps[4]["why"]["before"] == "[Shard(0)]");
  CHECK(steps[4]["why"]["after"] == "[Replicate]");
}

TEST_CASE("a rejected plan in which nothing waits is still printed") {
  Plan plan = build_plan(layers(1));
  plan.steps.erase(std::find_if(plan.steps.begin(), plan.steps.end(), [](const Step& step) {
    return step.kind == StepKind::WaitUnshard;
  }));
  const PlanReport report = make_plan_report(plan);
  CHECK_FALSE(report.passed);
  const Json steps = plan_json(report, {})["steps"];
  CHECK(steps[1]["collective"]["completed_before"] == "");
}

TEST_CASE("an explanation tells when memory is taken, and when the parameter is whole") {
  const Plan plan = build_plan(layers(1));
  ExplainView view{.parameters = {1}, .in_detail = true};
  const std::string text = explain_text(plan, view, false);
  CAPTURE(text);
  CHECK(text.find(" 1  unshard async   param  shard                         32 B -> 64 B\n") !=
        std::string::npos);
  CHECK(text.find(" 4  wait_unshard    param  shard -> whole                64 B\n") !=
        std::string::npos);
}

}  // namespace
}  // namespace hpsim
