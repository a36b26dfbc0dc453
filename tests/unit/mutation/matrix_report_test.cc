#include "mutation/matrix_report.h"

#include <nlohmann/json.hpp>

#include "support/catch.h"
#include "unit/mutation/sample_matrix.h"

namespace hpsim {
namespace {

using Json = nlohmann::ordered_json;
using ::Catch::Matchers::Contains;

TEST_CASE("the text has a line per fault, every trial that went wrong, and the score") {
  const std::string text = matrix_text(sample_matrix(), false);
  // 3 of the 5 planted faults: 60 %.
  CHECK_THAT(text, Contains("3 of 5 planted faults found by their own check (60.0 %), 2 faults in "
                            "3 scenarios\n"));
  CHECK_THAT(text, Contains("\nsurvived\n"));
  CHECK_THAT(text, Contains("c.json") && Contains("nothing found"));
  CHECK_THAT(text, Contains("\nfound by other checks only\n"));
  CHECK_THAT(text, Contains("gradient-parity GRAD_VALUE"));
  CHECK_THAT(text, !Contains("reports without a fault"));
  KillMatrix noisy = perfect_matrix();
  noisy.scenarios[0].noise = {kValue};
  const std::string noise = matrix_text(noisy, false);
  CHECK_THAT(noise, Contains("\nreports without a fault\n  a.json: gradient-parity GRAD_VALUE\n"));
  CHECK_THAT(noise, !Contains("\nsurvived\n"));
}

TEST_CASE("the JSON has the counts, and which faults have a place where") {
  const Json json = matrix_json(sample_matrix());
  CHECK(json["faults"] == Json::parse(R"({
      "kill": {"places": 2, "own": 2, "other": 0, "survived": 0},
      "stall": {"places": 3, "own": 1, "other": 1, "survived": 1}})"));
  CHECK(json["scenarios"] ==
        Json::parse(R"({"a.json": "kill stall", "b.json": "kill stall", "c.json": "stall"})"));
  CHECK(json["other"] == Json::parse(R"([{"fault": "stall", "scenario": "b.json",
                                          "found": ["gradient-parity GRAD_VALUE"]}])"));
  CHECK(json["survived"] ==
        Json::parse(R"([{"fault": "stall", "scenario": "c.json", "found": []}])"));
  CHECK(json["without_fault"] == Json::array());
  CHECK(json["score"] == 0.6);
}

TEST_CASE("differences from a golden are told in words, in both directions") {
  const Json golden = matrix_json(perfect_matrix());
  CHECK(matrix_differences(golden, golden).empty());
  CHECK(
      matrix_differences(golden, matrix_json(sample_matrix())) ==
      std::vector<std::string>{"stall: own 3 → 1", "stall: other 0 → 1", "stall: survived 0 → 1"});
  KillMatrix fewer = perfect_matrix();
  fewer.scenarios[2].trials[1] = {};
  CHECK(matrix_differences(golden, matrix_json(fewer)) ==
        std::vector<std::string>{"stall: places 3 → 2", "stall: own 3 → 2",
                                 "c.json: stall has no place any more"});
  CHECK(matrix_differences(matrix_json(fewer), golden) ==
        std::vector<std::string>{"stall: places 2 → 3", "stall: own 2 → 3",
                                 "c.json: stall has a place now"});
}

TEST_CASE("faults and scenarios that one of two matrices lacks are told") {
  KillMatrix less = perfect_matrix();
  less.faults.pop_back();
  less.scenarios.pop_back();
  for (ScenarioTrials& scenario : less.scenarios)
    scenario.trials.pop_back();
  const Json some = matrix_json(less);
  const Json all = matrix_json(perfect_matrix());
  const std::vector<std::string> gone = matrix_differences(all, some);
  CHECK(gone.at(0) == "stall: there is no such fault any more");
  CHECK(gone.back() == "c.json: not among the scenarios any more");
  const std::vector<std::string> found = matrix_differences(some, all);
  CHECK(found.at(0) == "stall: the golden does not know this fault");
  CHECK(found.back() == "c.json: the golden does not know this scenario");
}

}  // namespace
}  // namespace hpsim
