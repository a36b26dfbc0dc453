#include "base/error.h"

#include <fmt/format.h>

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

}  // namespace

std::string to_string(const Diagnostic& diagnostic) {
  std::string place = diagnostic.file;
  if (!place.empty() && diagnostic.line > 0) {
    place = fmt::format("{}:{}:{}", place, diagnostic.line, diagnostic.column);
  }
  const auto prefix = [](const std::string& part) {
    return part.empty() ? part : fmt::format("{}: ", part);
  };
  return fmt::format(
      "{}{}{}: {}{}", prefix(place), prefix(diagnostic.pointer),
      diagnostic.severity == Severity::Error ? "error" : "warning", diagnostic.message,
      diagnostic.help.empty() ? diagnostic.help : fmt::format("\n  help: {}", diagnostic.help));
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
