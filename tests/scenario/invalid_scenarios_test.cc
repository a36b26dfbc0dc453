#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>

#include "support/catch.h"
#include "support/program.h"

namespace hpsim {
namespace {

namespace fs = std::filesystem;

std::string content(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::set<std::string> stems(const fs::path& directory) {
  std::set<std::string> names;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory))
    names.insert(entry.path().stem().string());
  return names;
}

TEST_CASE("every invalid scenario is refused with its whole message, and nothing runs") {
  const std::set<std::string> names = stems("scenarios/invalid");
  CHECK(names == stems("golden/invalid"));
  REQUIRE_FALSE(names.empty());
  for (const std::string& name : names) {
    CAPTURE(name);
    const ProgramResult result =
        run_program({HPSIM_PROGRAM, "run", "scenarios/invalid/" + name + ".json"});
    CHECK(result.exit_code == 3);
    CHECK(result.out.empty());
    CHECK(result.err == content("golden/invalid/" + name + ".txt"));
  }
}

TEST_CASE("the message that the README shows is the message") {
  CHECK(content("README.md").find(content("golden/invalid/several.txt")) != std::string::npos);
}

TEST_CASE("all mistakes of all files come before anything runs") {
  const ProgramResult result =
      run_program({HPSIM_PROGRAM, "run", "scenarios/fsdp/a9_one_rank.json",
                   "scenarios/invalid/later_tolerance.json", "scenarios/invalid/beta_one.json"});
  CHECK(result.exit_code == 3);
  CHECK(result.out.empty());
  CHECK(result.err ==
        content("golden/invalid/later_tolerance.txt") + content("golden/invalid/beta_one.txt"));
}

TEST_CASE("a directory named invalid is looked into when it is named itself") {
  const ProgramResult named = run_program({HPSIM_PROGRAM, "run", "scenarios/invalid/"});
  CHECK(named.exit_code == 3);
  CHECK(named.err.find("scenarios/invalid/beta_one.json") != std::string::npos);
}

TEST_CASE("as JSON, an invalid scenario is a report with diagnostics") {
  const ProgramResult result =
      run_program({HPSIM_PROGRAM, "run", "scenarios/invalid/beta_one.json", "--format", "json"});
  CHECK(result.exit_code == 3);
  CHECK(result.err == content("golden/invalid/beta_one.txt"));
  const nlohmann::json report = nlohmann::json::parse(result.out);
  CHECK(report.at("verdict") == "error");
  CHECK(report.at("exit_code") == 3);
  REQUIRE(report.at("diagnostics").size() >= 1);
  CHECK(report.at("diagnostics")[0].at("line") > 0);
}

}  // namespace
}  // namespace hpsim
