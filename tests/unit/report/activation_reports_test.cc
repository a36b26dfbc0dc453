// How reports tell of collectives that carry activations.

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "exec/symbolic.h"
#include "plan/build_plan.h"
#include "plan/verify_plan.h"
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
using Texts = std::vector<std::string>;

VerifiedPlan plan_on(const std::string& modules, const std::string& more) {
  return verify_plan(build_plan(parse_scenario(fmt::format(R"x({{"hpsim": 1, "name": "tp",
                        "mesh": {{"shape": [2, 2], "mesh_dim_names": ["fsdp", "tp"]}},
                        "model": [{}], {}}})x",
                                                           modules, more),
                                               "tp.json")));
}

std::string linear(const std::string& name, int in, int out) {
  return fmt::format(
      R"x({{"name": "{}", "type": "linear", "in_features": {}, "out_features": {}, "bias": false}})x",
      name, in, out);
}

/// Two samples on each data rank: "up" 6 -> 8 and "down" 8 -> 4.
VerifiedPlan up_and_down(const std::string& more) {
  return plan_on(linear("up", 6, 8) + ", " + linear("down", 8, 4), more);
}

const std::string kStyles = R"x("parallelize": {"up": "colwise", "down": "rowwise"})x";

Report report_of(const VerifiedPlan& plan) {
  const RunResult run = SymbolicExecutor().run(plan, {});
  return make_report(plan, run, {}, compare_runs(plan, run, {}));
}

Texts differences(const VerifiedPlan& before, const VerifiedPlan& now) {
  const GoldenComparison comparison =
      compare_golden("golden.json", golden_text(make_golden(report_of(before))), report_of(now));
  Texts texts;
  for (const GoldenDifference& difference : comparison.differences) {
    if (difference.section == "collectives") texts.push_back(difference.message);
  }
  return texts;
}

TEST_CASE("an activation stands in a report with its unit and name, and carries no parameters") {
  const Json json = comparable_json(report_of(up_and_down(kStyles)), false);
  REQUIRE(json["collectives"].size() == 7);
  // Two samples of 4 features, 4 bytes each.
  CHECK(json["collectives"][2] == Json::parse(R"x({
      "seq": 2, "op": "all_reduce", "phase": "forward", "step": 0, "micro_batch": 0,
      "unit": "down", "params": [], "mesh_dims": ["tp"], "groups": [[0, 1], [2, 3]],
      "dtype": "float32", "reduce_op": "sum", "prescale": 1, "scale": 1, "elements_in": 8,
      "elements_out": 8, "bytes_in": 32, "bytes_out": 32,
      "activation": "output of \"down\""})x"));
  CHECK(json["collectives"][1]["params"] == Json{"down.weight"});
  CHECK_FALSE(json["collectives"][1].contains("activation"));
}

TEST_CASE("what the loss asks for is of no unit") {
  const Json json = comparable_json(
      report_of(up_and_down(R"x("placements": {"down.weight": {"tp": "Shard(1)"}})x")), false);
  const Json& all = json["collectives"];
  const auto it = std::find_if(all.begin(), all.end(),
                               [](const Json& each) { return each.contains("activation"); });
  REQUIRE(it != all.end());
  CHECK((*it)["activation"] == "output of the model");
  CHECK((*it)["unit"] == "");
}

TEST_CASE("a golden has a line per activation that is sent") {
  const Json golden = make_golden(report_of(up_and_down(kStyles)));
  CHECK(golden["collectives"][0]["forward"][2] == Json::parse(R"x({
      "op": "all_reduce", "unit": "down", "activation": "output of \"down\"",
      "mesh_dims": ["tp"], "dtype": "float32", "scale": 1, "elements": [8, 8],
      "bytes": [32, 32]})x"));
  // Units are those of parameters.
  CHECK(golden["units"].size() == 2);
}

TEST_CASE("the differences of a golden name an activation alone") {
  const VerifiedPlan with = up_and_down(kStyles);
  const VerifiedPlan without = up_and_down(R"x("parallelize": {"up": "replicate"})x");
  const Texts gone = differences(with, without);
  REQUIRE_FALSE(gone.empty());
  CHECK(gone[0] == "forward: all_reduce 1 → 0 over tp (output of \"down\" gone)");
  const Texts added = differences(without, with);
  CHECK(std::count(added.begin(), added.end(),
                   "forward: all_reduce 0 → 1 over tp (output of \"down\" added)") == 1);
  // 4 samples on each data rank are twice the bytes, of activations only.
  CHECK(differences(with, up_and_down(kStyles + R"x(, "training": {"global_batch": 8})x")) ==
        Texts{"forward: all_reduce over tp: bytes in and out (32, 32) → (64, 64) (output of "
              "\"down\")"});
}

TEST_CASE("the differences of a golden name activations together with units") {
  // "in" sees other samples along tp than its neighbour, which is a sum after its backward; behind
  // "up" all ranks along tp have the same, so that "top" adds up the gradient of its input.
  const std::string modules = linear("in", 4, 4) + ", " + linear("up", 4, 4) + ", " +
                              linear("mid", 4, 4) + ", " + linear("top", 4, 4);
  const VerifiedPlan both = plan_on(modules, R"x("parallelize": {"up": "colwise", "top": "colwise"},
                           "data": {"data_dims": ["fsdp", "tp"]})x");
  const VerifiedPlan none = plan_on(modules, R"x("parallelize": {"up": "replicate"})x");
  const Texts gone = differences(both, none);
  CHECK(std::count(gone.begin(), gone.end(),
                   "backward: all_reduce 2 → 0 over tp (unit in; gradient of the input of \"top\" "
                   "gone)") == 1);
  const Texts added = differences(none, both);
  CHECK(std::count(added.begin(), added.end(),
                   "backward: all_reduce 0 → 2 over tp (unit in; gradient of the input of \"top\" "
                   "added)") == 1);
}

