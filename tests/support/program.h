#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace hpsim {

/// What a finished program said.
struct ProgramResult {
  int exit_code = -1;  ///< 128 + signal if one killed it
  std::string out;
  std::string err;
  bool timed_out = false;
};

/// How to start a program.
struct ProgramOptions {
  std::string directory;       ///< working directory; empty: that of the test
  std::string out_path;        ///< file for standard output instead of a pipe, such as /dev/full
  bool closes_out = false;     ///< starts it without standard output
  bool breaks_pipe = false;    ///< standard output is a pipe that nobody reads
  int signal = 0;              ///< sent to it once ...
  int signal_processes = 1;    ///< ... so many processes run the program ...
  double signal_after_s = 0;   ///< ... and this time has passed since then
  bool signals_group = false;  ///< sends it to all processes that the program has started too
  double timeout_s = 0;        ///< it is killed after this time; 0: never
  std::int64_t max_memory_bytes = 0;  ///< of address space; 0: any
};

/// Runs a program to its end, in a process group of its own.
[[nodiscard]] ProgramResult run_program(const std::vector<std::string>& command,
                                        const ProgramOptions& options = {});

/// Processes of the session that run the program at this path, zombies left out.
[[nodiscard]] int count_processes(const std::string& program);

}  // namespace hpsim
