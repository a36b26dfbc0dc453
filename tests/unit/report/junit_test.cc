#include "report/junit.h"

#include <pugixml.hpp>

#include "report/ci_parts.h"
#include "support/catch.h"
#include "unit/report/sample_report.h"

namespace hpsim {
namespace {

/// What a reader of JUnit sees.
class Junit {
 public:
  explicit Junit(const ReportSet& set) : text_(junit_xml(set)) {
    // CDATA and entities resolved, white space kept; strict about everything else.
    const pugi::xml_parse_result result = document_.load_string(text_.c_str());
    INFO(text_);
    REQUIRE(result);
  }

  [[nodiscard]] const std::string& text() const { return text_; }
  [[nodiscard]] pugi::xml_node root() const { return document_.child("testsuites"); }
  [[nodiscard]] pugi::xml_node suite(const std::string& name) const {
    return root().find_child_by_attribute("testsuite", "name", name.c_str());
  }
  [[nodiscard]] pugi::xml_node test(const std::string& suite_name, const std::string& name) const {
    return suite(suite_name).find_child_by_attribute("testcase", "name", name.c_str());
  }

 private:
  std::string text_;
  pugi::xml_document document_;
};

std::string attribute(const pugi::xml_node& node, const char* name) {
  return node.attribute(name).value();
}

/// "tests/failures/errors/skipped", as the element claims.
std::string claimed(const pugi::xml_node& node) {
  return attribute(node, "tests") + "/" + attribute(node, "failures") + "/" +
         attribute(node, "errors") + "/" + attribute(node, "skipped");
}

/// The same, counted.
std::string counted_cases(const std::vector<pugi::xml_node>& suites) {
  int tests = 0;
  int failures = 0;
  int errors = 0;
  int skipped = 0;
  for (const pugi::xml_node& suite : suites) {
    for (const pugi::xml_node test : suite.children("testcase")) {
      ++tests;
      failures += test.child("failure") ? 1 : 0;
      errors += test.child("error") ? 1 : 0;
      skipped += test.child("skipped") ? 1 : 0;
    }
  }
  return std::to_string(tests) + "/" + std::to_string(failures) + "/" + std::to_string(errors) +
         "/" + std::to_string(skipped);
}

const char* const kFile = "scenarios/fsdp/uneven.json";

TEST_CASE("a scenario is a suite, a check is a case") {
  const Junit junit({{sample_report()}, {}});
  const pugi::xml_node suite = junit.suite(kFile);
  CHECK(claimed(junit.root()) == "7/0/0/0");
  CHECK(claimed(suite) == "7/0/0/0");
  CHECK(attribute(junit.root(), "name") == "hpsim");
  CHECK(attribute(suite, "time") == "0.019300");
  CHECK(counted_cases({suite}) == "7/0/0/0");
  for (const pugi::xml_node test : suite.children("testcase")) {
    CHECK(attribute(test, "classname") == kFile);
    CHECK_FALSE(test.first_child());
  }
  CHECK(attribute(suite.first_child(), "name") == "coverage");
  CHECK(attribute(suite.first_child(), "time") == "0.019300");
  CHECK(attribute(suite.last_child(), "name") == "parameter-parity");
  CHECK(attribute(suite.last_child(), "time") == "0.000000");
  CHECK(junit.text().rfind("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n", 0) == 0);
}

TEST_CASE("errors of a check are the text of its failure, warnings its output") {
  Report report = failed_report();
  report.findings.push_back(report.findings[0]);
  report.findings[2].code = FindingCode::GradValue;
  report.findings[2].line = 0;
  const Junit junit({{report}, {}});
  CHECK(claimed(junit.suite(kFile)) == "7/1/0/0");
  const pugi::xml_node failure = junit.test(kFile, "gradient-parity").child("failure");
  CHECK(attribute(failure, "message") ==
        "got 0.5, expected 0.125; 4 times the expected value: S=4");
  CHECK(attribute(failure, "type") == "GRAD_SCALE");
  const std::string where = "gradient-parity: weight, rank 3 at (3,), step 0, index (6, 0): ";
  const std::string what = "got 0.5, expected 0.125; 4 times the expected value: S=4\n";
  CHECK(std::string(failure.text().get()) ==
        "scenarios/fsdp/uneven.json:6:18: GRAD_SCALE " + where + what +
            "scenarios/fsdp/uneven.json: GRAD_VALUE " + where + what);
  const pugi::xml_node placements = junit.test(kFile, "placements");
  CHECK_FALSE(placements.child("failure"));
  CHECK(std::string(placements.child("system-out").text().get()) ==
        "scenarios/fsdp/uneven.json:6:18: SPEC_DISAGREES placements: weight: "
        "torch has no name for 2 2 2 1\n");
}

TEST_CASE("a check that failed without a finding still fails") {
  Report report = sample_report();
  report.checks[0].passed = false;
  const Junit junit({{report}, {}});
  CHECK(attribute(junit.test(kFile, "coverage").child("failure"), "message") == "coverage failed");
  CHECK(claimed(junit.root()) == "7/1/0/0");
}

TEST_CASE("golden and budget are cases of their own, and count") {
  Report report = sample_report();
  report.exit_code = 4;
  report.golden = golden_of(GoldenState::Differs, 2);
  report.budget = {{"collectives", 3, 4}, {"bytes", 2000, 2000}, {"peak", 1000, 1536}};
  const Junit junit({{report}, {}});
  CHECK(claimed(junit.root()) == "9/2/0/0");
  const pugi::xml_node golden = junit.test(kFile, "golden").child("failure");
  CHECK(attribute(golden, "message") == "golden/fsdp/uneven.json differs in 2 places");
  CHECK(std::string(golden.text().get()) ==
        "golden/fsdp/uneven.json differs in 2 places\nd0\nd1\n");
  const pugi::xml_node budget = junit.test(kFile, "budget").child("failure");
  CHECK(attribute(budget, "message") == "collectives 4, allowed 3");
  CHECK(std::string(budget.text().get()) ==
        "scenarios/fsdp/uneven.json: collectives 4, allowed 3\n"
        "scenarios/fsdp/uneven.json: peak 1,536, allowed 1,000\n");
}

TEST_CASE("goldens that are the same, missing or unreadable") {
  Report report = sample_report();
  report.budget = {{"peak", 1, 1}};
  report.golden = golden_of(GoldenState::Same, 0);
  CHECK(claimed(Junit({{report}, {}}).root()) == "9/0/0/0");
  report.golden = golden_of(GoldenState::Missing, 0);
  const Junit allowed({{report}, {}});
  CHECK(claimed(allowed.root()) == "9/0/0/1");
  CHECK(attribute(allowed.test(kFile, "golden").child("skipped"), "message") ==
        "golden/fsdp/uneven.json is missing");
  report.exit_code = 4;
  CHECK(claimed(Junit({{report}, {}}).root()) == "9/1/0/0");
  report.exit_code = 0;
  report.golden = golden_of(GoldenState::Unreadable, 1);
  const Junit unreadable({{report}, {}});
  CHECK(claimed(unreadable.root()) == "9/1/0/0");
  CHECK(std::string(unreadable.test(kFile, "golden").child("failure").text().get()) ==
        "golden/fsdp/uneven.json cannot be read\nd0\n");
}

TEST_CASE("no verdict is a case run with an error; totals add up over suites") {
  const Junit junit({{error_report(), failed_report(), sample_report()}, {"golden/a.json", "b"}});
  const pugi::xml_node error = junit.test("b.json", "run").child("error");
  CHECK(attribute(error, "message") == "rank 1 died of signal 9");
  CHECK(attribute(error, "type") == "rank failure");
  CHECK(std::string(error.text().get()) ==
        "b.json: error: rank 1 died of signal 9\n  help: ranks 0, 2 waited in all_gather\n");
  CHECK(claimed(junit.suite("b.json")) == "1/0/1/0");
  const pugi::xml_node goldens = junit.root().last_child();
  CHECK(attribute(goldens, "name") == "goldens");
  CHECK(claimed(goldens) == "2/2/0/0");
  CHECK(attribute(junit.test("goldens", "golden/a.json").child("failure"), "message") ==
        "mirrors no scenario");
  std::vector<pugi::xml_node> suites;
  for (const pugi::xml_node suite : junit.root().children("testsuite"))
    suites.push_back(suite);
  REQUIRE(suites.size() == 4);
  CHECK(claimed(junit.root()) == "17/3/1/0");
  CHECK(counted_cases(suites) == "17/3/1/0");
  CHECK(attribute(junit.root(), "time") == "0.038600");
  CHECK(claimed(Junit({}).root()) == "0/0/0/0");
}

TEST_CASE("names may hold anything") {
  Report report = failed_report();
  report.file = "\xFF<&\"'>\n\x01]]>.json";
  const std::string clean = "\xEF\xBF\xBD<&\"'>\n\xEF\xBF\xBD]]>.json";
  report.findings[0].message = std::string("a\0b\x1B<b>", 7);
  const Junit junit({{report}, {"\x02\xC3"}});
  CHECK(junit.text() == printable(junit.text()));
  CHECK(junit.text().find("&#1;") == std::string::npos);
  REQUIRE(junit.suite(clean));
  const pugi::xml_node failure = junit.test(clean, "gradient-parity").child("failure");
  CHECK(attribute(failure, "message") ==
        "a\xEF\xBF\xBD"
        "b\xEF\xBF\xBD<b>");
  CHECK(std::string(failure.text().get()).rfind(printable_line(clean) + ":6:18: GRAD_SCALE", 0) ==
        0);
  CHECK(junit.test("goldens", "\xEF\xBF\xBD\xEF\xBF\xBD"));
}

}  // namespace
}  // namespace hpsim
