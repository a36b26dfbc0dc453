#include "base/error.h"

#include <fmt/format.h>

#include <string_view>
#include <utility>

#include "base/check.h"

namespace hpsim {
namespace {

std::string join_lines(const std::vector<Diagnostic>& diagnostics) {
  std::string text;
  for (const Diagnostic& diagnostic : diagnostics) {
    if (!text.empty()) text += '\n';
    text += to_string(diagnostic);
  }
  return text;
}

/// Control characters as JSON writes them: what a file says must not move a terminal's cursor. Ends
/// of lines are kept where they are the program's own.
std::string without_controls(std::string_view text, bool keeps_lines) {
  std::string escaped;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const auto next = static_cast<unsigned char>(i + 1 < text.size() ? text[i + 1] : 0);
    if ((byte < 0x20 && !(keeps_lines && byte == '\n')) || byte == 0x7F) {
      escaped += fmt::format("\\u{:04x}", byte);
    } else if (byte == 0xC2 && next >= 0x80 && next < 0xA0) {
      escaped += fmt::format("\\u{:04x}", next);
      ++i;
    } else {
      escaped += text[i];
    }
  }
  return escaped;
}

}  // namespace

std::string to_string(const Diagnostic& diagnostic) {
  std::string place = diagnostic.file;
  if (!place.empty() && diagnostic.line > 0) {
    place = fmt::format("{}:{}:{}", place, diagnostic.line, diagnostic.column);
  }
  const auto prefix = [](const std::string& part) {
    return part.empty() ? part : fmt::format("{}: ", without_controls(part, false));
  };
  return fmt::format("{}{}{}: {}{}{}", prefix(place), prefix(diagnostic.pointer),
                     diagnostic.severity == Severity::Error ? "error" : "warning",
                     prefix(diagnostic.code), without_controls(diagnostic.message, true),
                     diagnostic.help.empty()
                         ? diagnostic.help
                         : fmt::format("\n  help: {}", without_controls(diagnostic.help, true)));
}

Error::Error(ErrorKind kind, std::vector<Diagnostic> diagnostics)
    : std::runtime_error(join_lines(diagnostics)),
      kind_(kind),
      diagnostics_(std::move(diagnostics)) {}

Error::Error(ErrorKind kind, std::string message, std::string help)
    : Error(kind,
            std::vector<Diagnostic>{{.message = std::move(message), .help = std::move(help)}}) {}

int exit_code_of(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::Usage:
      return 2;
    case ErrorKind::InvalidScenario:
      return 3;
    case ErrorKind::RankFailure:
      return 6;
    case ErrorKind::Environment:
      return 7;
  }
  HPSIM_CHECK(false, "unknown error kind {}", static_cast<int>(kind));
  return 70;
}

}  // namespace hpsim
