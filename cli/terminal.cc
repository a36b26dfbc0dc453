#include "terminal.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>

#include "report/table.h"

namespace hpsim {
namespace {

/// 0, or the errno of the write that failed.
int write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written < 0) {
      if (errno == EINTR) continue;
      return errno;
    }
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  return 0;
}

bool is_set(const char* variable) {
  const char* value = std::getenv(variable);
  return value != nullptr && *value != '\0';
}

bool is_dumb_terminal() {
  const char* term = std::getenv("TERM");
  return term != nullptr && std::strcmp(term, "dumb") == 0;
}

/// The text with its first "error:" and "help:" in colour.
std::string emphasized(std::string text) {
  struct Word {
    std::string_view word;
    Ink ink;
  };
  for (const Word& word :
       {Word{" help: ", Ink::Bold}, Word{"warning: ", Ink::Yellow}, Word{"error: ", Ink::Red}}) {
    const std::size_t at = text.find(word.word);
    if (at == std::string::npos) continue;
    text.replace(at, word.word.size(), painted(word.word, word.ink, true));
  }
  return text;
}

}  // namespace

bool wants_color(ColorMode mode, int fd) {
  switch (mode) {
    case ColorMode::Always:
      return true;
    case ColorMode::Never:
      return false;
    case ColorMode::Auto:
      return !is_set("NO_COLOR") && !is_dumb_terminal() && ::isatty(fd) == 1;
  }
  return false;
}

void write_stdout(std::string_view text) {
  const int failure = write_all(STDOUT_FILENO, text);
  if (failure == 0) return;
  throw Error(ErrorKind::Environment,
              fmt::format("cannot write to standard output: {}", std::strerror(failure)));
}

void write_stderr(std::string_view text) {
  write_all(STDERR_FILENO, text);
}

void print_diagnostics(const std::vector<Diagnostic>& diagnostics, ColorMode mode) {
  const bool color = wants_color(mode, STDERR_FILENO);
  std::string text;
  for (const Diagnostic& diagnostic : diagnostics) {
    text += color ? emphasized(to_string(diagnostic)) : to_string(diagnostic);
    text += '\n';
  }
  write_stderr(text);
}

void prepare_streams() {
  for (int fd = 0; fd <= STDERR_FILENO; ++fd) {
    // The lowest free number is taken, and all below are in use by now. Standard output is opened
    // for reading, so that writing results into a closed stream still fails.
    const int flags = fd == STDERR_FILENO ? O_WRONLY : O_RDONLY;
    if (::fcntl(fd, F_GETFD) == -1 && ::open("/dev/null", flags) != fd) std::abort();
  }
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
}

ProgressLine::ProgressLine(bool enabled)
    : enabled_(enabled && ::isatty(STDERR_FILENO) == 1 && !is_dumb_terminal()) {}

ProgressLine::~ProgressLine() {
  clear();
}

void ProgressLine::start() {
  started_s_ = now_s();
}

void ProgressLine::show(const std::string& text) {
  constexpr double kQuiet = 1.0;
  constexpr double kBetween = 0.1;
  const double now = now_s();
  if (!enabled_ || now - started_s_ < kQuiet || now - shown_s_ < kBetween) return;
  write_stderr("\r\x1b[K" + elided(text, 79));
  visible_ = true;
  shown_s_ = now;
}

void ProgressLine::clear() {
  if (visible_) write_stderr("\r\x1b[K");
  visible_ = false;
}

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace hpsim