TEST_CASE("activations in another order than the golden's are told by name") {
  Report report =
      report_of(plan_on(linear("a", 4, 4) + ", " + linear("b", 4, 4) + ", " + linear("c", 4, 4),
                        R"x("parallelize": {"a": "rowwise", "c": "rowwise"})x"));
  const std::string golden = golden_text(make_golden(report));
  std::vector<CollectiveReport*> sums;
  for (CollectiveReport& each : report.collectives) {
    if (each.phase == Phase::Forward && each.spec.op == CollectiveOp::AllReduce)
      sums.push_back(&each);
  }
  REQUIRE(sums.size() == 2);
  std::swap(*sums[0], *sums[1]);
  const GoldenComparison comparison = compare_golden("golden.json", golden, report);
  REQUIRE(comparison.differences.size() == 1);
  CHECK_THAT(comparison.differences[0].message,
             Contains("is all_reduce of output of \"c\", golden all_reduce of output of \"a\""));
}

TEST_CASE("the screen counts what tensor parallelism sends, by mesh dim") {
  const std::string text = report_text(report_of(up_and_down(kStyles)), {});
  CHECK_THAT(text, Contains("\n  all_reduce             1  tp 2        32 B       32 B  float32  "
                            "    sum\n"));
}

/// The line of the plan that begins with a number and a kind of step.
std::string plan_line(const std::string& text, const std::string& start) {
  const std::size_t begin = text.find("\n" + start);
  if (begin == std::string::npos) return "no line begins with " + start + " in\n" + text;
  return text.substr(begin + 1, text.find('\n', begin + 1) - begin - 1);
}

std::string joined(std::string text) {
  text.erase(
      std::unique(text.begin(), text.end(), [](char a, char b) { return a == ' ' && b == ' '; }),
      text.end());
  return text;
}

TEST_CASE("hpsim plan shows changes of activations, sent or not") {
  const std::string modules = linear("first", 4, 6) + ", " + linear("down", 6, 2);
  const PlanReport report =
      make_plan_report(*plan_on(modules, R"x("parallelize": {"down": "rowwise"})x"));
  // 0 unshard first, 1 forward first, 2 reshard first, 3 unshard down
  const std::string text = plan_text(report, {}, false);
  CHECK(joined(plan_line(text, "   4  slice")) == " 4 slice input of \"down\" tp 2 4");
  CHECK(joined(plan_line(text, "   6  all_reduce")) ==
        " 6 all_reduce output of \"down\" tp 2 2 4 -> 4 16 -> 16 B 1 5");
  // 8 loss, 9 unshard down, 10 backward down: its input's gradient is put together again.
  const std::string gathers = joined(plan_line(text, "  11  all_gather"));
  CHECK_THAT(gathers, Contains(" input of \"down\" tp 2 2 "));
  CHECK_THAT(gathers, Contains(" tp 2 2 6 -> 12 24 -> 48 B "));
  CHECK_THAT(text, Contains("[Shard(0), Replicate] -> [Shard(0), Shard(1)]"));
  CHECK_THAT(text, Contains("\n  5   rowwise gives Replicate: each rank computed terms of every "
                            "output feature\n        [Shard(0), Partial(sum)] -> [Shard(0), "
                            "Replicate]\n"));
}

TEST_CASE("hpsim plan as JSON tells what a redistribution does, and to what") {
  const std::string modules = linear("first", 4, 6) + ", " + linear("down", 6, 2);
  const Json steps = plan_json(
      make_plan_report(*plan_on(modules, R"x("parallelize": {"down": "rowwise"})x")), {})["steps"];
  const Json& slice = steps[4];
  CHECK(slice["kind"] == "redistribute");
  CHECK(slice["module"] == "down");
  CHECK(slice["unit"].is_null());
  CHECK(slice["params"].empty());
  CHECK(
      slice["redistribution"] ==
      Json::parse(R"x({"op": "slice", "activation": "input of \"down\"", "mesh_dims": ["tp"]})x"));
  CHECK(slice["collective"].is_null());
  CHECK(slice["why"]["before"] == "[Shard(0), Replicate]");
  CHECK(slice["why"]["after"] == "[Shard(0), Shard(1)]");
  const Json& sum = steps[6];
  CHECK(sum["redistribution"]["op"] == "all_reduce");
  CHECK(sum["redistribution"]["activation"] == "output of \"down\"");
  CHECK(sum["collective"]["activation"] == "output of \"down\"");
  CHECK(sum["collective"]["unit"] == "down");
  CHECK(sum["collective"]["elements_in"] == 4);
  CHECK(sum["collective"]["seq"] == 2);
  CHECK(steps[11]["redistribution"]["activation"] == "gradient of the input of \"down\"");
  CHECK(steps[11]["phase"] == "backward");
  CHECK_FALSE(steps[0].contains("redistribution"));
}

}  // namespace
}  // namespace hpsim
