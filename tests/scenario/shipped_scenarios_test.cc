#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "support/catch.h"
#include "support/program.h"

namespace hpsim {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

const std::vector<std::string> kBackends = {"symbolic", "local", "gloo"};

std::size_t count_shipped() {
  std::size_t count = 0;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator("scenarios")) {
    const bool is_scenario = entry.path().extension() == ".json" &&
                             entry.path().filename() != "scenario.schema.json" &&
                             entry.path().parent_path().filename() != "invalid";
    count += is_scenario ? 1 : 0;
  }
  return count;
}

std::string read(const std::string& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

Json without_times(const std::string& text) {
  Json reports = Json::parse(text);
  if (!reports.is_array()) reports = Json::array({reports});
  for (Json& report : reports) {
    CHECK(report.erase("timing") == 1);
    CHECK(report.erase("meta") == 1);
  }
  return reports;
}

TEST_CASE("every shipped scenario passes on every backend") {
  for (const std::string& backend : kBackends) {
    const ProgramResult result = run_program({HPSIM_PROGRAM, "run", "scenarios", "--backend",
                                              backend, "--format", "json", "--keep-going"});
    CAPTURE(backend, result.err);
    CHECK(result.exit_code == 0);
    CHECK(result.err.empty());
    const Json reports = Json::parse(result.out);
    REQUIRE(reports.is_array());
    CHECK(reports.size() == count_shipped());
    for (const Json& report : reports) {
      CAPTURE(report.at("scenario"));
      CHECK(report.at("verdict") == "pass");
      CHECK(report.at("backend") == backend);
      // `expect` compares the warnings that it names, all of them.
      CHECK(report.at("findings") == report.at("warnings"));
      CHECK((report.at("findings").empty() ||
             read(report.at("scenario").at("file")).find("\"warnings\": [") != std::string::npos));
      CHECK(report.at("losses").empty() == (backend == "symbolic"));
      for (const Json& check : report.at("checks"))
        CHECK(check.at("compared") > 0);
    }
  }
}

TEST_CASE("two runs say the same, byte for byte, but for times") {
  const std::string file = "scenarios/fsdp/linear_chain.json";
  for (const std::string& backend : kBackends) {
    const std::vector<std::string> command = {HPSIM_PROGRAM, "run",      file,  "--backend",
                                              backend,       "--format", "json"};
    const Json first = without_times(run_program(command).out);
    const Json second = without_times(run_program(command).out);
    CHECK(first.dump() == second.dump());
  }
}

TEST_CASE("backends agree on every number in exact mode, and on layout and bytes always") {
  const auto report_on = [](const std::string& file, const std::string& backend) {
    return Json::parse(
        run_program({HPSIM_PROGRAM, "run", file, "--backend", backend, "--format", "json"}).out);
  };
  for (const char* file :
       {"scenarios/fsdp/exact_linear_relu.json", "scenarios/hsdp/b4_uneven_7x8_on_2x4.json"}) {
    const Json local = report_on(file, "local");
    const Json gloo = report_on(file, "gloo");
    const Json symbolic = report_on(file, "symbolic");
    CAPTURE(file);
    CHECK(local.at("digest").get<std::string>().size() == 16);
    CHECK(local.at("digest") == gloo.at("digest"));
    CHECK(local.at("losses") == gloo.at("losses"));
    CHECK_FALSE(symbolic.contains("digest"));
    for (const char* key : {"parameters", "collectives", "ledger", "counters"}) {
      CHECK(local.at(key) == gloo.at(key));
      CHECK(local.at(key) == symbolic.at(key));
    }
  }
}

}  // namespace
}  // namespace hpsim
