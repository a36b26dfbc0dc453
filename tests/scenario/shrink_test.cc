// `hpsim shrink` as people use it.

#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <regex>

#include "support/catch.h"
#include "support/program.h"
#include "support/scratch_directory.h"

namespace hpsim {
namespace {

using Json = nlohmann::ordered_json;
using Catch::Matchers::Contains;
namespace fs = std::filesystem;

std::string read(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// A shipped transformer on 2 x 2 x 2 ranks, without what it expects, and with these members.
std::string transformer_with(const std::string& members) {
  const std::string text = read(HPSIM_SOURCE_DIR "/scenarios/transformer/hsdp_tp_2_sp.json");
  Json scenario = Json::parse(text, nullptr, true, true);
  scenario.erase("$schema");
  scenario.erase("expect");
  scenario.update(Json::parse(members));
  return scenario.dump();
}

std::size_t num_files(const ScratchDirectory& directory) {
  return static_cast<std::size_t>(
      std::distance(fs::directory_iterator(directory.path()), fs::directory_iterator()));
}

ProgramResult shrink(const ScratchDirectory& directory, const std::string& file,
                     std::vector<std::string> more = {}) {
  std::vector<std::string> command = {HPSIM_PROGRAM, "shrink", file};
  command.insert(command.end(), more.begin(), more.end());
  return run_program(command, {.directory = directory.path(), .timeout_s = 100});
}

TEST_CASE("a killed rank of a large transformer: two ranks at most, and one small module") {
  const ScratchDirectory scratch;
  scratch.write("large.json",
                transformer_with(R"({"faults": [{"fault": "kill", "ranks": [3], "seq": 5}]})"));
  const ProgramResult result = shrink(scratch, "large.json", {"--timeout", "20"});
  CAPTURE(result.out, result.err);
  CHECK(result.exit_code == 0);
  const Json small = Json::parse(read(scratch.path() + "/counterexample.json"));
  std::int64_t num_ranks = 1;
  for (const Json& size : small.at("mesh").at("shape"))
    num_ranks *= size.get<std::int64_t>();
  CHECK(num_ranks <= 2);
  CHECK(small.at("model").size() == 1);
  CHECK(small.at("faults").size() == 1);
  CHECK_FALSE(small.contains("parallelize"));
  CHECK_FALSE(small.contains("data"));
  CHECK_THAT(result.out, Contains("counterexample.json: ") && Contains("8 ranks -> "));
  CHECK_THAT(result.err,
             Contains("counterexample.json: error: RANK_DIED: rank 0 was killed by SIGKILL"));
  CHECK(num_files(scratch) == 2);
  const ProgramResult again = run_program(
      {HPSIM_PROGRAM, "run", scratch.path() + "/counterexample.json", "--timeout", "20"});
  CHECK(again.exit_code == 6);
}

TEST_CASE("planted faults of a large transformer: two ranks, and one small module") {
  const ScratchDirectory scratch;
  for (const char* fault :
       {"plan_scale_missing", "update_twice", "padding_not_zeroed", "rows_exchanged"}) {
    scratch.write("large.json",
                  transformer_with(R"({"faults": [{"fault": ")" + std::string(fault) + "\"}]}"));
    const ProgramResult result = shrink(scratch, "large.json");
    CAPTURE(fault, result.out, result.err);
    CHECK(result.exit_code == 0);
    CHECK_THAT(result.out, Contains("nothing more can be left out"));
    CHECK_THAT(result.out, Contains("8 ranks -> ") && Contains("0.weight ("));
    const Json small = Json::parse(read(scratch.path() + "/counterexample.json"));
    CHECK(small.at("mesh").at("shape").size() == 1);
    CHECK(small.at("mesh").at("shape").at(0) <= 2);
    CHECK(small.at("model").size() == 1);
    CHECK(run_program(
              {HPSIM_PROGRAM, "run", scratch.path() + "/counterexample.json", "--backend", "local"})
              .exit_code == 1);
  }
}

TEST_CASE("a failed expectation stays as it is; what it does not need goes") {
  const ScratchDirectory scratch;
  scratch.write(
      "wrong.json",
      transformer_with(
          R"({"expect": {"world_size": 8, "verdict": "pass", "counts": {"all_reduce": 100}}})"));
  const ProgramResult result = shrink(scratch, "wrong.json", {"--output", "small.json"});
  CAPTURE(result.out, result.err);
  CHECK(result.exit_code == 0);
  const Json small = Json::parse(read(scratch.path() + "/small.json"));
  CHECK(small.at("expect") == Json::parse(R"({"counts": {"all_reduce": 100}})"));
  CHECK(small.dump().size() < read(scratch.path() + "/wrong.json").size());
  CHECK_THAT(result.out, Contains("expect EXPECT stays") && Contains("✗ EXPECT") &&
                             Contains("small.json:") &&
                             Contains("0.weight (1, 1)\n  whole on ranks"));
  CHECK(num_files(scratch) == 2);
}

TEST_CASE("two runs give the same bytes") {
  const ScratchDirectory scratch;
  scratch.write("wrong.json", transformer_with(R"({"expect": {"counts": {"all_gather": 3}}})"));
  const ProgramResult first = shrink(scratch, "wrong.json", {"--output", "a.json"});
  const ProgramResult second = shrink(scratch, "wrong.json", {"--output", "b.json"});
  CHECK(first.exit_code == 0);
  CHECK(read(scratch.path() + "/a.json") == read(scratch.path() + "/b.json"));
  CHECK(std::regex_replace(first.out, std::regex("a\\.json"), "b.json") == second.out);
}

TEST_CASE("when time is up the best so far is written, and it still fails") {
  const ScratchDirectory scratch;
  const std::string large = transformer_with(R"({"expect": {"world_size": 9}})");
  scratch.write("wrong.json", large);
  const ProgramResult result = shrink(scratch, "wrong.json", {"--time", "0.000001"});
  CAPTURE(result.out, result.err);
  CHECK(result.exit_code == 0);
  CHECK_THAT(result.out, Contains("after 0 reductions and 0 runs") &&
                             Contains("stopped after 1e-06 s: more time may leave less"));
  CHECK(Json::parse(read(scratch.path() + "/counterexample.json")) == Json::parse(large));
}

TEST_CASE("a scenario that passes is refused, and so is one that is none") {
  const ScratchDirectory scratch;
  scratch.write("fine.json", transformer_with("{}"));
  scratch.write("none.json", R"({"hpsim": 1})");
  const ProgramResult fine = shrink(scratch, "fine.json");
  CHECK(fine.exit_code == 2);
  CHECK(fine.err ==
        "fine.json: error: passes on backend local: there is nothing to shrink\n  help: shrink "
        "takes a scenario that fails (exit 1 or 6); --backend chooses where it runs\n");
  CHECK(shrink(scratch, "none.json").exit_code == 3);
  CHECK(shrink(scratch, ".").exit_code == 2);
  CHECK(shrink(scratch, "no_such.json").exit_code == 2);
  CHECK(shrink(scratch, "fine.json", {"--time", "0"}).exit_code == 2);
  CHECK(shrink(scratch, "fine.json", {"--backend", "tcp"}).exit_code == 2);
  CHECK(shrink(scratch, "fine.json", {"--output", "no/such/folder.json"}).exit_code == 7);
  CHECK(num_files(scratch) == 2);
}

TEST_CASE("a fault that the backend cannot plant is told as a run tells it") {
  const ScratchDirectory scratch;
  scratch.write("kill.json", transformer_with(R"({"faults": [{"fault": "kill", "ranks": [3]}]})"));
  const ProgramResult result = shrink(scratch, "kill.json", {"--backend", "local"});
  CHECK(result.exit_code == 2);
  CHECK_THAT(result.err, Contains("needs a process per rank, which backend local does not have"));
}

}  // namespace
}  // namespace hpsim
