// Faults of a plan, as users plant them: nothing runs, whatever the backend and the number of
// ranks.

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string>

#include "support/catch.h"
#include "support/program.h"
#include "support/scratch_directory.h"

namespace hpsim {
namespace {

using Json = nlohmann::json;

/// Two replicas of `shards` shards of one parameter of seven rows per shard.
std::string hsdp(std::int64_t shards, const std::string& fault) {
  return fmt::format(R"({{"hpsim": 1,
  "mesh": {{"shape": [2, {}], "mesh_dim_names": ["rep", "fsdp"]}},
  "parameters": {{"weight": [{}, 8]}},
  "faults": [{}]}})",
                     shards, 7 * shards, fault);
}

ProgramResult run(const std::string& file, const char* backend) {
  return run_program({HPSIM_PROGRAM, "run", file, "--backend", backend, "--format", "json"});
}

bool has_finding(const Json& report, const std::string& check, const std::string& code) {
  for (const Json& finding : report.at("findings")) {
    if (finding.at("check") == check && finding.at("code") == code) return true;
  }
  return false;
}

TEST_CASE("a plan with a fault is rejected before any rank runs, on every backend") {
  const ScratchDirectory scratch;
  const std::string file = scratch.write("f.json", hsdp(2, R"({"fault": "plan_skip_all_reduce"})"));
  for (const char* backend : {"symbolic", "local", "gloo"}) {
    CAPTURE(backend);
    const ProgramResult result = run(file, backend);
    CHECK(result.exit_code == 1);
    const Json report = Json::parse(result.out);
    CHECK(has_finding(report, "sync-set", "UNREDUCED_PARTIAL"));
  }
}

TEST_CASE("a fault of a plan is found on 131,072 ranks too") {
  const ScratchDirectory scratch;
  const std::string file =
      scratch.write("f.json", hsdp(65536, R"({"fault": "plan_skip_all_reduce"})"));
  const ProgramResult result = run(file, "symbolic");
  CHECK(result.exit_code == 1);
  const Json report = Json::parse(result.out);
  CHECK(report.at("world_size") == 131072);
  CHECK(has_finding(report, "sync-set", "UNREDUCED_PARTIAL"));
}

TEST_CASE("a fault of a plan that has no place there is refused, and says what it needs") {
  const ScratchDirectory scratch;
  const std::string file = scratch.write("f.json", hsdp(2, R"({"fault": "plan_wait_missing"})"));
  for (const char* backend : {"symbolic", "local"}) {
    const ProgramResult result = run_program({HPSIM_PROGRAM, "run", file, "--backend", backend});
    CHECK(result.exit_code == 3);
    CHECK(result.err ==
          file +
              ":4:14: /faults/0: error: fault \"plan_wait_missing\" has no place in this scenario\n"
              "  help: it needs forward_prefetch or backward_prefetch\n");
  }
}

}  // namespace
}  // namespace hpsim
