#include "verify/verdict.h"

#include "planted_run.h"
#include "support/catch.h"
#include "verify/check_recorder.h"
#include "verify/diagnose.h"
#include "verify/rank_table.h"
#include "verify/told_findings.h"

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
  CHECK(verdict.findings.size() == 5);
  CHECK(verdict.left_out == std::vector<LeftOut>{{CheckId::GradientParity, 2, 0}});
}

TEST_CASE("of findings that are left out, every code is told once, as long as there is room") {
  const auto of = [](CheckId check, FindingCode code, Severity severity) {
    return Finding{.code = code, .severity = severity, .check = check};
  };
  std::vector<Finding> findings(
      6, of(CheckId::SyncSet, FindingCode::UnreducedPartial, Severity::Error));
  findings.push_back(of(CheckId::SyncSet, FindingCode::DoubleReduced, Severity::Error));
  findings.push_back(of(CheckId::SyncSet, FindingCode::DoubleReduced, Severity::Warning));
  findings.push_back(of(CheckId::Coverage, FindingCode::LayoutGap, Severity::Error));
  findings[3].message = "first left out";
  const std::vector<LeftOut> left_out = keep_told(findings);
  CHECK(left_out == std::vector<LeftOut>{{CheckId::SyncSet, 3, 0}});
  REQUIRE(findings.size() == 6);
  for (int i = 0; i < 3; ++i)
    CHECK(findings[static_cast<std::size_t>(i)].message.empty());
  CHECK(findings[3].code == FindingCode::DoubleReduced);
  CHECK(findings[4].severity == Severity::Warning);
  CHECK(findings[5].check == CheckId::Coverage);
  CHECK(keep_told(findings).empty());
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
        "D=4, S=4, F=4, W=4, numel=56, 1/D=1/4, 1/S=1/4, 1/F=1/4, 1/W=1/4, 1/numel=1/56");

  spec.mesh_shape = {2, 4};
  spec.mesh_names = {"rep", "fsdp"};
  Scenario scenario = test::make_scenario(spec);
  scenario.fully_shard.gradient_divide_factor = 300;
  scenario.fully_shard.gradient_scaling_factor = 0.5;
  const test::PlantedRun hsdp(spec);
  CHECK(texts_of(named_numbers(scenario, hsdp.plan->parameters[0])) ==
        "D=8, S=4, R=2, S*R=8, F=300, k=0.5, W=8, numel=56, 1/D=1/8, 1/S=1/4, 1/R=1/2, "
        "1/S*R=1/8, 1/F=1/300, 1/k=1/0.5, 1/W=1/8, 1/numel=1/56");
  CHECK(explain(0.5, named_numbers(scenario, hsdp.plan->parameters[0])) ==
        std::vector<std::string>{"k=0.5", "1/R=1/2"});
}

TEST_CASE("products and quotients of two numbers explain what none of them does") {
  const std::vector<NamedNumber> numbers = {{"D=4", 4, "D"},
                                            {"S=2", 2, "S"},
                                            {"R=5", 5, "R"},
                                            {"S*R=10", 10},
                                            {"1/D=1/4", 0.25, "D", true},
                                            {"1/S=1/2", 0.5, "S", true},
                                            {"1/R=1/5", 1 / 5.0, "R", true}};
  const auto texts = [&](double ratio, double uncertainty = 0) {
    return join(explain(ratio, numbers, uncertainty));
  };
  CHECK(texts(4) == "D=4");
  CHECK(texts(10) == "S*R=10");
  CHECK(texts(20) == "D*R=20");
  CHECK(texts(8) == "D*S=8");
  CHECK(texts(2) == "S=2");  // not D/S too
  CHECK(texts(0.125) == "1/(D*S)=1/8");
  CHECK(texts(0.4) == "S/R=0.4");
  CHECK(texts(1.25) == "R/D=1.25");
  CHECK(texts(3).empty());
  CHECK(texts(20.001).empty());
  CHECK(texts(20.001, 0.002) == "D*R=20");
  const std::vector<NamedNumber> alike(7, NamedNumber{"D=4", 4, "D"});
  CHECK(explain(4, alike).size() == 1);
  std::vector<NamedNumber> many;
  for (const char* const name : {"A=4", "B=4", "C=4", "D=4"})
    many.push_back({name, 4});
  CHECK(join(explain(4, many)) == "A=4, B=4, C=4");  // at most three
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
