#include "exec/rank_processes.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>

#include "base/error.h"

namespace hpsim {

namespace {

constexpr int kInternalErrorStatus = 70;

[[noreturn]] void run_child(Rank rank, const std::function<void(Rank)>& body, pid_t parent,
                            int output_fd) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(kInternalErrorStatus);  // the parent died before the line above
  // Ctrl-C reaches the whole foreground group; the parent decides what it means.
  std::signal(SIGINT, SIG_IGN);
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGTERM, SIG_DFL);
  std::signal(SIGABRT, SIG_DFL);  // the caller's handler, if it has one, speaks of another process
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  const rlimit no_core{0, 0};
  setrlimit(RLIMIT_CORE, &no_core);
  if (output_fd >= 0) {
    dup2(output_fd, STDOUT_FILENO);
    dup2(output_fd, STDERR_FILENO);
  }
  try {
    body(rank);
  } catch (...) {
    _exit(kInternalErrorStatus);
  }
  _exit(0);
}

ProcessState state_from(int status) {
  using Kind = ProcessState::Kind;
  if (WIFSTOPPED(status)) return {Kind::Stopped, WSTOPSIG(status)};
  if (WIFSIGNALED(status)) return {Kind::Killed, WTERMSIG(status)};
  if (WIFEXITED(status)) return {Kind::Exited, WEXITSTATUS(status)};
  return {};
}

}  // namespace

RankProcesses::RankProcesses(std::int64_t count, const std::function<void(Rank)>& body)
    : output_fd_(memfd_create("hpsim-ranks", MFD_CLOEXEC)) {
  const pid_t parent = getpid();
  try {
    for (std::int64_t i = 0; i < count; ++i) {
      const pid_t pid = fork();
      if (pid == 0) run_child(Rank{i}, body, parent, output_fd_);
      if (pid < 0) {
        throw Error(
            ErrorKind::Environment,
            fmt::format("cannot start process {} of {}: {}", i + 1, count, std::strerror(errno)),
            "raise the limit of processes (ulimit -u) or use fewer ranks");
      }
      pids_.push_back(pid);
      pid_fds_.push_back(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
      states_.emplace_back();
    }
  } catch (...) {
    end_all();
    if (output_fd_ >= 0) close(output_fd_);
    throw;
  }
}

RankProcesses::~RankProcesses() {
  end_all();
  if (output_fd_ >= 0) close(output_fd_);
}

void RankProcesses::refresh() {
  for (std::size_t i = 0; i < pids_.size(); ++i) {
    if (states_[i].ended()) continue;
    int status = 0;
    while (waitpid(pids_[i], &status, WNOHANG | WUNTRACED | WCONTINUED) == pids_[i]) {
      states_[i] = state_from(status);
      if (!states_[i].ended()) continue;
      if (pid_fds_[i] >= 0) close(pid_fds_[i]);
      pid_fds_[i] = -1;
      break;
    }
  }
}

void RankProcesses::wait(std::chrono::milliseconds at_most) {
  std::vector<pollfd> watched;
  bool all_watched = true;
  for (std::size_t i = 0; i < pids_.size(); ++i) {
    if (states_[i].ended()) continue;
    if (pid_fds_[i] >= 0) watched.push_back({pid_fds_[i], POLLIN, 0});
    all_watched = all_watched && pid_fds_[i] >= 0;
  }
  constexpr std::chrono::milliseconds kBlindNap{2};
  const auto nap = all_watched ? at_most : std::min(at_most, kBlindNap);
  poll(watched.data(), static_cast<nfds_t>(watched.size()), static_cast<int>(nap.count()));
  refresh();
}

void RankProcesses::end_all() {
  for (std::size_t i = 0; i < pids_.size(); ++i) {
    if (!states_[i].ended()) kill(pids_[i], SIGKILL);
  }
  for (std::size_t i = 0; i < pids_.size(); ++i) {
    if (states_[i].ended()) continue;
    int status = 0;
    while (waitpid(pids_[i], &status, 0) < 0 && errno == EINTR) {
    }
    states_[i] = state_from(status);
    if (pid_fds_[i] >= 0) close(pid_fds_[i]);
    pid_fds_[i] = -1;
  }
}

std::string RankProcesses::output() const {
  constexpr off_t kKept = 2000;
  if (output_fd_ < 0) return {};
  const off_t size = lseek(output_fd_, 0, SEEK_CUR);
  if (size <= 0) return {};
  std::array<char, kKept> text{};
  const ssize_t got = pread(output_fd_, text.data(), text.size(), std::max<off_t>(size - kKept, 0));
  std::string kept(text.data(), static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
  while (!kept.empty() && kept.back() == '\n')
    kept.pop_back();
  return kept;
}

}  // namespace hpsim
