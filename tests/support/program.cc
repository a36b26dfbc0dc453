#include "support/program.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <stdexcept>

namespace hpsim {
namespace {

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct Pipe {
  Pipe() {
    if (::pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("pipe failed");
  }
  ~Pipe() {
    close_end(0);
    close_end(1);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  void close_end(std::size_t end) {
    if (ends[end] >= 0) ::close(ends[end]);
    ends[end] = -1;
  }
  int ends[2] = {-1, -1};
};

[[noreturn]] void become(const std::vector<std::string>& command, const ProgramOptions& options,
                         const Pipe& out, const Pipe& err) {
  ::setpgid(0, 0);
  std::signal(SIGPIPE, SIG_DFL);
  if (!options.directory.empty() && ::chdir(options.directory.c_str()) != 0) ::_exit(126);
  int out_fd = out.ends[1];
  if (!options.out_path.empty()) out_fd = ::open(options.out_path.c_str(), O_WRONLY);
  ::dup2(out_fd, STDOUT_FILENO);
  ::dup2(err.ends[1], STDERR_FILENO);
  if (options.closes_out) ::close(STDOUT_FILENO);
  if (options.max_memory_bytes > 0) {
    const auto bytes = static_cast<rlim_t>(options.max_memory_bytes);
    const rlimit limit{bytes, bytes};
    ::setrlimit(RLIMIT_AS, &limit);
  }
  std::vector<char*> arguments;
  for (const std::string& word : command)
    arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  ::execv(arguments[0], arguments.data());
  ::_exit(127);
}

/// Appends what can be read; false at the end of the stream.
bool drain(int fd, std::string& text) {
  char block[4096];
  const ssize_t count = ::read(fd, block, sizeof block);
  if (count > 0) text.append(block, static_cast<std::size_t>(count));
  return count > 0;
}

}  // namespace

ProgramResult run_program(const std::vector<std::string>& command, const ProgramOptions& options) {
  Pipe out;
  Pipe err;
  const pid_t child = ::fork();
  if (child < 0) throw std::runtime_error("fork failed");
  if (child == 0) become(command, options, out, err);
  out.close_end(1);
  err.close_end(1);
  if (options.breaks_pipe) out.close_end(0);

  ProgramResult result;
  bool signal_pending = options.signal != 0;
  const double started_s = now_s();
  double all_there_s = 0;  // when the processes to wait for were first seen
  while (out.ends[0] >= 0 || err.ends[0] >= 0) {
    pollfd fds[2] = {{out.ends[0], POLLIN, 0}, {err.ends[0], POLLIN, 0}};
    ::poll(fds, 2, signal_pending ? 10 : 1000);
    if (signal_pending && all_there_s == 0 &&
        count_processes(command.front()) >= options.signal_processes) {
      all_there_s = now_s();
    }
    if (signal_pending && all_there_s > 0 && now_s() >= all_there_s + options.signal_after_s) {
      ::kill(options.signals_group ? -child : child, options.signal);
      signal_pending = false;
    }
    if (options.timeout_s > 0 && now_s() > started_s + options.timeout_s && !result.timed_out) {
      result.timed_out = true;
      ::kill(-child, SIGKILL);
    }
    if (fds[0].revents != 0 && !drain(out.ends[0], result.out)) out.close_end(0);
    if (fds[1].revents != 0 && !drain(err.ends[0], result.err)) err.close_end(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result;
}

int count_processes(const std::string& program) {
  namespace fs = std::filesystem;
  int count = 0;
  const fs::path wanted = fs::canonical(program);
  for (const fs::directory_entry& entry : fs::directory_iterator("/proc")) {
    const std::string name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    std::error_code failure;
    // A zombie, and a process of another user, has no link to read.
    const fs::path path = fs::read_symlink(entry.path() / "exe", failure);
    if (!failure && path == wanted) ++count;
  }
  return count;
}

}  // namespace hpsim
