#include "report/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/units.h"
#include "report/ci_parts.h"
#include "report/golden_report.h"
#include "report/routing_report.h"
#include "report/table.h"
#include "report/text_parts.h"
#include "report/text_sections.h"

namespace hpsim {
namespace {

struct Badge {
  const char* word;
  Ink ink;
};

Badge badge_of(Outcome outcome) {
  switch (outcome) {
    case Outcome::Pass:
      return {"PASS", Ink::Green};
    case Outcome::Fail:
      return {"FAIL", Ink::Red};
    case Outcome::Error:
      return {"ERROR", Ink::Red};
  }
  return {"", Ink::Plain};
}

/// Wrapped beside its label.
std::string painted_note(const std::string& note, const TextStyle& style) {
  constexpr std::string_view kLabel = "note: ";
  const std::size_t indent = kIndent + kLabel.size();
  std::string text = wrapped(note, indent, kTextWidth);
  text.replace(0, indent,
               std::string(kIndent, ' ') + painted(std::string(kLabel), Ink::Yellow, style.color));
  return text;
}

std::string notes_section(const Report& report, const TextStyle& style) {
  std::string text;
  for (const std::string& note : report.notes)
    text += painted_note(note, style);
  return text;
}

/// "35.9 ms: start 0.1, connect 18.1, run 16.6, verify 0.4": the parts in the unit of the total.
std::string timing_text(const Timing& timing) {
  const bool seconds = timing.total_s >= 1;
  const double unit = seconds ? 1 : 1e3;
  std::vector<std::string> parts;
  const auto add = [&](const char* name, double part_s) {
    if (part_s > 0)
      parts.push_back(fmt::format("{} {:.{}f}", name, part_s * unit, seconds ? 2 : 1));
  };
  add("start", timing.start_s);
  add("connect", timing.connect_s);
  add("run", timing.run_s);
  add("verify", timing.verify_s);
  return fmt::format("{:.{}f} {}{}{}", timing.total_s * unit, seconds ? 2 : 1, seconds ? "s" : "ms",
                     parts.empty() ? "" : ": ", fmt::join(parts, ", "));
}

std::string worst_text(const Report& report) {
  const std::optional<WorstElement> worst = worst_of(report);
  if (!worst) return {};
  if (ratio_text(report, worst->ratio) == "equal") return ", all equal";
  return fmt::format(", worst err/bound {:.2g}", worst->ratio);
}

/// ", 2 failed: padding, expect"; empty if none did.
std::string failed_text(const Report& report) {
  std::vector<std::string_view> failed;
  for (const CheckResult& check : report.checks) {
    if (!check.passed) failed.push_back(name_of(check.id));
  }
  if (failed.empty()) return {};
  return fmt::format(", {} failed: {}", failed.size(), fmt::join(failed, ", "));
}

std::string verdict_line(const Report& report, const TextStyle& style) {
  const Badge badge = badge_of(report.outcome);
  const std::string failed = failed_text(report);
  return fmt::format("\n{}{}  {}{}, {} compared{}\n      {}\n",
                     painted(badge.word, badge.ink, style.color),
                     painted(reservations(report), Ink::Red, style.color),
                     counted(static_cast<std::int64_t>(report.checks.size()), "check"), failed,
                     counted(total_compared(report), "number"),
                     failed.empty() ? worst_text(report) : std::string(),
                     painted(timing_text(report.timing), Ink::Dim, style.color));
}

}  // namespace

std::string report_text(const Report& report, const TextStyle& style) {
  std::string text;
  if (report.scenario) text += header_text(*report.scenario, report.backend, style);
  if (report.has_run) {
    text += parameters_section(report, style);
    text += steps_section(report, style);
    text += collectives_section(report, style);
    text += routing_section(report, style);
  }
  if (!report.checks.empty()) text += checks_section(report, style);
  text += notes_section(report, style);
  text += golden_and_budget_text(report, style);
  if (report.outcome != Outcome::Error) text += verdict_line(report, style);
  return text + findings_text(report, style);
}

std::string list_heading(std::size_t file_columns, const TextStyle& style) {
  return painted(fmt::format("       {:{}}  {:>6}  {:>10}  {:>9}  {:>8}", "scenario", file_columns,
                             "ranks", "compared", "err/bound", "time"),
                 Ink::Dim, style.color)
      .append("\n");
}

std::string report_line(const Report& report, std::size_t file_columns, const TextStyle& style) {
  const Badge badge = badge_of(report.outcome);
  std::string line = painted(fmt::format("{:5}", badge.word), badge.ink, style.color);
  line.append("  ").append(report.file);
  const std::size_t used = columns_of(report.file);
  if (used < file_columns) line.append(file_columns - used, ' ');
  if (report.outcome == Outcome::Error) return line + fmt::format("  exit {}\n", report.exit_code);
  const std::optional<WorstElement> worst = worst_of(report);
  return line + fmt::format("  {:>6}  {:>10}  {:>9}  {:>8}\n", report.scenario->mesh.num_ranks(),
                            format_count(total_compared(report)),
                            worst ? ratio_text(report, worst->ratio) : std::string(),
                            format_seconds(report.timing.total_s));
}

std::string summary_text(const ReportSet& set, std::size_t num_not_run, double total_s,
                         const TextStyle& style) {
  const std::vector<Report>& reports = set.reports;
  const std::size_t num_obsolete = set.obsolete_goldens.size();
  std::array<std::size_t, 3> counts{};
  for (const Report& report : reports)
    ++counts[static_cast<std::size_t>(report.outcome)];
  const auto count_if = [&](bool (*fails)(const Report&)) {
    return std::count_if(reports.begin(), reports.end(), fails);
  };
  const auto num_golden = count_if(fails_golden);
  const auto num_over = count_if(fails_budget);
  const bool all_passed =
      counts[0] == reports.size() && num_not_run + num_obsolete == 0 && num_golden + num_over == 0;
  std::string claims = fmt::format("{} passed", counts[0]);
  if (counts[1] > 0) claims += fmt::format(", {} failed", counts[1]);
  if (counts[2] > 0) claims += fmt::format(", {} ended in an error", counts[2]);
  if (num_not_run > 0) claims += fmt::format(", {} not run", num_not_run);
  if (num_golden > 0) claims += fmt::format(", {} not as the golden says", num_golden);
  if (num_obsolete > 0) {
    claims += ", " + counted(static_cast<std::int64_t>(num_obsolete), "obsolete golden");
  }
  if (num_over > 0) claims += fmt::format(", {} over budget", num_over);
  return fmt::format(
      "\n{} of {} on {} · {}\n", painted(claims, all_passed ? Ink::Green : Ink::Red, style.color),
      reports.size() + num_not_run,
      reports.empty() ? std::string("nothing") : reports.front().backend, format_seconds(total_s));
}

}  // namespace hpsim
