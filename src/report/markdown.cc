#include <fmt/format.h>

#include "base/units.h"
#include "report/text.h"
#include "report/text_parts.h"

namespace hpsim {
namespace {

/// Text for a table cell: `|` and line breaks would end it.
std::string cell(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '|') escaped += '\\';
    escaped += c == '\n' ? ' ' : c;
  }
  return escaped;
}

std::string scenario_row(const Report& report) {
  const std::optional<WorstElement> worst = worst_of(report);
  return fmt::format("| {} | {} | {} | {} | {} | {} | {} | {} |\n", name_of(report.outcome),
                     cell(report.name.empty() ? report.file : report.name), report.backend,
                     report.scenario ? fmt::format("{}", report.scenario->mesh.num_ranks()) : "",
                     report.checks.size(), format_count(total_compared(report)),
                     worst ? fmt::format("{:.2g}", worst->ratio) : "",
                     format_seconds(report.timing.total_s));
}

std::string details(const Report& report) {
  if (report.findings.empty() && report.diagnostics.empty() && report.notes.empty()) return {};
  std::string text = fmt::format("\n### {}\n\n", report.name.empty() ? report.file : report.name);
  for (const Finding& finding : report.findings) {
    text += fmt::format("- **{}** ({}) {}: {}\n", name_of(finding.code),
                        finding.severity == Severity::Error ? "error" : "warning",
                        place_of(finding), finding.message);
  }
  if (!report.diagnostics.empty()) {
    text += "```\n";
    for (const Diagnostic& diagnostic : report.diagnostics)
      text += to_string(diagnostic) + "\n";
    text += "```\n";
  }
  for (const std::string& note : report.notes)
    text += "- note: " + note + "\n";
  return text;
}

}  // namespace

std::string reports_markdown(const std::vector<Report>& reports) {
  std::string text =
      "| verdict | scenario | backend | ranks | checks | compared | worst err/bound | time |\n"
      "|---|---|---|--:|--:|--:|--:|--:|\n";
  for (const Report& report : reports)
    text += scenario_row(report);
  for (const Report& report : reports)
    text += details(report);
  return text;
}

}  // namespace hpsim
