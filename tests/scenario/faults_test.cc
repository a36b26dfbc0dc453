#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <regex>
#include <string>
#include <thread>
#include <vector>

#include "support/catch.h"
#include "support/private_network.h"
#include "support/program.h"
#include "support/scratch_directory.h"
#include "unit/exec/leftovers.h"

namespace hpsim {
namespace {

using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;
using Json = nlohmann::json;

/// FSDP of one parameter over four ranks in two optimizer steps: six collectives.
std::string scenario_with(const std::string& faults) {
  return R"json({"hpsim": 1, "mesh": {"shape": [4], "mesh_dim_names": ["fsdp"]},
      "parameters": {"weight": [7, 8]}, "training": {"steps": 2}, "faults": [)json" +
         faults + "]}";
}

// Parameters are gathered for forward and again for backward, then gradients are scattered.
constexpr const char* kCollectives[] = {"all_gather of unit (root) (forward, step 0)",
                                        "all_gather of unit (root) (backward, step 0)",
                                        "reduce_scatter of unit (root) (backward, step 0)",
                                        "all_gather of unit (root) (forward, step 1)",
                                        "all_gather of unit (root) (backward, step 1)",
                                        "reduce_scatter of unit (root) (backward, step 1)"};

struct Run {
  ProgramResult program;
  std::string message;  ///< of the only diagnostic; empty if there is none
  std::string help;
  double time_s = 0;
};

Run run(const std::string& file, const std::string& timeout) {
  const auto start = std::chrono::steady_clock::now();
  Run run;
  run.program = run_program({HPSIM_PROGRAM, "run", file, "--timeout", timeout, "--format", "json"});
  run.time_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const Json report = Json::parse(run.program.out, nullptr, /*allow_exceptions=*/false);
  if (report.is_object() && report.value("diagnostics", Json::array()).size() == 1) {
    run.message = report["diagnostics"][0].value("message", "");
    run.help = report["diagnostics"][0].value("help", "");
  }
  return run;
}

/// Where runs leave traces, if they leave any: their working directory and folder of temporary
/// files, their network, and the list of processes.
class Traces {
 public:
  Traces() : network_is_private_(enter_private_network()) {
    ::setenv("TMPDIR", std::filesystem::current_path().c_str(), 1);
    before_ = leftovers();
    if (!network_is_private_)
      WARN("the kernel gives no private network: sockets are not looked at");
  }
  ~Traces() { ::unsetenv("TMPDIR"); }
  Traces(const Traces&) = delete;
  Traces& operator=(const Traces&) = delete;

  void check_none() const {
    CHECK(leftovers() == before_);
    CHECK(count_processes(HPSIM_PROGRAM) == 0);
    if (network_is_private_) CHECK(open_sockets() == "");
  }

