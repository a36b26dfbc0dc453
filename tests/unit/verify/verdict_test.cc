#include "verify/verdict.h"

#include "planted_run.h"
#include "support/catch.h"
#include "verify/check_recorder.h"
#include "verify/diagnose.h"
#include "verify/rank_table.h"

namespace hpsim {
namespace {

Finding finding_of(Severity severity) {
  return {.code = FindingCode::GradValue, .severity = severity, .message = "x"};
}

TEST_CASE("a verdict passes only if checks ran, compared something and found no error") {
  Verdict verdict;
  CHECK_FALSE(verdict.passed());
  verdict.checks = {{.id = CheckId::Coverage, .passed = true, .compared = 3}};
  CHECK(verdict.passed());
  verdict.findings = {finding_of(Severity::Warning)};
  CHECK(verdict.passed());
  verdict.findings = {finding_of(Severity::Error)};
  CHECK_FALSE(verdict.passed());
  verdict.findings.clear();
  verdict.checks[0].compared = 0;
  CHECK_FALSE(verdict.passed());
  verdict.checks[0] = {.id = CheckId::Coverage, .passed = false, .compared = 3};
  CHECK_FALSE(verdict.passed());
}

TEST_CASE("a check that compared nothing fails and says so") {
  Verdict verdict;
  CheckRecorder(CheckId::Padding).finish(verdict);
  REQUIRE(verdict.checks.size() == 1);
  CHECK_FALSE(verdict.checks[0].passed);
  REQUIRE(verdict.findings.size() == 1);
  CHECK(verdict.findings[0].message ==
        "padding compared 0 numbers, more than 0 expected: nothing is proved");
}

TEST_CASE("warnings do not fail a check") {
  Verdict verdict;
  CheckRecorder recorder(CheckId::Padding);
  recorder.count(4480);
  recorder.add(finding_of(Severity::Warning));
  recorder.finish(verdict);
  CHECK(verdict.checks[0].passed);
  CHECK(verdict.findings.size() == 1);
  CHECK(verdict.findings[0].check == CheckId::Padding);
}

TEST_CASE("five findings are told and the rest is counted") {
  Verdict verdict;
  CheckRecorder recorder(CheckId::GradientParity);
  recorder.count(4480);
  for (int i = 0; i < 7; ++i)
    recorder.add(finding_of(Severity::Error));
  recorder.finish(verdict);
  CHECK_FALSE(verdict.checks[0].passed);
  REQUIRE(verdict.findings.size() == 6);
  CHECK(verdict.findings[5].message == "and 2 more findings of this check");
  CHECK(verdict.findings[5].severity == Severity::Error);
}

TEST_CASE("the worst element is the first with the largest ratio") {
  Verdict verdict;
  CheckRecorder recorder(CheckId::GradientParity);
  recorder.count(1);
  recorder.offer_worst({"a", 0, 0, 0.25});
  recorder.offer_worst({"b", 1, 0, 0.5});
  recorder.offer_worst({"c", 2, 0, 0.5});
  recorder.finish(verdict);
  CHECK(verdict.checks[0].worst->param == "b");
}

TEST_CASE("ranks are looked up along mesh dims") {
  const Mesh mesh({2, 4}, {"rep", "fsdp"});
  RankTable table(mesh);
  CHECK(table.index_along({1})[6] == 2);
  CHECK(table.group_along({1})[6] == 1);
  CHECK(table.group_along({0, 1})[6] == 0);
  CHECK(describe_rank(mesh, Rank{6}) == "rank 6 (rep=1, fsdp=2)");
}

TEST_CASE("factors that a scenario holds have names") {
  test::CaseSpec spec;
  const auto texts_of = [](const std::vector<NamedNumber>& numbers) {
    std::vector<std::string> texts;
    for (const NamedNumber& number : numbers)
      texts.push_back(number.text);
    return join(texts);
  };
  const test::PlantedRun fsdp(spec);
  CHECK(texts_of(named_numbers(fsdp.plan->scenario, fsdp.plan->parameters[0])) ==
        "W=4, D=4, S=4, F=4, 1/W=1/4, 1/D=1/4, 1/S=1/4, 1/F=1/4");

  spec.mesh_shape = {2, 4};
  spec.mesh_names = {"rep", "fsdp"};
  Scenario scenario = test::make_scenario(spec);
  scenario.fully_shard.gradient_divide_factor = 300;
  scenario.fully_shard.gradient_scaling_factor = 0.5;
  const test::PlantedRun hsdp(spec);
  CHECK(texts_of(named_numbers(scenario, hsdp.plan->parameters[0])) ==
        "W=8, D=8, S=4, R=2, S*R=8, F=300, k=0.5, 1/W=1/8, 1/D=1/8, 1/S=1/4, 1/R=1/2, 1/S*R=1/8, "
        "1/F=1/300, 1/k=1/0.5");
  CHECK(explain(0.5, named_numbers(scenario, hsdp.plan->parameters[0])) ==
        std::vector<std::string>{"k=0.5", "1/R=1/2"});
}

TEST_CASE("ranks are listed, or counted if they are many") {
  CHECK(describe_ranks({0, 1, 2, 3}, 4) == "all 4 ranks");
  CHECK(describe_ranks({0, 2}, 4) == "ranks 0, 2");
  CHECK(describe_ranks({3}, 4) == "rank 3");
  CHECK(describe_ranks({0, 1, 2, 3, 4, 5, 6, 7, 8}, 16) == "9 ranks");
}

TEST_CASE("numbers print as their dtype does") {
  CHECK(format_value(0.1F, DType::Float32) == "0.1");
  CHECK(format_value(0.1F, DType::Float64) == "0.10000000149011612");
  CHECK(format_value(0.1, DType::Float32) == "0.1");
  CHECK(format_value(1, DType::Float32) == "1");
}

}  // namespace
}  // namespace hpsim
