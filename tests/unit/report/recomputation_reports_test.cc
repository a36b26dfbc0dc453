// How reports, goldens, plans and explanations tell of what backward computes again.

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "exec/symbolic.h"
#include "plan/build_plan.h"
#include "plan/verify_plan.h"
#include "report/explain_report.h"
#include "report/golden.h"
#include "report/json.h"
#include "report/plan_report.h"
#include "report/report.h"
#include "report/text.h"
#include "scenario/parse.h"
#include "support/catch.h"
#include "verify/compare_runs.h"

namespace hpsim {
namespace {

using Catch::Matchers::Contains;
using Json = nlohmann::ordered_json;

/// Two samples on each data rank: block of up 6 -> 8, gelu and down 8 -> 4; out 4 -> 2.
Plan block_plan(bool is_recomputed, const std::string& frozen = "[]") {
  return build_plan(parse_scenario(fmt::format(R"x({{"hpsim": 1, "name": "again",
          "mesh": {{"shape": [2, 2], "mesh_dim_names": ["fsdp", "tp"]}}, "model": [
            {{"name": "block", "type": "sequential", "modules": [
              {{"name": "up", "type": "linear", "in_features": 6, "out_features": 8, "bias": false}},
              {{"name": "act", "type": "gelu"}},
              {{"name": "down", "type": "linear", "in_features": 8, "out_features": 4,
                "bias": false}}]}},
            {{"name": "out", "type": "linear", "in_features": 4, "out_features": 2,
              "bias": false}}],
          "data": {{"sample_shape": [6]}}, "parallelize": {{"block.up": "colwise", "block.down": "rowwise"}},
          "training": {{"activation_checkpointing": [{}], "frozen": {}}}}})x",
                                               is_recomputed ? R"("block")" : "", frozen),
                                   "again.json"));
}

Report report_of(const Plan& plan) {
  const VerifiedPlan verified = verify_plan(plan);
  const RunResult run = SymbolicExecutor().run(verified, {});
  return make_report(verified, run, {}, compare_runs(verified, run, {}));
}

TEST_CASE("a collective that comes again is one of backward, and says so") {
  const Report report = report_of(block_plan(true));
  const Json all = comparable_json(report, false)["collectives"];
  // all_gather block, sum of down, all_gather out; out's three; all_gather block, the sum again.
  REQUIRE(all.size() == 8);
  CHECK(all[1]["op"] == "all_reduce");
  CHECK_FALSE(all[1].contains("recomputed"));
  CHECK(all[6]["op"] == "all_reduce");
  CHECK(all[6]["phase"] == "backward");
  CHECK(all[6]["recomputed"] == true);
  CHECK(all[6]["unit"] == "block");
  CHECK(all[6]["activation"] == "output of \"block.down\"");
  CHECK(all[6]["elements_in"] == 8);
  CHECK_THAT(report_text(report, {}),
             Contains("\n  computed again in backward: block; with 1 of the collectives\n"));
  CHECK_THAT(report_text(report_of(block_plan(false)), {}), !Contains("computed again"));
}

TEST_CASE("a golden freezes what comes again, and its differences name it") {
  const Json golden = make_golden(report_of(block_plan(true)));
  const Json& backward = golden["collectives"][0]["backward"];
  CHECK(backward[3] == Json::parse(R"x({
      "op": "all_reduce", "unit": "block", "activation": "output of \"block.down\"",
      "recomputed": true, "mesh_dims": ["tp"], "dtype": "float32", "scale": 1,
      "elements": [8, 8], "bytes": [32, 32]})x"));
  const GoldenComparison comparison =
      compare_golden("golden.json", golden_text(golden), report_of(block_plan(false)));
  std::vector<std::string> texts;
  for (const GoldenDifference& difference : comparison.differences)
    texts.push_back(difference.message);
  CHECK(std::count(texts.begin(), texts.end(),
                   "backward: all_reduce 1 → 0 over tp (output of \"block.down\", recomputed "
                   "gone)") == 1);
}

std::int64_t count_of(const std::string& text, const std::string& what) {
  std::int64_t count = 0;
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1))
    ++count;
  return count;
}

TEST_CASE("a plan lists what is computed again") {
  const PlanReport report = make_plan_report(block_plan(true));
  const std::string text = plan_text(report, {}, false);
  CHECK(count_of(text, "forward ↻ ") == 3);
  CHECK(count_of(text, "all_reduce ↻ ") == 1);
  CHECK_THAT(text, Contains("↻: a step of forward that comes again in backward.\n"));
  CHECK_THAT(text, Contains("activation_checkpointing: forward kept what the part takes"));
  const Json steps = plan_json(report, {})["steps"];
  const auto count = std::count_if(steps.begin(), steps.end(), [](const Json& step) {
    return step.contains("recomputed") && step["recomputed"] == true && step["phase"] == "backward";
  });
  CHECK(count == 4);
}

TEST_CASE("explain tells which parts, and when a parameter is used again") {
  const Plan plan = block_plan(true);
  CHECK_THAT(activations_text(plan, {}),
             Contains("computed again in backward, with what is sent before and after their "
                      "modules: block\n"));
  const Json modules = activations_json(plan);
  CHECK(modules[0]["recomputed"] == true);
  CHECK_FALSE(modules[3].contains("recomputed"));
  CHECK_THAT(activations_text(block_plan(false), {}), !Contains("again"));
  ExplainView view;
  view.parameters = {0};
  view.in_detail = true;
  CHECK_THAT(explain_text(plan, view, false), Contains("forward again"));
}

TEST_CASE("a part through which no backward runs is not said to be computed again") {
  const Plan plan = block_plan(true, R"(["block.**"])");
  const std::string nothing =
      "\n  nothing is computed again in backward: it runs through none of the parts to "
      "checkpoint\n";
  CHECK_THAT(report_text(report_of(plan), {}), Contains(nothing) && !Contains("collectives\n"));
  CHECK_THAT(activations_text(plan, {}), Contains(nothing));
  // Of two parts the frozen first one.
  Plan two = block_plan(true, R"(["block.up.weight"])");
  two.scenario.training.recomputed = {{0, 1}, {2, 3}};  // up, down
  const Plan half = build_plan(two.scenario);
  CHECK_THAT(report_text(report_of(half), {}), Contains("again in backward: block.down;"));
}

}  // namespace
}  // namespace hpsim
