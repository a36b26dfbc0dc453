#include "report/report.h"

#include <nlohmann/json.hpp>

#include "baseline/eigen_baseline.h"
#include "exec/executor.h"
#include "plan/build_plan.h"
#include "report/json.h"
#include "report/json_parts.h"
#include "scenario/parse.h"
#include "support/catch.h"
#include "verify/compare_runs.h"

namespace hpsim {
namespace {

Report report_on(const std::string& text, Backend backend) {
  const Scenario scenario = parse_scenario(text, "sample.json");
  const VerifiedPlan plan = verify_plan(build_plan(scenario));
  const RunResult run = make_executor(backend)->run(plan, {});
  const ReferenceRun reference = run.has_numbers() ? run_baseline(scenario) : ReferenceRun{};
  return make_report(plan, run, reference, compare_runs(plan, run, reference));
}

std::string smallest(const std::string& more) {
  return R"({"hpsim": 1, "mesh": {"shape": [4], "mesh_dim_names": ["fsdp"]},
             "parameters": {"weight": [7, 8]})" +
         more + "}";
}

TEST_CASE("the smallest scenario: layout, collectives and counts as derived by hand") {
  for (const Backend backend : {Backend::Symbolic, Backend::Local}) {
    const Report report = report_on(
        smallest(R"(, "expect": {"counts": {"all_gather": 2, "reduce_scatter": 1}})"), backend);
    const Json json = comparable_json(report, false);
    CAPTURE(json_text(json));
    CHECK(report.outcome == Outcome::Pass);
    CHECK(report.exit_code == 0);
    CHECK(json["parameters"][0]["shards"] == Json::parse(R"([
        {"rank": 0, "offset": [0, 0], "shape": [2, 8]},
        {"rank": 1, "offset": [2, 0], "shape": [2, 8]},
        {"rank": 2, "offset": [4, 0], "shape": [2, 8]},
        {"rank": 3, "offset": [6, 0], "shape": [1, 8]}])"));
    REQUIRE(json["collectives"].size() == 3);
    const std::vector<std::string> ops = {"all_gather", "all_gather", "reduce_scatter"};
    for (std::size_t i = 0; i < 3; ++i) {
      CHECK(json["collectives"][i]["op"] == ops[i]);
      CHECK(json["collectives"][i]["elements_in"] == (i < 2 ? 16 : 64));
      CHECK(json["collectives"][i]["elements_out"] == (i < 2 ? 64 : 16));
    }
    CHECK(json["collectives"][2]["prescale"].get<double>() *
              json["collectives"][2]["scale"].get<double>() ==
          0.25);
    // On rank 3 the storage of its slot and the input of the reduction; on others only the latter.
    CHECK(report.counters.pad_allocations == 2);
    CHECK(report.counters.peak_unsharded_bytes == 4 * 2 * 8 * 4);
  }
}

TEST_CASE("a wrong expectation turns a pass into a failure") {
  const Report report = report_on(smallest(R"(, "expect": {"world_size": 5})"), Backend::Symbolic);
  CHECK(report.outcome == Outcome::Fail);
  CHECK(report.exit_code == 1);
  REQUIRE(report.findings.size() == 1);
  CHECK(report.findings[0].pointer == "/expect/world_size");
  CHECK(report.checks.back().id == CheckId::Expect);
}

TEST_CASE("findings know the place in the scenario file that they are about") {
  const std::string file =
      "{\n"
      "  \"hpsim\": 1, \"mesh\": {\"shape\": [4], \"mesh_dim_names\": [\"fsdp\"]},\n"
      "  \"parameters\": {\n"
      "    \"weight\": [6, 8]},\n"
      "  \"fully_shard\": {\"vocabulary\": \"uneven_flag\", \"chunking\": \"balanced\"},\n"
      "  \"expect\": {\"verdict\": \"pass\",\n"
      "    \"world_size\": 5, \"no_key\": 1}}";
  const Report report = report_on(file, Backend::Symbolic);
  REQUIRE(report.findings.size() == 3);
  CHECK(report.findings[0].code == FindingCode::SpecDisagrees);  // of the parameter
  CHECK(report.findings[0].line == 4);
  CHECK(report.findings[0].column == 15);
  CHECK(report.findings[1].pointer == "/expect/world_size");
  CHECK(report.findings[1].line == 7);
  CHECK(report.findings[1].column == 19);
  CHECK(report.findings[2].pointer == "/expect/no_key");
  CHECK(report.findings[2].line == 7);
  CHECK(report.findings[2].column == 32);
  const Json json = comparable_json(report, false);
  CHECK(json["findings"][1]["line"] == 7);
  CHECK(json["findings"][1]["column"] == 19);
}

TEST_CASE("a refused plan is told at the module, or at the beginning of the file") {
  const std::string file =
      "// 2 ranks\n"
      "{\n"
      "  \"hpsim\": 1, \"mesh\": {\"shape\": [2], \"mesh_dim_names\": [\"fsdp\"]},\n"
      "  \"data\": {\"sample_shape\": [4]}, \"model\": [{\"type\": \"tanh\"},\n"
      "    {\"name\": \"l0\", \"type\": \"linear\", \"in_features\": 4, \"out_features\": 2}]}";
  Scenario scenario = parse_scenario(file, "sample.json");
  const PlanRejected rejected(
      {{.check = CheckId::SyncSet, .param = "l0.bias"}, {.check = CheckId::PlanAgreement}},
      {.results = {{.id = CheckId::SyncSet, .passed = false, .compared = 1}}});
  const Report report = make_rejected_report(scenario, "local", rejected);
  CHECK(report.findings[0].line == 5);
  CHECK(report.findings[0].column == 5);
  CHECK(report.findings[1].line == 2);
  CHECK(report.findings[1].column == 1);
  scenario.source = nullptr;
  const Report unread = make_rejected_report(scenario, "local", rejected);
  CHECK(unread.findings[0].line == 0);
  CHECK_FALSE(finding_json(unread.findings[0]).contains("line"));
}

TEST_CASE("losses that expect names are left out where there are none") {
  const Report report = report_on(smallest(R"(, "expect": {"losses": [7]})"), Backend::Symbolic);
  CHECK(report.outcome == Outcome::Pass);
  REQUIRE(report.notes.size() == 1);
  CHECK(report.notes[0] == "expect: losses not compared, symbolic computes no numbers");
  CHECK(report_on(smallest(R"(, "expect": {"losses": [7]})"), Backend::Local).outcome ==
        Outcome::Fail);
}

TEST_CASE("G over the gradient of the reported loss") {
  struct Row {
    ReduceOp op;
    double k;
    std::optional<double> f;
    LossNormalization loss;
    double ratio;
    const char* text;
  };
  // Four data ranks; ratio = k D / F for local_mean, k / F for sum.
  const std::vector<Row> rows = {
      {ReduceOp::Avg, 1, {}, LossNormalization::LocalMean, 1, "1"},
      {ReduceOp::Sum, 1, {}, LossNormalization::LocalMean, 4, "4"},
      {ReduceOp::Avg, 2, {}, LossNormalization::LocalMean, 2, "2"},
      {ReduceOp::Avg, 1, 8, LossNormalization::LocalMean, 0.5, "1/2"},
      {ReduceOp::Avg, 1, {}, LossNormalization::Sum, 0.25, "1/4"},
      {ReduceOp::Sum, 1, {}, LossNormalization::Sum, 1, "1"},
      {ReduceOp::Sum, 3, 2, LossNormalization::Sum, 1.5, "1.5"},
  };
  for (const Row& row : rows) {
    Scenario scenario;
    scenario.mesh = Mesh({4}, {"fsdp"});
    scenario.data.data_dims = {0};
    scenario.fully_shard.reduce_op = row.op;
    scenario.fully_shard.gradient_scaling_factor = row.k;
    scenario.fully_shard.gradient_divide_factor = row.f;
    scenario.training.loss_normalization = row.loss;
    CHECK(gradient_ratio(scenario) == row.ratio);
    CHECK(format_factor(row.ratio) == row.text);
  }
}

TEST_CASE("exact mode: a digest that does not depend on how the training is cut") {
  const std::string exact = R"(, "numerics": {"mode": "exact"}, "training": {"steps": 2,
                                 "global_batch": 8})";
  const Report four = report_on(smallest(exact), Backend::Local);
  const Report two = report_on(
      R"({"hpsim": 1, "mesh": {"shape": [2, 2], "mesh_dim_names": ["rep", "fsdp"]},
          "parameters": {"weight": [7, 8]})" +
          exact + "}",
      Backend::Local);
  CHECK(four.digest.size() == 16);
  CHECK(four.digest == two.digest);
  const Report other_seed = report_on(smallest(exact + R"(, "data": {"seed": 1})"), Backend::Local);
  CHECK(other_seed.digest != four.digest);
  CHECK(report_on(smallest(""), Backend::Local).digest.empty());
}

}  // namespace
}  // namespace hpsim
