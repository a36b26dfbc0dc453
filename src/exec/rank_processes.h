#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/ids.h"

namespace hpsim {

/// What became of a process, as its parent sees it.
struct ProcessState {
  enum class Kind { Running, Stopped, Exited, Killed };
  Kind kind = Kind::Running;
  int code = 0;  ///< exit status, or the signal that stopped or killed it

  [[nodiscard]] bool ended() const { return kind == Kind::Exited || kind == Kind::Killed; }
  bool operator==(const ProcessState&) const = default;
};

/// One child process per rank, forked from this one. None outlives the object, nor this process:
/// the kernel kills them should the parent die.
///
/// A child ends when `body` returns, with status 0, or throws, with status 70; it runs no exit
/// handlers. What it writes to stdout or stderr is kept for `output`.
class RankProcesses {
 public:
  /// \pre this process has one thread
  /// \throws Error (Environment) if a process cannot be made; those made before are gone then
  RankProcesses(std::int64_t count, const std::function<void(Rank)>& body);
  ~RankProcesses();
  RankProcesses(const RankProcesses&) = delete;
  RankProcesses& operator=(const RankProcesses&) = delete;

  /// Sleeps until a process ends, but no longer than `at_most`, and brings the states up to date.
  void wait(std::chrono::milliseconds at_most);
  /// Kills and reaps what still runs. Safe to call again.
  void end_all();

  [[nodiscard]] const std::vector<ProcessState>& states() const { return states_; }
  [[nodiscard]] int pid(Rank rank) const { return pids_.at(static_cast<std::size_t>(rank.value)); }
  /// The last lines that the ranks wrote to stdout or stderr; empty if they kept silent.
  [[nodiscard]] std::string output() const;

 private:
  void refresh();

  std::vector<int> pids_;
  std::vector<int> pid_fds_;  ///< -1 where the kernel gives none, or the process was reaped
  std::vector<ProcessState> states_;
  int output_fd_ = -1;
};

}  // namespace hpsim
