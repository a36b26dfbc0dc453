#include "report/annotations.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <string_view>
#include <utility>
#include <vector>

#include "report/ci_parts.h"
#include "report/text_parts.h"

namespace hpsim {
namespace {

/// GitHub's runner takes these back; in properties `:` and `,` would end them.
std::string escaped(std::string_view text, bool is_property) {
  std::string data;
  for (const char c : printable(text)) {
    if (c == '%' || c == '\r' || c == '\n' || (is_property && (c == ':' || c == ','))) {
      data += fmt::format("%{:02X}", static_cast<unsigned char>(c));
    } else {
      data += c;
    }
  }
  return data;
}

struct Annotation {
  Severity severity = Severity::Error;
  std::string_view file;  ///< empty if there is none to blame
  std::int64_t line = 0;  ///< 0 if unknown
  std::int64_t column = 0;
  std::string_view title;
  std::string message;
};

std::string command(const Annotation& annotation) {
  std::string text = annotation.severity == Severity::Error ? "::error " : "::warning ";
  if (!annotation.file.empty()) text += fmt::format("file={},", escaped(annotation.file, true));
  if (annotation.line > 0) {
    text += fmt::format("line={},col={},", annotation.line, annotation.column);
  }
  return text + fmt::format("title={}::{}\n", escaped(annotation.title, true),
                            escaped(annotation.message, false));
}

std::string finding_annotations(const Report& report) {
  std::string text;
  for (const Finding& finding : report.findings) {
    text += command({.severity = finding.severity,
                     .file = report.file,
                     .line = finding.line,
                     .column = finding.column,
                     .title = name_of(finding.code),
                     .message = place_of(finding) + ": " + finding.message});
  }
  for (const LeftOut& left_out : report.left_out) {
    text += command({.severity = left_out.errors > 0 ? Severity::Error : Severity::Warning,
                     .file = report.file,
                     .title = name_of(left_out.check),
                     .message = left_out_text(left_out)});
  }
  return text;
}

std::string diagnostic_annotations(const Report& report) {
  std::string text;
  for (const Diagnostic& diagnostic : report.diagnostics) {
    std::string message;
    if (!diagnostic.pointer.empty()) message += diagnostic.pointer + ": ";
    message += diagnostic.message;
    if (!diagnostic.help.empty()) message += "\nhelp: " + diagnostic.help;
    text += command({.severity = diagnostic.severity,
                     .file = diagnostic.file.empty() ? report.file : diagnostic.file,
                     .line = diagnostic.line,
                     .column = diagnostic.column,
                     .title = error_name(report.exit_code),
                     .message = std::move(message)});
  }
  return text;
}

std::string_view golden_title(GoldenState state) {
  switch (state) {
    case GoldenState::Missing:
      return "golden missing";
    case GoldenState::Unreadable:
      return "golden unreadable";
    default:
      return "golden differs";
  }
}

std::string golden_annotations(const Report& report) {
  constexpr std::size_t kMost = 10;
  if (!report.golden || report.golden->state == GoldenState::Same) return {};
  const GoldenComparison& golden = *report.golden;
  const std::size_t count = golden.differences.size();
  std::vector<std::string> messages;
  if (golden.state != GoldenState::Differs || count == 0) {
    messages.push_back(golden.file + " " + golden_claim(golden));
  }
  for (std::size_t i = 0; i < std::min(count, kMost); ++i)
    messages.push_back(golden.differences[i].message);
  if (count > kMost) {
    messages.push_back(fmt::format("and {} more differences from {}", count - kMost, golden.file));
  }
  std::string text;
  for (std::string& message : messages) {
    text += command({.severity = fails_golden(report) ? Severity::Error : Severity::Warning,
                     .file = report.file,
                     .title = golden_title(golden.state),
                     .message = std::move(message)});
  }
  return text;
}

std::string budget_annotations(const Report& report) {
  std::string text;
  for (const BudgetLine& line : report.budget) {
    if (!line.is_over()) continue;
    text += command({.file = report.file, .title = "over budget", .message = budget_claim(line)});
  }
  return text;
}

}  // namespace

std::string github_annotations(const ReportSet& set) {
  std::string text;
  for (const Report& report : set.reports) {
    text += finding_annotations(report) + diagnostic_annotations(report) +
            golden_annotations(report) + budget_annotations(report);
  }
  for (const std::string& golden : set.obsolete_goldens) {
    text += command(
        {.file = golden, .title = "golden obsolete", .message = "this golden mirrors no scenario"});
  }
  return text;
}

}  // namespace hpsim