 private:
  bool network_is_private_;
  PrivateDirectory directory_;
  std::string before_;
};

TEST_CASE("a planted fault ends the run with 6, named in every form, and leaves nothing") {
  struct Row {
    const char* faults;
    const char* timeout;
    const char* rank;  ///< how the message begins
    int seq;           ///< of the collective before which it was
    bool waits;        ///< whether the timeout must pass
  };
  const Row rows[] = {
      {R"({"fault": "kill", "ranks": [2]})", "60", "rank 2 was killed by SIGKILL while ", 0, false},
      {R"({"fault": "kill", "ranks": [0], "step": 1})", "60", "rank 0 was killed by SIGKILL while ",
       3, false},
      {R"({"fault": "kill", "ranks": [3], "seq": 5})", "60", "rank 3 was killed by SIGKILL while ",
       5, false},
      {R"({"fault": "throw", "ranks": [1]})", "60", "rank 1 failed while ", 0, false},
      {R"({"fault": "throw", "ranks": [3], "step": 0, "seq": 2})", "60", "rank 3 failed while ", 2,
       false},
      {R"({"fault": "throw", "ranks": [0], "seq": 5})", "60", "rank 0 failed while ", 5, false},
      {R"({"fault": "stall", "ranks": [3]})", "1", "rank 3 has been ", 0, true},
      {R"({"fault": "stall", "ranks": [0], "seq": 4})", "1", "rank 0 has been ", 4, true},
      {R"({"fault": "stall", "ranks": [2], "seq": 5})", "1", "rank 2 has been ", 5, true},
  };
  const ScratchDirectory scratch;
  const Traces traces;
  for (const Row& row : rows) {
    const Run result = run(scratch.write("faulty.json", scenario_with(row.faults)), row.timeout);
    CAPTURE(row.faults, result.program.err, result.time_s);
    CHECK(result.program.exit_code == 6);
    const Json report = Json::parse(result.program.out);
    CHECK(report.at("verdict") == "error");
    CHECK(report.at("exit_code") == 6);
    CHECK_THAT(result.message,
               StartsWith(std::string(row.rank) + "about to enter " + kCollectives[row.seq]));
    CHECK_THAT(result.program.err, Contains(result.message) && Contains(result.help));
    CHECK_THAT(result.help, Contains("the scenario plants "));
    if (row.waits) {
      CHECK_THAT(result.message, Contains("the timeout is 1.00 s"));
      CHECK_THAT(result.message, Contains("waited for it"));
      CHECK_THAT(result.help, Contains(std::string("were in ") + kCollectives[row.seq]));
      CHECK(result.time_s >= 1);
    }
    // Far from any other end that it could have: 30 s if the timeout had been ignored.
    CHECK(result.time_s < 20);
    traces.check_none();
  }
}

std::string without_times(const std::string& text) {
  return std::regex_replace(text, std::regex("[0-9.]+ s"), "T s");
}

TEST_CASE("the README shows a fault and what it gives") {
  std::ifstream file("README.md");
  const std::string readme{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  const std::string section = readme.substr(readme.find("## Planting a failure of a rank"));
  const std::size_t json = section.find("```json\n") + 8;
  const std::string scenario = section.substr(json, section.find("```", json) - json);
  const std::string command = "$ build/hpsim run stalled.json --timeout 2\n";
  const std::size_t shown = section.find(command) + command.size();

  const ScratchDirectory scratch;
  scratch.write("stalled.json", scenario);
  const ProgramResult result = run_program({HPSIM_PROGRAM, "run", "stalled.json", "--timeout", "2"},
                                           {.directory = scratch.path()});
  CHECK(result.exit_code == 6);
  CHECK(without_times(result.err) ==
        without_times(section.substr(shown, section.find("```", shown) - shown)));
}

TEST_CASE("several ranks with a fault: one is named, and the run ends all the same") {
  const ScratchDirectory scratch;
  const Traces traces;
  for (const char* kind : {"kill", "throw", "stall"}) {
    const std::string fault =
        std::string(R"({"ranks": [0, 1, 3], "seq": 1, "fault": ")") + kind + "\"}";
    const Run result = run(scratch.write("faulty.json", scenario_with(fault)), "1");
    CAPTURE(fault, result.program.err);
    CHECK(result.program.exit_code == 6);
    CHECK_THAT(result.message, Contains(std::string("about to enter ") + kCollectives[1]));
    CHECK_THAT(result.message,
               StartsWith("rank 0") || StartsWith("rank 1") || StartsWith("rank 3"));
    CHECK_THAT(result.help, Contains(std::string("the scenario plants \"") + kind +
                                     "\" of ranks 0, 1, 3 before " + kCollectives[1]));
    CHECK(result.time_s < 20);
  }
  traces.check_none();
}

TEST_CASE("a fault ends its own run; the next begins clean") {
  const ScratchDirectory scratch;
  const Traces traces;
  scratch.write("a.json", scenario_with(R"({"fault": "kill", "ranks": [1]})"));
  scratch.write("b.json", scenario_with(""));
  const ProgramResult result =
      run_program({HPSIM_PROGRAM, "run", scratch.path(), "--keep-going", "--format", "json"});
  CHECK(result.exit_code == 6);
  const Json reports = Json::parse(result.out);
  REQUIRE(reports.size() == 2);
  CHECK(reports[0].at("verdict") == "error");
  CHECK(reports[1].at("verdict") == "pass");
  traces.check_none();
}

TEST_CASE("what cannot be planted is refused before any rank starts") {
  const ScratchDirectory scratch;
  const std::string file =
      scratch.write("faulty.json", scenario_with(R"({"fault": "kill", "ranks": [1], "seq": 6})"));
  for (const char* backend : {"local", "symbolic"}) {
    const ProgramResult result = run_program({HPSIM_PROGRAM, "run", file, "--backend", backend});
    CHECK(result.exit_code == 2);
    CHECK(result.err ==
          file +
              ":2:78: /faults/0: error: fault \"kill\" needs a process per rank, which "
              "backend " +
              backend + " does not have\n  help: use --backend gloo, or leave \"faults\" out\n");
  }
  const ProgramResult gloo = run_program({HPSIM_PROGRAM, "run", file});
  CHECK(gloo.exit_code == 3);
  CHECK(gloo.err ==
        file +
            ":2:117: /faults/0/seq: error: collective 6 is outside 0..5\n  help: the run "
            "has 6 collectives; the report lists them, without the faults, under "
            "\"collectives\"\n");
}

#ifndef HPSIM_SANITIZED  // they need terabytes
TEST_CASE("where memory runs out, in a rank or in the parent, the run says so and leaves nothing") {
  const ScratchDirectory scratch;
  const std::string file = scratch.write("large.json", R"json({"hpsim": 1,
      "mesh": {"shape": [4], "mesh_dim_names": ["fsdp"]}, "parameters": {"weight": [1024, 1024]},
      "training": {"steps": 2}})json");
  const Traces traces;
  int num_passed = 0;
  int num_ranks_failed = 0;
  int num_parents_failed = 0;
  for (const char* limit_kib :
       {"30000", "40000", "50000", "60000", "70000", "80000", "100000", "2000000"}) {
    const ProgramResult result = run_program(
        {"/bin/sh", "-c",
         std::string("ulimit -v ") + limit_kib + "; exec " HPSIM_PROGRAM " run " + file});
    CAPTURE(limit_kib, result.err);
    const bool says_so = result.err.find("out of memory") != std::string::npos ||
                         result.err.find("memory shared by the ranks") != std::string::npos;
    CHECK(says_so == (result.exit_code != 0));
    num_passed += result.exit_code == 0 ? 1 : 0;
    num_ranks_failed += result.exit_code == 6 ? 1 : 0;
    num_parents_failed += result.exit_code == 7 ? 1 : 0;
    if (result.exit_code == 6) CHECK_THAT(result.err, Contains(": error: RANK_DIED: rank "));
    traces.check_none();
  }
  CHECK(num_passed >= 1);
  CHECK(num_ranks_failed >= 1);
  CHECK(num_parents_failed >= 1);
  CHECK(num_passed + num_ranks_failed + num_parents_failed == 8);
}
#endif

/// Runs of four kinds in turn: one that passes, and one of each fault.
class MixedRuns {
 public:
  explicit MixedRuns(const ScratchDirectory& scratch) {
    for (const char* faults : {"", R"({"fault": "kill", "ranks": [2], "seq": 1})",
                               R"({"fault": "throw", "ranks": [0], "seq": 4})",
                               R"({"fault": "stall", "ranks": [1], "seq": 3})"}) {
      files_.push_back(
          scratch.write("kind" + std::to_string(files_.size()) + ".json", scenario_with(faults)));
    }
  }

