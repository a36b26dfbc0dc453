#include <nlohmann/json.hpp>
#include <sstream>

#include "plan/build_plan.h"
#include "report/explain_report.h"
#include "report/golden.h"
#include "report/json.h"
#include "report/plan_report.h"
#include "report/text.h"
#include "support/catch.h"
#include "support/scenarios.h"
#include "unit/report/sample_report.h"

namespace hpsim {
namespace {

using Json = nlohmann::ordered_json;

/// The sample with an all-to-all of activations in front: four slots of 6 elements, which is 96
/// bytes in and out.
Report with_all_to_all() {
  Report report = sample_report();
  report.loss_bounds = {0.001};
  report.grad_norm_bounds = {0.001};
  report.payloads.push_back({"up", {}, {}, "input of \"up\""});
  report.collectives.insert(report.collectives.begin(), {.seq = 0,
                                                         .phase = Phase::Forward,
                                                         .payload = 1,
                                                         .spec = {.op = CollectiveOp::AllToAll,
                                                                  .dims = {0},
                                                                  .group_size = 4,
                                                                  .elems_in = 24,
                                                                  .elems_out = 24}});
  return report;
}

TEST_CASE("an all-to-all adds nothing up: no reduce_op, and no scale in a golden") {
  const Json json = comparable_json(with_all_to_all(), false);
  CHECK(json["collectives"][0] == Json::parse(R"x({
      "seq": 0, "op": "all_to_all", "phase": "forward", "step": 0, "micro_batch": 0, "unit": "up",
      "params": [], "mesh_dims": ["fsdp"], "groups": [[0, 1, 2, 3]], "dtype": "float32",
      "reduce_op": null, "prescale": 1, "scale": 1, "elements_in": 24, "elements_out": 24,
      "bytes_in": 96, "bytes_out": 96, "activation": "input of \"up\""})x"));
  const Json steps = make_golden(with_all_to_all())["collectives"][0];
  CHECK(steps["forward"][0] == Json::parse(R"x({
      "op": "all_to_all", "unit": "up", "activation": "input of \"up\"",
      "mesh_dims": ["fsdp"], "dtype": "float32", "elements": [24, 24], "bytes": [96, 96]})x"));
  CHECK(steps["totals"][0] == Json::parse(R"x({
      "phase": "forward", "op": "all_to_all", "mesh_dims": ["fsdp"], "dtype": "float32",
      "count": 1, "bytes_in": 96, "bytes_out": 96})x"));
}

TEST_CASE("a golden tells an all-to-all from what else moves the same bytes") {
  Report now = with_all_to_all();
  const std::string golden = golden_text(make_golden(now));
  CHECK(compare_golden("golden.json", golden, now).state == GoldenState::Same);
  now.collectives[0].spec.op = CollectiveOp::AllReduce;
  const GoldenComparison comparison = compare_golden("golden.json", golden, now);
  std::string messages;
  for (const GoldenDifference& difference : comparison.differences)
    messages += difference.message + "\n";
  CHECK(messages.find("forward: all_to_all 1 → 0 over fsdp") != std::string::npos);
  CHECK(messages.find("forward: all_reduce 0 → 1 over fsdp") != std::string::npos);
}

TEST_CASE("the screen lists all-to-alls beside the other collectives, without a reduction") {
  CHECK(report_text(with_all_to_all(), {}).find(R"(
  collectives     per step  over    bytes in  bytes out  on the wire  reduction
  all_to_all             1  fsdp 4      96 B       96 B  float32
  all_gather             2  fsdp 4     128 B      512 B  float32
  reduce_scatter         1  fsdp 4     256 B       64 B  float32      sum x 1/4
)") != std::string::npos);
}

/// The line of `text` that begins with `start`.
std::string line_of(const std::string& text, const std::string& start) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind(start, 0) == 0) return line;
  }
  return "no line begins with " + start;
}

TEST_CASE("a plan shows no scale beside an all-to-all, and explains it as no reduction") {
  Plan plan = build_plan(test::fsdp_scenario(test::elementwise_model({{"w", {7, 8}}}), 4));
  const auto shown = [&plan] {
    return line_of(plan_text(make_plan_report(plan), {}, false), "  0  unshard");
  };
  const auto explained = [&plan] { return explain_text(plan, {.parameters = {0}}, false); };
  const std::string gathers = shown();
  CHECK(gathers.find("64 -> 256 B") != std::string::npos);
  REQUIRE(explained().find("reduce_scatter over fsdp 4; k/F") != std::string::npos);
  for (Step& step : plan.steps) {
    if (step.kind == StepKind::Unshard) step.collective->op = CollectiveOp::AllToAll;
  }
  CHECK(shown() == gathers);
  CHECK(explained().find("reduce_scatter over fsdp 4; k/F") != std::string::npos);
  CHECK(explained().find("all_to_all over") == std::string::npos);
}

}  // namespace
}  // namespace hpsim
