// Everything of a report but its times is the same in every run.

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "support/catch.h"
#include "support/program.h"
#include "support/scratch_directory.h"

namespace hpsim {
namespace {

using Json = nlohmann::ordered_json;

/// Without times, and what the file and the backend are called.
std::string comparable_report(const std::string& file, const std::string& backend) {
  const ProgramResult result =
      run_program({HPSIM_PROGRAM, "run", file, "--backend", backend, "--format", "json"});
  CAPTURE(file, backend, result.err);
  REQUIRE(result.exit_code == 0);
  Json report = Json::parse(result.out);
  for (const char* key : {"timing", "meta", "scenario", "backend"})
    CHECK(report.erase(key) == 1);
  return report.dump();
}

// What lies on the heap lies elsewhere when a name is longer: no sum may depend on that.
TEST_CASE("a report does not depend on where memory lies") {
  const ScratchDirectory directory;
  for (const char* scenario : {"transformer/tied", "rfc2/all_together_sp_hsdp", "ep/recompute_moe",
                               "training/long_hsdp_adamw"}) {
    const std::string file = std::string("scenarios/") + scenario + ".json";
    const std::string expected = comparable_report(file, "local");
    for (const std::size_t length : {1U, 24U, 48U, 96U, 130U, 200U}) {
      CAPTURE(scenario, length);
      const std::filesystem::path folder =
          std::filesystem::path(directory.path()) / std::string(length, 'd');
      std::filesystem::create_directories(folder);
      std::filesystem::copy_file(file, folder / "scenario.json",
                                 std::filesystem::copy_options::overwrite_existing);
      CHECK(comparable_report((folder / "scenario.json").string(), "local") == expected);
    }
    CHECK(comparable_report(file, "gloo") == expected);
  }
}

}  // namespace
}  // namespace hpsim
