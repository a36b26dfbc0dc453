#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/units.h"
#include "report/ci_parts.h"
#include "report/markdown_parts.h"
#include "report/text.h"
#include "report/text_parts.h"

namespace hpsim {
namespace {

/// Findings of a scenario, diagnostics of a file, differences of a golden that are shown.
constexpr std::size_t kMostShown = 20;

const std::string& title_of(const Report& report) {
  return report.name.empty() ? report.file : report.name;
}

/// "**2 failed**, 46 passed of 48"
std::string counts_line(const ReportSet& set) {
  std::size_t num_passed = 0;
  std::size_t num_errors = 0;
  for (const Report& report : set.reports) {
    if (report.exit_code == 0) ++num_passed;
    if (report.outcome == Outcome::Error) ++num_errors;
  }
  const std::size_t num_failed = set.reports.size() - num_passed - num_errors;
  const std::size_t num_obsolete = set.obsolete_goldens.size();
  std::vector<std::string> bad;
  if (num_failed > 0) bad.push_back(fmt::format("{} failed", num_failed));
  if (num_errors > 0) bad.push_back(fmt::format("{} ended in an error", num_errors));
  if (num_obsolete > 0) {
    bad.push_back(counted(static_cast<std::int64_t>(num_obsolete), "obsolete golden"));
  }
  if (bad.empty()) return fmt::format("**{} passed** of {}\n", num_passed, set.reports.size());
  return fmt::format("**{}**, {} passed of {}\n", fmt::join(bad, ", "), num_passed,
                     set.reports.size());
}

/// "pass"; in bold what makes the command fail: "**pass, golden differs**"
std::string verdict_cell(const Report& report) {
  const std::string words = std::string(name_of(report.outcome)) + reservations(report);
  return words == "pass" ? words : fmt::format("**{}**", words);
}

std::string budget_cell(const Report& report) {
  if (report.budget.empty()) return {};
  return fails_budget(report) ? "over" : "within";
}

/// Columns that no report has anything to say in are left out.
class VerdictTable {
 public:
  explicit VerdictTable(const std::vector<Report>& reports)
      : reports_(reports),
        has_golden_(std::any_of(reports.begin(), reports.end(),
                                [](const Report& report) { return report.golden.has_value(); })),
        has_budget_(std::any_of(reports.begin(), reports.end(),
                                [](const Report& report) { return !report.budget.empty(); })) {}

  [[nodiscard]] std::string text() const {
    std::string text = row({"verdict", "scenario", "backend", "ranks", "checks", "compared",
                            "worst err/bound", "golden", "budget", "time"});
    text += row({"---", "---", "---", "--:", "--:", "--:", "--:", "---", "---", "--:"});
    for (const Report& report : reports_)
      text += row(cells_of(report));
    return text;
  }

 private:
  using Cells = std::array<std::string, 10>;
  static constexpr std::size_t kGolden = 7;
  static constexpr std::size_t kBudget = 8;

  [[nodiscard]] std::string row(const Cells& cells) const {
    std::string text = "|";
    for (std::size_t i = 0; i < cells.size(); ++i) {
      if ((i == kGolden && !has_golden_) || (i == kBudget && !has_budget_)) continue;
      text += fmt::format(" {} |", cells[i]);
    }
    return text + "\n";
  }

  static Cells cells_of(const Report& report) {
    const std::optional<WorstElement> worst = worst_of(report);
    return {verdict_cell(report),
            markdown_text(title_of(report)),
            report.backend,
            report.scenario ? fmt::format("{}", report.scenario->mesh.num_ranks()) : "",
            fmt::format("{}", report.checks.size()),
            format_count(total_compared(report)),
            worst ? fmt::format("{:.2g}", worst->ratio) : "",
            report.golden ? golden_cell(*report.golden) : "",
            budget_cell(report),
            format_seconds(report.timing.total_s)};
  }

