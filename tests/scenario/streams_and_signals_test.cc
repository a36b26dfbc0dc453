#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <thread>

#include "support/catch.h"
#include "support/program.h"

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
