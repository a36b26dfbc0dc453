#include <fmt/format.h>

#include "report/table.h"
#include "report/text.h"
#include "report/text_parts.h"

namespace hpsim {
namespace {

constexpr std::size_t kMaxFindings = 10;

/// The text cut at blanks into lines of at most `width` columns; a longer word gets its own line.
std::string wrapped(std::string_view text, std::size_t indent, std::size_t width) {
  std::string lines;
  std::string line;
  const auto end_line = [&] {
    if (!line.empty()) lines += std::string(indent, ' ') + line + '\n';
    line.clear();
  };
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(' '), text.size());
    const std::string_view word = text.substr(0, end);
    if (!line.empty() && indent + columns_of(line) + 1 + columns_of(word) > width) end_line();
    if (!line.empty() && !word.empty()) line += ' ';
    line += word;
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  end_line();
  return lines;
}

std::string explanation_of(const Finding& finding) {
  std::string text = finding.message;
  if (finding.ratio) text += fmt::format("; got / expected = {:.6g}", *finding.ratio);
  if (!finding.explains.empty()) {
    text += fmt::format(", which is {}", fmt::join(finding.explains, " or "));
  }
  return text;
}

}  // namespace

std::string findings_text(const Report& report, const TextStyle& style) {
  if (report.findings.empty()) return {};
  std::string text = "\n";
  const std::size_t count = report.findings.size();
  const bool folds = !style.full && count > kMaxFindings;
  const std::size_t shown = folds ? kMaxFindings : count;
  for (std::size_t i = 0; i < shown; ++i) {
    const Finding& finding = report.findings[i];
    const bool is_error = finding.severity == Severity::Error;
    text += painted(fmt::format("{} {}", is_error ? "✗" : "!", name_of(finding.code)),
                    is_error ? Ink::Red : Ink::Yellow, style.color);
    text += "  " + place_of(finding) + "\n";
    text += wrapped(explanation_of(finding), 4, kTextWidth);
  }
  if (folds) {
    text += painted(fmt::format("… {} more findings; --full or --format json lists them",
                                count - shown),
                    Ink::Dim, style.color) +
            "\n";
  }
  return text;
}

}  // namespace hpsim
