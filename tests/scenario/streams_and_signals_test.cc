#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <thread>

#include "support/catch.h"
#include "support/program.h"
#include "support/scratch_directory.h"

namespace hpsim {
namespace {

const std::vector<std::string> kQuick = {HPSIM_PROGRAM, "run", "scenarios/fsdp/a9_one_rank.json",
                                         "--backend", "local"};

/// Four ranks, and far more steps than fit the time until the signal.
std::string long_scenario() {
  const auto path = std::filesystem::temp_directory_path() / "hpsim-test-long.json";
  std::ofstream(path) << R"json({"hpsim": 1,
      "mesh": {"shape": [4], "mesh_dim_names": ["fsdp"]}, "parameters": {"weight": [7, 8]},
      "training": {"steps": 20000}})json";
  return path.string();
}

TEST_CASE("results that cannot be written are an error, not a success") {
  for (const std::vector<std::string>& command :
       {kQuick, std::vector<std::string>{HPSIM_PROGRAM, "schema"},
        std::vector<std::string>{HPSIM_PROGRAM, "list"},
        std::vector<std::string>{HPSIM_PROGRAM, "--help"},
        std::vector<std::string>{HPSIM_PROGRAM, "--version"}}) {
    const ProgramResult full = run_program(command, {.out_path = "/dev/full"});
    CAPTURE(command, full.err);
    CHECK(full.exit_code == 7);
    CHECK(full.err == "error: cannot write to standard output: No space left on device\n");

    const ProgramResult closed = run_program(command, {.closes_out = true});
    CHECK(closed.exit_code == 7);
    CHECK(closed.err == "error: cannot write to standard output: Bad file descriptor\n");

    const ProgramResult broken = run_program(command, {.breaks_pipe = true});
    CHECK(broken.exit_code == 7);
    CHECK(broken.err == "error: cannot write to standard output: Broken pipe\n");
  }
}

TEST_CASE("no format loses results in silence, nor a part of them") {
  const ScratchDirectory scratch;
  const std::string file = scratch.write("out", "");
  for (const std::string format : {"text", "json", "md"}) {
    for (const std::string path : {"scenarios/fsdp/a9_one_rank.json", "scenarios/fsdp"}) {
      CAPTURE(format, path);
      const std::vector<std::string> command = {HPSIM_PROGRAM, "run",      path,  "--backend",
                                                "local",       "--format", format};
      const ProgramResult full = run_program(command, {.out_path = "/dev/full"});
      CHECK(full.exit_code == 7);
      CHECK(full.err == "error: cannot write to standard output: No space left on device\n");
    }
    // A file that may have one block of 512 bytes takes the first part of the report only.
    const ProgramResult cut = run_program(
        {"/bin/sh", "-c",
         "ulimit -f 1; exec " HPSIM_PROGRAM " run scenarios/fsdp --backend local --format " +
             format},
        {.out_path = file});
    CAPTURE(cut.err);
    CHECK(std::filesystem::file_size(file) <= 512);
    CHECK(cut.exit_code == 7);
    CHECK(cut.err == "error: cannot write to standard output: File too large\n");
  }
}

TEST_CASE("a rank's failure is told although its report cannot be written") {
  const ScratchDirectory scratch;
  const std::string file = scratch.write("faulty.json", R"json({"hpsim": 1,
      "mesh": {"shape": [2], "mesh_dim_names": ["fsdp"]}, "parameters": {"weight": [7, 8]},
      "faults": [{"fault": "throw", "ranks": [1]}]})json");
  const ProgramResult result =
      run_program({HPSIM_PROGRAM, "run", file, "--format", "json"}, {.out_path = "/dev/full"});
  CHECK(result.exit_code == 7);
  CHECK_THAT(result.err, Catch::Contains("rank 1 failed") &&
                             Catch::Contains("cannot write to standard output"));
}

TEST_CASE("Ctrl-C ends a run with 130 and leaves no process") {
  CHECK(count_processes("/proc/self/exe") == 1);
  const std::string file = long_scenario();
  for (const int signal : {SIGINT, SIGTERM}) {
    for (const bool signals_group : {false, true}) {
      // While ranks connect, and in the middle of the run.
      for (const double after_s : {0.0, 0.3}) {
        const ProgramResult result =
            run_program({HPSIM_PROGRAM, "run", file}, {.signal = signal,
                                                       .signal_processes = 5,
                                                       .signal_after_s = after_s,
                                                       .signals_group = signals_group});
        CAPTURE(signal, signals_group, after_s, result.out, result.err);
        CHECK(result.exit_code == 130);
        CHECK(result.err == "interrupted\n");
        CHECK(count_processes(HPSIM_PROGRAM) == 0);
      }
    }
  }
  std::filesystem::remove(file);
}

TEST_CASE("when the program is killed, its ranks go with it") {
  const std::string file = long_scenario();
  const ProgramResult result =
      run_program({HPSIM_PROGRAM, "run", file},
                  {.signal = SIGKILL, .signal_processes = 5, .signal_after_s = 0.3});
  CHECK(result.exit_code == 128 + SIGKILL);
  // The kernel ends them when it has ended their parent, which takes a moment.
  for (int i = 0; i < 100 && count_processes(HPSIM_PROGRAM) > 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK(count_processes(HPSIM_PROGRAM) == 0);
  std::filesystem::remove(file);
}

}  // namespace
}  // namespace hpsim
