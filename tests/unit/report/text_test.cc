#include "report/text.h"

#include <fmt/format.h>

#include <algorithm>

#include "report/table.h"
#include "report/text_parts.h"
#include "support/catch.h"
#include "unit/report/sample_report.h"

namespace hpsim {
namespace {

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST_CASE("the screen of 7 rows over 4 ranks") {
  CHECK(report_text(sample_report(), {}) ==
        R"x(uneven · 7 rows over 4 ranks
local · mesh fsdp 4 · 4 ranks · float32 derived · 1 step of 8 samples · sgd lr 0.1

  parameter  shape   placements                       rows     pad  groups
  weight     (7, 8)  RaggedShard((0,), (2, 2, 2, 1))  2 2 2 1    1  fsdp 4

  step      loss  baseline loss  grad norm
     0  0.421875       0.421875          2

  collectives     per step  over    bytes in  bytes out  on the wire  reduction
  all_gather             2  fsdp 4     128 B      512 B  float32
  reduce_scatter         1  fsdp 4     256 B       64 B  float32      sum x 1/4
  peak memory per rank 640 B at unshard of unit "(root)": unsharded parameters 256 B, shards 64 B

  plan          numbers  run               numbers  against the baseline  numbers  err/bound
  ✓ coverage          5  ✓ plan-agreement       12  ✓ loss-parity               1       0.02
  ✓ sync-set          1                             ✓ gradient-parity          56       0.12
  ✓ placements        4                             ✓ parameter-parity      1,234        0.1

PASS  7 checks, 1,313 numbers compared, worst err/bound 0.12
      19.3 ms: start 3.0, run 4.0, verify 12.1
)x");
}

TEST_CASE("a small scenario fits a screen of 24 lines and 100 columns") {
  Report report = sample_report();
  report.description = std::string(200, 'd');
  report.parameters[0].sharded = {RaggedShard{{0}, LocalUnits(std::vector<std::int64_t>(64, 1))}};
  for (const CheckId id :
       {CheckId::OptimizerStateParity, CheckId::GradNormParity, CheckId::ReplicaAgreement,
        CheckId::Padding, CheckId::Ledger, CheckId::Expect}) {
    report.checks.push_back({.id = id, .passed = true, .compared = 1});
  }
  report.notes = {"a note"};
  const std::string text = report_text(report, {});
  CHECK(std::count(text.begin(), text.end(), '\n') <= 24);
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = text.find('\n', begin);
    const std::string line = text.substr(begin, end - begin);
    CAPTURE(line);
    CHECK(columns_of(line) <= 100);
    CHECK((line.empty() || line.back() != ' '));
    begin = end + 1;
  }
}

TEST_CASE("long lists are folded, and not if all is asked for") {
  Report report = sample_report();
  report.scenario->training.steps = 20;
  report.losses.assign(20, 1);
  report.parameters.resize(192, report.parameters.front());
  for (std::size_t i = 0; i < report.parameters.size(); ++i)
    report.parameters[i].name = fmt::format("p{}", i);
  const std::string folded = report_text(report, {});
  CHECK(contains(folded, "p10 "));
  CHECK_FALSE(contains(folded, "p11 "));
  CHECK(contains(folded, "… 181 more parameters"));
  CHECK(contains(folded, "… 15 more steps"));
  CHECK(contains(folded, "    19  "));
  const std::string full = report_text(report, {.full = true});
  CHECK(contains(full, "p191 "));
  CHECK_FALSE(contains(full, "…"));
}

TEST_CASE("findings are one line and an indented explanation each, folded after ten") {
  Report report = sample_report();
  report.outcome = Outcome::Fail;
  Finding finding;
  finding.code = FindingCode::GradScale;
  finding.check = CheckId::GradientParity;
  finding.param = "weight";
  finding.rank = 6;
  finding.coordinate = {1, 2};
  finding.step = 0;
  finding.index = {5, 0};
  finding.ratio = 4;
  finding.explains = {"S=4"};
  finding.message = "got 0.5, expected 0.125; 4 times the expected value: S=4";
  report.findings.assign(12, finding);
  const std::string text = findings_text(report, {});
  CHECK(
      text.rfind("\n✗ GRAD_SCALE  gradient-parity: weight, rank 6 at (1, 2), step 0, index (5, 0)\n"
                 "    got 0.5, expected 0.125; 4 times the expected value: S=4\n",
                 0) == 0);
  CHECK(contains(text, "… 2 more findings"));
  CHECK_FALSE(contains(findings_text(report, {.full = true}), "more findings"));
  report.checks[1].passed = false;
  report.checks[5].passed = false;
  CHECK(contains(report_text(report, {}),
                 "FAIL  7 checks, 2 failed: sync-set, gradient-parity, 1,313 numbers compared\n"));
  CHECK(findings_text(sample_report(), {}).empty());
}

TEST_CASE("errors are told with their place in the scenario file, warnings without") {
  CHECK(findings_text(failed_report(), {}) ==
        "\n✗ GRAD_SCALE  gradient-parity: weight, rank 3 at (3,), step 0, index (6, 0)\n"
        "    got 0.5, expected 0.125; 4 times the expected value: S=4\n"
        "    scenarios/fsdp/uneven.json:6:18\n"
        "! SPEC_DISAGREES  placements: weight\n"
        "    torch has no name for 2 2 2 1\n");
}

TEST_CASE("rows per shard are listed for few shards and counted for many") {
  CHECK(shard_rows_text({{{0, 3}, 0, 2}, {{3, 4}, 6, 1}}) == "2 2 2 1");
  CHECK(shard_rows_text({{{0, 15}, 0, 63}, {{15, 16}, 945, 55}}) == "63 (x15) 55");
  CHECK(shard_rows_text({{{0, 32}, 0, 1}, {{32, 64}, 32, 0}}) == "1 (x32) 0 (x32)");
  CHECK(shard_rows_text({{{0, 1}, 0, 7}}) == "7");
  const Report sample = sample_report();
  CHECK(padding_of(sample.scenario->mesh, sample.parameters[0]) == 1);
  CHECK(shards_text(sample.scenario->mesh, sample.parameters[0]) == "2 2 2 1");
  const Report large = large_report();
  CHECK(padding_of(large.scenario->mesh, large.parameters[0]) == 32);
}

TEST_CASE("several scenarios have a line each and a summary") {
  Report failed = sample_report();
  failed.outcome = Outcome::Fail;
  Report error = make_error_report("b.json", "gloo", Error(ErrorKind::RankFailure, "rank 1 died"));
  CHECK(list_heading(29, {}) + report_line(sample_report(), 29, {}) + report_line(error, 29, {}) ==
        "       scenario                        ranks    compared  err/bound      time\n"
        "PASS   scenarios/fsdp/uneven.json          4       1,313       0.12   19.3 ms\n"
        "ERROR  b.json                         exit 6\n");
  CHECK(summary_text({{sample_report()}, {}}, 0, 1.5, {}) == "\n1 passed of 1 on local · 1.50 s\n");
  CHECK(summary_text({{sample_report(), failed, error}, {}}, 2, 1.5, {}) ==
        "\n1 passed, 1 failed, 1 ended in an error, 2 not run of 5 on local · 1.50 s\n");
}

TEST_CASE("exact mode says equal, and a run without numbers says so") {
  Report exact = sample_report();
  exact.scenario->numerics.mode = NumericsSpec::Mode::Exact;
  for (CheckResult& check : exact.checks) {
    if (check.worst) check.worst->ratio = 0;
  }
  CHECK(contains(report_text(exact, {}), "✓ gradient-parity          56      equal"));
  CHECK(contains(report_text(exact, {}), "1,313 numbers compared, all equal"));
  CHECK(contains(report_text(large_report(), {}), "  no numbers are computed: "));
}

}  // namespace
}  // namespace hpsim
