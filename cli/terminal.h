#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace hpsim {

/// Exit codes that belong to no kind of Error.
inline constexpr int kExitInternalError = 70;
inline constexpr int kExitInterrupted = 130;

enum class ColorMode { Auto, Always, Never };

/// Whether to colour what goes to that stream: always, never, or if it is a terminal, NO_COLOR is
/// not set and TERM is not "dumb".
[[nodiscard]] bool wants_color(ColorMode mode, int fd);

/// Results. \throws Error (Environment) if not all of it could be written: a closed pipe, a full
/// disk
void write_stdout(std::string_view text);

/// Progress and diagnostics; failures are ignored, there is nowhere to report them.
void write_stderr(std::string_view text);

/// One per line, as to_string says.
void print_diagnostics(const std::vector<Diagnostic>& diagnostics, ColorMode mode);

/// Makes the process fit for writing: streams that the caller closed are opened on /dev/null, so
/// that no other file gets their numbers, and writing to a closed pipe, or more than the limit of
/// file sizes allows, is an error, not a signal.
void prepare_streams();

/// A line on stderr that is replaced as a run goes on; only from its second second on, and only on
/// a terminal.
class ProgressLine {
 public:
  explicit ProgressLine(bool enabled);
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  void start();
  void show(const std::string& text);
  void clear();

 private:
  bool enabled_;
  bool visible_ = false;
  double started_s_ = 0;
  double shown_s_ = 0;
};

/// Seconds of a clock that never goes back.
[[nodiscard]] double now_s();

}  // namespace hpsim