  const std::vector<Report>& reports_;
  bool has_golden_;
  bool has_budget_;
};

std::string finding_item(const Report& report, const Finding& finding) {
  return fmt::format("- **{}**{} {} {}\\\n  {}\n", name_of(finding.code),
                     finding.severity == Severity::Warning ? " (warning)" : "",
                     code_span(source_of(report, finding)), markdown_text(place_of(finding)),
                     markdown_text(finding.message));
}

/// "\nand 3 more findings\n"; empty if all are shown.
std::string left_out(std::size_t count, std::string_view noun) {
  if (count <= kMostShown) return {};
  return fmt::format(
      "\nand {} not shown here\n",
      counted(static_cast<std::int64_t>(count - kMostShown), fmt::format("more {}", noun)));
}

std::string details(const Report& report) {
  std::string text = fmt::format("\n### {}\n\n", markdown_text(title_of(report)));
  std::vector<Finding> findings = report.findings;
  std::stable_partition(findings.begin(), findings.end(),
                        [](const Finding& finding) { return finding.severity == Severity::Error; });
  for (std::size_t i = 0; i < std::min(findings.size(), kMostShown); ++i)
    text += finding_item(report, findings[i]);
  text += left_out(report.findings.size(), "finding");
  for (const LeftOut& rest : report.left_out)
    text += "\n" + markdown_text(left_out_text(rest)) + "\n";
  if (!report.diagnostics.empty()) {
    std::string lines;
    for (std::size_t i = 0; i < std::min(report.diagnostics.size(), kMostShown); ++i)
      lines += to_string(report.diagnostics[i]) + "\n";
    text += code_block(lines) + left_out(report.diagnostics.size(), "message");
  }
  for (const std::string& note : report.notes)
    text += "- note: " + markdown_text(note) + "\n";
  return text;
}

/// Those that failed first; of those that passed only what has warnings.
std::string all_details(const std::vector<Report>& reports) {
  std::string failed;
  std::string warned;
  for (const Report& report : reports) {
    if (report.outcome != Outcome::Pass) {
      failed += details(report);
    } else if (!report.findings.empty()) {
      warned += details(report);
    }
  }
  return failed + warned;
}

std::string golden_entry(const Report& report) {
  const GoldenComparison& golden = *report.golden;
  std::string text = fmt::format("\n{}: {} {}", code_span(report.file), code_span(golden.file),
                                 golden_claim(golden));
  if (golden.differences.empty()) return text + "\n";
  std::string lines;
  for (std::size_t i = 0; i < std::min(golden.differences.size(), kMostShown); ++i)
    lines += printable_line(golden.differences[i].message) + "\n";
  return text + ":\n\n" + code_block(lines) + left_out(golden.differences.size(), "difference");
}

std::string budgets_section(const std::vector<Report>& reports) {
  std::string text;
  for (const Report& report : reports) {
    if (!fails_budget(report)) continue;
    std::vector<std::string> claims;
    for (const BudgetLine& line : report.budget) {
      if (line.is_over()) claims.push_back(budget_claim(line));
    }
    text += fmt::format("- {} {}\n", code_span(report.file), fmt::join(claims, "; "));
  }
  return text.empty() ? text : "\n### Over budget\n\n" + text;
}

}  // namespace

std::string changed_goldens_markdown(const ReportSet& set) {
  std::string text;
  for (const Report& report : set.reports) {
    if (report.golden && report.golden->state != GoldenState::Same) text += golden_entry(report);
  }
  for (const std::string& golden : set.obsolete_goldens)
    text += fmt::format("\n{} mirrors no scenario\n", code_span(golden));
  return text.empty() ? text : "\n### Changed goldens\n" + text;
}

std::string reports_markdown(const ReportSet& set) {
  return counts_line(set) + "\n" + VerdictTable(set.reports).text() + all_details(set.reports) +
         changed_goldens_markdown(set) + budgets_section(set.reports);
}

}  // namespace hpsim
