// What reports say of runs of consecutive ranks, maxima, micro-batches and partial gradient rows.

#include <cmath>
#include <nlohmann/json.hpp>

#include "baseline/eigen_baseline.h"
#include "exec/executor.h"
#include "plan/build_plan.h"
#include "plan/verify_plan.h"
#include "report/golden.h"
#include "report/json.h"
#include "report/plan_report.h"
#include "report/report.h"
#include "report/text.h"
#include "support/catch.h"
#include "support/scenarios.h"
#include "verify/compare_runs.h"

namespace hpsim {
namespace {

using Json = nlohmann::ordered_json;
using test::elementwise_model;
using test::fsdp_scenario;
using test::hsdp_scenario;
using test::linear;
using test::modules_model;

Report report_on(const Scenario& scenario, Backend backend = Backend::Symbolic) {
  const VerifiedPlan plan = verify_plan(build_plan(scenario));
  const RunResult run = make_executor(backend)->run(plan, {});
  const ReferenceRun reference = run.has_numbers() ? run_baseline(scenario) : ReferenceRun{};
  return make_report(plan, run, reference, compare_runs(plan, run, reference));
}

/// Those of `op`, in order.
Json collectives_of(const Report& report, const std::string& op) {
  Json found = Json::array();
  const Json json = comparable_json(report, false);
  for (const Json& each : json["collectives"]) {
    if (each["op"] == op) found.push_back(each);
  }
  return found;
}

Scenario in_parts_of_two() {
  Scenario scenario = fsdp_scenario(elementwise_model({{"w", {8, 3}}}), 4);
  scenario.fully_shard.post_forward_size = 2;
  return scenario;
}

TEST_CASE("runs of consecutive ranks are groups of their own") {
  const Report report = report_on(in_parts_of_two());
  const Json gathers = collectives_of(report, "all_gather");
  REQUIRE(gathers.size() == 2);
  CHECK(gathers[0]["groups"] == Json::parse("[[0, 1, 2, 3]]"));
  CHECK(gathers[1]["groups"] == Json::parse("[[0, 1], [2, 3]]"));
  CHECK(gathers[1]["elements_in"] == 12);
  CHECK(gathers[1]["elements_out"] == 24);
  const Json golden = make_golden(report)["collectives"][0];
  CHECK_FALSE(golden["forward"][0].contains("consecutive"));
  CHECK(golden["backward"][0] == Json::parse(R"x({
      "op": "all_gather", "unit": "(root)", "mesh_dims": ["fsdp"], "consecutive": 2,
      "dtype": "float32", "elements": [12, 24], "bytes": [48, 96]})x"));
}

TEST_CASE("runs of many ranks are told by their size, number and first members") {
  Scenario scenario = fsdp_scenario(elementwise_model({{"w", {256, 3}}}), 128);
  scenario.fully_shard.post_forward_size = 4;
  const Json gathers = collectives_of(report_on(scenario), "all_gather");
  CHECK(gathers[1]["groups"] == Json::parse(R"x({
      "mesh_dims": ["fsdp"], "size": 4, "count": 32, "first": [0, 1, 2, 3]})x"));
}

TEST_CASE("the screen and a plan tell runs from whole groups") {
  Scenario scenario = in_parts_of_two();
  scenario.training.steps = 2;
  scenario.training.micro_batches = 2;
  scenario.training.global_batch = 8;
  scenario.fully_shard.reshard_after_backward = false;
  const Report report = report_on(scenario);
  // The first forward gathers over all, both backwards over runs.
  const std::string text = report_text(report, {});
  CAPTURE(text);
  CHECK(text.find("\n  all_gather             1  fsdp 4 ") != std::string::npos);
  CHECK(text.find("\n  all_gather             2  fsdp 2 ") != std::string::npos);
  const std::string plan = plan_text(make_plan_report(build_plan(scenario)), {}, false);
  CAPTURE(plan);
  CHECK(plan.find("fsdp 4 by 2") != std::string::npos);
}

Scenario clipped(double norm_type) {
  Scenario scenario = fsdp_scenario(elementwise_model({{"w", {8, 3}}}), 4);
  scenario.training.clip_grad_norm = ClipSpec{.max_norm = 1, .norm_type = norm_type};
  return scenario;
}

TEST_CASE("the norm of clipping is a collective of one number: a sum, or the largest") {
  const Json sums = collectives_of(report_on(clipped(2)), "all_reduce");
  REQUIRE(sums.size() == 1);
  CHECK(sums[0] == Json::parse(R"x({
      "seq": 3, "op": "all_reduce", "phase": "optimizer", "step": 0, "micro_batch": 0, "unit": "",
      "params": [], "mesh_dims": ["fsdp"], "groups": [[0, 1, 2, 3]], "dtype": "float64",
      "reduce_op": "sum", "prescale": 1, "scale": 1, "elements_in": 1, "elements_out": 1,
      "bytes_in": 8, "bytes_out": 8, "activation": "norm of the gradients"})x"));
  const Report largest = report_on(clipped(HUGE_VAL));
  CHECK(collectives_of(largest, "all_reduce")[0]["reduce_op"] == "max");
  CHECK(report_text(largest, {}).find("float64      max") != std::string::npos);
  CHECK(report_text(report_on(clipped(2)), {}).find("float64      sum") != std::string::npos);
  CHECK(make_golden(largest)["collectives"][0]["optimizer"][0] == Json::parse(R"x({
      "op": "all_reduce", "unit": "", "activation": "norm of the gradients",
      "mesh_dims": ["fsdp"], "dtype": "float64", "reduce_op": "max", "scale": 1,
      "elements": [1, 1], "bytes": [8, 8]})x"));
  CHECK_FALSE(
      make_golden(report_on(clipped(2)))["collectives"][0]["optimizer"][0].contains("reduce_op"));
}

/// What a golden of `before` says of `now`.
std::string differences(const Scenario& before, const Scenario& now) {
  const std::string golden = golden_text(make_golden(report_on(before)));
  std::string messages;
  for (const GoldenDifference& difference :
       compare_golden("golden.json", golden, report_on(now)).differences)
    messages += difference.message + "\n";
  return messages;
}

TEST_CASE("a golden tells sums from maxima, and runs from whole groups") {
  CHECK(differences(clipped(2), clipped(2)).empty());
  CHECK(differences(clipped(2), clipped(3)).empty());  // powers are added up
  CHECK(differences(clipped(2), clipped(HUGE_VAL)).find("reduce_op") != std::string::npos);
  Scenario whole = in_parts_of_two();
  whole.fully_shard.post_forward_size = 0;
  CHECK(differences(whole, in_parts_of_two()).find("consecutive") != std::string::npos);
}

Scenario hsdp_in_micro_batches() {
  Scenario scenario = hsdp_scenario(elementwise_model({{"a", {4}}, {"b", {6}}}), 2, 2);
  scenario.training.micro_batches = 2;
  scenario.training.global_batch = 8;
  return scenario;
}

TEST_CASE("collectives know their micro-batch, and so do goldens and plans") {
  Scenario scenario = hsdp_in_micro_batches();
  scenario.training.all_reduces = {false, true};
  const Report report = report_on(scenario);
  const auto micro_batches = [&](const std::string& op) {
    std::vector<int> all;
    for (const Json& each : collectives_of(report, op))
      all.push_back(each["micro_batch"].get<int>());
    return all;
  };
  CHECK(micro_batches("all_gather") == std::vector<int>{0, 0, 1, 1});
  CHECK(micro_batches("reduce_scatter") == std::vector<int>{0, 1});
  CHECK(micro_batches("all_reduce") == std::vector<int>{1});
  const Json golden = make_golden(report)["collectives"][0];
  REQUIRE(golden["forward"].size() == 2);
  CHECK_FALSE(golden["forward"][0].contains("micro_batch"));
  CHECK(golden["forward"][1]["micro_batch"] == 1);
  const Json steps = plan_json(make_plan_report(build_plan(scenario)), {})["steps"];
  CHECK(steps[0]["micro_batch"] == 0);
  CHECK(steps[steps.size() - 2]["micro_batch"] == 1);
  CHECK(differences(scenario, hsdp_in_micro_batches()).find("all_reduce 1 → 2 over rep") !=
        std::string::npos);
}

TEST_CASE("reductions of some parameters of a unit name these alone") {
  Scenario scenario = hsdp_in_micro_batches();
  scenario.training.steps = 2;
  scenario.training.trained_from = {0, 1};
  const Report report = report_on(scenario);
  const Json scatters = collectives_of(report, "reduce_scatter");
  REQUIRE(scatters.size() == 4);
  CHECK(scatters[0]["params"] == Json::parse(R"(["a"])"));
  CHECK(scatters[0]["elements_in"] == 4);
  CHECK(scatters[2]["step"] == 1);
  CHECK(scatters[2]["params"] == Json::parse(R"(["a", "b"])"));
  CHECK(scatters[2]["elements_in"] == 10);
  CHECK(collectives_of(report, "all_gather")[0]["params"] == Json::parse(R"(["a", "b"])"));
  // Optimizer steps that reduce other parameters are another run of steps.
  const Json golden = make_golden(report)["collectives"];
  REQUIRE(golden.size() == 2);
  CHECK(golden[0]["last_step"] == 0);
  CHECK(golden[1]["first_step"] == 1);
  CHECK(golden[0]["backward"][1]["elements"] == Json::parse("[4, 2]"));
  const Json steps = plan_json(make_plan_report(build_plan(scenario)), {.full = true})["steps"];
  std::vector<Json> stored;
  for (const Json& step : steps) {
    if (step["kind"] == "store_gradient") stored.push_back(step["params"]);
  }
  REQUIRE(stored.size() == 4);
  CHECK(stored[1] == Json::parse(R"(["a"])"));
  CHECK(stored[3] == Json::parse(R"(["a", "b"])"));
}

TEST_CASE("optimizer steps that reduce other parameters of equal sizes do other work") {
  Plan plan = build_plan([] {
    Scenario scenario = fsdp_scenario(elementwise_model({{"a", {4}}, {"b", {4}}, {"c", {4}}}), 2);
    scenario.training.steps = 2;
    scenario.training.trained_from = {0, 2, 0};
    return scenario;
  }());
  CHECK(step_differences(plan).empty());
  // In step 1 "b" instead of "c": the same sizes.
  plan.gradient_rows.push_back(plan.gradient_rows.at(0));
  plan.gradient_rows.back().parameters = {0, 1};
  for (Step& step : plan.steps) {
    if (step.step == 1 && step.row == 0) step.row = 1;
  }
  const auto found = step_differences(plan);
  REQUIRE(found.size() == 1);
  CHECK(found[0].step == 1);
}

TEST_CASE("what is emulated is noted, with the dtype in which numbers are held") {
  const auto notes = [](const Scenario& scenario) {
    std::vector<std::string> emulation;
    for (const std::string& note : report_on(scenario, Backend::Local).notes) {
      if (note.rfind("numbers are held as", 0) == 0) emulation.push_back(note);
    }
    return emulation;
  };
  Scenario scenario = fsdp_scenario(modules_model({linear("l0", 4, 4)}), 2);
  CHECK(notes(scenario).empty());
  scenario.fully_shard.mp_policy.param_dtype = DType::BFloat16;
  CHECK(notes(scenario) ==
        std::vector<std::string>{
            "numbers are held as float32: those of other dtypes are rounded to them after every "
            "operation, sums are made in float32 and rounded once; bytes are those of the dtypes "
            "named"});
  scenario.numerics.dtype = DType::Float64;
  REQUIRE(notes(scenario).size() == 1);
  CHECK(notes(scenario)[0].rfind("numbers are held as float64", 0) == 0);
  scenario.fully_shard.mp_policy.param_dtype.reset();
  CHECK(notes(scenario).empty());
}

}  // namespace
}  // namespace hpsim