  /// `stall_timeout`: long enough that ranks of a busy machine are not taken for stalled.
  [[nodiscard]] Run run_number(std::size_t i, const std::string& stall_timeout) const {
    const std::size_t kind = i % files_.size();
    return run(files_[kind], kind == 3 ? stall_timeout : "120");
  }

  static void check(std::size_t i, const Run& run) {
    static constexpr const char* kNamed[] = {"", "rank 2 was killed by SIGKILL", "rank 0 failed",
                                             "rank 1 has been about to enter"};
    const std::size_t kind = i % std::size(kNamed);
    CAPTURE(i, run.program.err);
    CHECK(run.program.exit_code == (kind == 0 ? 0 : 6));
    CHECK_THAT(run.message, StartsWith(kNamed[kind]));
  }

 private:
  std::vector<std::string> files_;
};

void run_in_a_row(std::size_t count) {
  const ScratchDirectory scratch;
  const MixedRuns runs(scratch);
  const Traces traces;
  for (std::size_t i = 0; i < count; ++i)
    MixedRuns::check(i, runs.run_number(i, "1"));
  traces.check_none();
}

void run_at_once(std::size_t count, const std::string& stall_timeout) {
  const ScratchDirectory scratch;
  const MixedRuns runs(scratch);
  const Traces traces;
  std::vector<Run> results(count);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < count; ++i) {
    threads.emplace_back([&, i] { results[i] = runs.run_number(i, stall_timeout); });
  }
  for (std::thread& thread : threads)
    thread.join();
  for (std::size_t i = 0; i < count; ++i)
    MixedRuns::check(i, results[i]);
  traces.check_none();
}

TEST_CASE("runs in a row, passing and failing, leave nothing behind") {
  run_in_a_row(5);
}

TEST_CASE("runs at once, passing and failing, do not disturb each other and leave nothing") {
  run_at_once(4, "5");
}

TEST_CASE("100 runs in a row leave nothing behind", "[.slow]") {
  run_in_a_row(100);
}

TEST_CASE("20 runs at once leave nothing behind", "[.slow]") {
  run_at_once(20, "20");
}

}  // namespace
}  // namespace hpsim
