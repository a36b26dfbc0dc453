// The load of experts in reports and goldens.

#include "report/routing_report.h"

#include <nlohmann/json.hpp>
#include <string>

#include "baseline/eigen_baseline.h"
#include "exec/local.h"
#include "exec/symbolic.h"
#include "plan/build_plan.h"
#include "plan/verify_plan.h"
#include "report/golden.h"
#include "report/json.h"
#include "report/text.h"
#include "scenario/parse.h"
#include "support/catch.h"
#include "verify/compare_runs.h"

namespace hpsim {
namespace {

using Catch::Matchers::Contains;
using Json = nlohmann::ordered_json;
using Counts = std::vector<std::int64_t>;

/// fsdp 2 x ep 2, or more ranks; 2 samples of 5 positions on each of four data ranks, two experts
/// of four.
VerifiedPlan plan_of(const std::string& more = "") {
  return verify_plan(build_plan(parse_scenario(R"x({
      "hpsim": 1, "mesh": {"shape": [2, 2], "mesh_dim_names": ["fsdp", "ep"]},
      "model": [{"name": "norm", "type": "rms_norm", "dim": 8},
                {"name": "moe", "type": "moe", "dim": 8, "hidden": 6, "experts": 4, "top_k": 2}],
      "data": {"sample_shape": [5, 8]}, "parallelize": {"moe": "expert"},
      "training": {"steps": 2, "global_batch": 8})x" +
                                                   more + "}",
                                               "load.json")));
}

Report report_of(const VerifiedPlan& plan, Executor& executor) {
  const RunResult run = executor.run(plan, {});
  const ReferenceRun reference = run.has_numbers()
                                     ? run_baseline(plan->scenario, states_before_steps(*plan, run))
                                     : ReferenceRun{};
  return make_report(plan, run, reference, compare_runs(plan, run, reference));
}

Report local_report(const VerifiedPlan& plan) {
  LocalExecutor executor;
  return report_of(plan, executor);
}

std::int64_t sum(const Counts& counts) {
  std::int64_t sum = 0;
  for (const std::int64_t count : counts)
    sum += count;
  return sum;
}

TEST_CASE("a run tells the load of every experts module in every step") {
  const Report report = local_report(plan_of());
  REQUIRE(report.outcome == Outcome::Pass);
  REQUIRE(report.routing.size() == 2);
  for (const RoutingReport& routing : report.routing) {
    CHECK(routing.module == "moe.experts");
    CHECK_FALSE(routing.is_assumed);
    CHECK(sum(routing.tokens) == 8 * 5 * 2);
    REQUIRE(routing.received.size() == 4);
    CHECK(sum(routing.received) == 8 * 5 * 2);
    // Ranks of ep 0 hold experts 0 and 1.
    CHECK(routing.received[0] + routing.received[2] == routing.tokens[0] + routing.tokens[1]);
    const std::int64_t most = *std::max_element(routing.tokens.begin(), routing.tokens.end());
    CHECK(routing.imbalance == Approx(static_cast<double>(most) / 20));
  }
  const Json json = Json::parse(json_text(comparable_json(report, false), {}));
  CHECK(json["routing"][1]["step"] == 1);
  CHECK(json["routing"][0]["tokens"] == Json(report.routing[0].tokens));
  CHECK_THAT(routing_section(report, {}), Contains("tokens of each expert"));
  CHECK_THAT(routing_section(report, {}), Contains("moe.experts  1 "));
}

TEST_CASE("without numbers the load is that of balanced routing, and said to be") {
  SymbolicExecutor executor;
  const Report report = report_of(plan_of(), executor);
  REQUIRE(report.routing.size() == 1);
  CHECK(report.routing[0].is_assumed);
  CHECK(report.routing[0].tokens == Counts{20, 20, 20, 20});
  CHECK(report.routing[0].received == Counts{20, 20, 20, 20});
  CHECK(report.routing[0].imbalance == 1);
  REQUIRE(report.notes.size() == 1);
  CHECK_THAT(report.notes[0], Contains("balanced routing"));
  CHECK_THAT(routing_section(report, {}), Contains("any"));
}

TEST_CASE("a model without experts has no load") {
  const VerifiedPlan plan = verify_plan(build_plan(parse_scenario(
      R"({"hpsim": 1, "mesh": {"shape": [2], "mesh_dim_names": ["fsdp"]}, "parameters": {"w": [4]}})",
      "none.json")));
  const Report report = local_report(plan);
  CHECK(report.routing.empty());
  CHECK(report.balanced_peaks.empty());
  CHECK(routing_section(report, {}).empty());
  CHECK_FALSE(comparable_json(report, false).contains("routing"));
  CHECK_FALSE(make_golden(report).contains("routing"));
}

TEST_CASE("a golden is the same on every backend but for numbers, of which the routes are one") {
  const VerifiedPlan plan = plan_of();
  const std::string golden = golden_text(make_golden(local_report(plan)));
  SymbolicExecutor executor;
  const Report symbolic = report_of(plan, executor);
  const GoldenComparison comparison = compare_golden("golden.json", golden, symbolic);
  CHECK(comparison.state == GoldenState::Same);
  CHECK(std::find(comparison.not_compared.begin(), comparison.not_compared.end(), "routing") !=
        comparison.not_compared.end());
  CHECK(updated_golden(golden, symbolic) == golden);
}

TEST_CASE("planted: a golden that routes otherwise, or not at all") {
  const Report report = local_report(plan_of());
  Json golden = make_golden(report);
  golden["routing"][1]["tokens"][2] = 99;
  const GoldenComparison moved = compare_golden("golden.json", golden.dump(), report);
  REQUIRE(moved.differences.size() == 1);
  CHECK(moved.differences[0].section == "routing");
  CHECK(moved.differences[0].step == 1);
  CHECK_THAT(moved.differences[0].message,
             Contains("routing of moe.experts in step 1: tokens of each expert ("));
  golden.erase("routing");
  const GoldenComparison missing = compare_golden("golden.json", golden.dump(), report);
  REQUIRE(missing.differences.size() == 1);
  CHECK(missing.differences[0].message == "routing: the golden has none");
}

TEST_CASE("what experts exchange stands in a report by name, and is said to be balanced") {
  const Json json = comparable_json(local_report(plan_of()), false);
  std::vector<std::string> activations;
  for (const Json& collective : json["collectives"]) {
    if (collective["op"] != "all_to_all" || collective["step"] != 0) continue;
    activations.push_back(collective["activation"]);
    CHECK(collective["unit"] == "moe");
    CHECK(collective.contains("routing") == (collective["dtype"] != "int64"));
    CHECK(collective.contains("routed") == (collective["dtype"] != "int64"));
  }
  CHECK(activations ==
        std::vector<std::string>{"counts of tokens of \"moe.experts\"", "tokens to \"moe.experts\"",
                                 "tokens from \"moe.experts\"", "gradients to \"moe.experts\"",
                                 "gradients from \"moe.experts\""});
}

TEST_CASE("a run tells what it really sent to experts, by rank") {
  const Report report = local_report(plan_of());
  const Json json = comparable_json(report, false);
  for (const Json& collective : json["collectives"]) {
    if (collective.value("activation", "") != "tokens to \"moe.experts\"") continue;
    const Counts& received = report.routing.at(collective["step"].get<std::size_t>()).received;
    Json expected = Json::array();
    for (const std::int64_t count : received)
      expected.push_back(8 * count);
    CHECK(collective["routed"]["elements_out"] == expected);
    CHECK(collective["elements_out"] == 160);  // balanced
    // Every rank sends all it routes: 2 samples of 5 positions, two experts each.
    CHECK(collective["routed"]["elements_in"] == 160);
  }
  // The text has the most that a rank sends, or gets.
  const Report symbolic = [] {
    SymbolicExecutor executor;
    return report_of(plan_of(), executor);
  }();
  CHECK_FALSE(comparable_json(symbolic, false).dump().find("\"routed\"") != std::string::npos);
}

TEST_CASE("many counts are told by the least and the most") {
  Report report;
  report.routing.push_back({.module = "moe.experts", .tokens = Counts(16, 1024)});
  CHECK_THAT(routing_section(report, {}), Contains("  1,024 each  "));
  report.routing[0].tokens[3] = 7;
  CHECK_THAT(routing_section(report, {}), Contains("  7 to 1,024 each  "));
  report.routing[0].tokens.resize(4);
  CHECK_THAT(routing_section(report, {}), Contains("  1024 1024 1024 7  "));
}

}  // namespace
}  // namespace hpsim
