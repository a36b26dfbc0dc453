// Faults that people reported, each as a pair: the scenario as it should be passes, and with what
// went wrong it ends with the finding that the symptom deserves. See README.md here.

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "support/catch.h"
#include "support/program.h"
#include "support/scratch_directory.h"

namespace hpsim {
namespace {

using Json = nlohmann::json;

std::vector<std::filesystem::path> pair_files() {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator("tests/regression")) {
    if (entry.path().extension() == ".json") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

struct Outcome {
  int exit_code = -1;
  Json report;
};

Outcome run(const ScratchDirectory& scratch, const Json& scenario, const std::string& backend) {
  const std::string file = scratch.write("scenario.json", scenario.dump(2));
  const ProgramResult result = run_program({HPSIM_PROGRAM, "run", file, "--backend", backend,
                                            "--format", "json", "--quiet", "--timeout", "5"},
                                           {.timeout_s = 60});
  CAPTURE(result.err);
  REQUIRE_FALSE(result.timed_out);
  return {result.exit_code, Json::parse(result.out)};
}

/// Whether `value` has all that `part` has: of objects the keys given, of arrays every element
/// somewhere, all else equal.
bool has_part(const Json& value, const Json& part) {
  if (part.is_object()) {
    return value.is_object() &&
           std::all_of(part.items().begin(), part.items().end(), [&](auto& item) {
             return value.contains(item.key()) && has_part(value.at(item.key()), item.value());
           });
  }
  if (part.is_array() && value.is_array()) {
    return std::all_of(part.begin(), part.end(), [&](const Json& each) {
      return std::any_of(value.begin(), value.end(),
                         [&](const Json& other) { return has_part(other, each); });
    });
  }
  return value == part;
}

/// Findings, and diagnostics that have a code, in the form of findings of plan-agreement; texts of
/// the others too.
Json told_by(const Json& report) {
  Json told = report.at("findings");
  if (report.contains("diagnostics")) {
    for (Json diagnostic : report.at("diagnostics")) {
      diagnostic["check"] = "plan-agreement";
      told.push_back(std::move(diagnostic));
    }
  }
  return told;
}

/// The scenario with what went wrong: a planted fault, or a change of the file (a merge patch).
Json broken(const Json& pair) {
  Json scenario = pair.at("scenario");
  if (pair.contains("fault")) scenario["faults"] = Json::array({pair.at("fault")});
  if (pair.contains("change")) scenario.merge_patch(pair.at("change"));
  return scenario;
}

void check_pair(const Json& pair) {
  const ScratchDirectory scratch;
  for (const auto& backend : pair.value("backends", std::vector<std::string>{"local"})) {
    CAPTURE(backend);
    const Outcome right = run(scratch, pair.at("scenario"), backend);
    CAPTURE(right.report.at("findings").dump(2));
    CHECK(right.exit_code == 0);
    if (pair.contains("right")) CHECK(has_part(right.report, pair.at("right")));
    if (!pair.contains("finding")) continue;
    const Outcome wrong = run(scratch, broken(pair), backend);
    const Json told = told_by(wrong.report);
    CAPTURE(told.dump(2));
    CHECK(wrong.exit_code == pair.value("exit_code", 1));
    CHECK(std::any_of(told.begin(), told.end(),
                      [&](const Json& each) { return has_part(each, pair.at("finding")); }));
  }
}

TEST_CASE("every reported fault passes without, and is found with it") {
  const auto files = pair_files();
  REQUIRE(files.size() > 10);
  for (const auto& file : files) {
    CAPTURE(file.string());
    std::ifstream stream(file);
    const Json pair = Json::parse(stream, nullptr, true, true);
    REQUIRE(pair.contains("report"));
    REQUIRE(pair.contains("symptom"));
    REQUIRE((pair.contains("finding") || pair.contains("right")));
    check_pair(pair);
  }
}

TEST_CASE("a finding that is not there is missed") {
  Json pair = {{"scenario",
                {{"hpsim", 1},
                 {"mesh", {{"shape", {2}}, {"mesh_dim_names", {"fsdp"}}}},
                 {"parameters", {{"w", {4, 4}}}}}}};
  const ScratchDirectory scratch;
  const Outcome outcome = run(scratch, pair.at("scenario"), "local");
  CHECK(outcome.exit_code == 0);
  CHECK(told_by(outcome.report).empty());
  CHECK_FALSE(has_part(Json{{"code", "GRAD_SCALE"}, {"ratio", 2}}, Json{{"ratio", 4}}));
  CHECK(has_part(Json{{"explains", {"W=2", "D=2"}}}, Json{{"explains", {"D=2"}}}));
}

}  // namespace
}  // namespace hpsim
