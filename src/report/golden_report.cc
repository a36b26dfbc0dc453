#include "report/golden_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/check.h"
#include "base/units.h"
#include "report/ci_parts.h"
#include "report/json_parts.h"
#include "report/table.h"
#include "report/text_parts.h"

namespace hpsim {
namespace {

constexpr std::size_t kMaxDifferences = 10;

std::string line(std::size_t indent, std::string_view mark, Ink ink, const std::string& text,
                 bool color) {
  return std::string(indent, ' ') + painted(mark, ink, color) + " " + text + "\n";
}

std::string differences_text(const GoldenComparison& golden, std::size_t indent,
                             const TextStyle& style) {
  std::string text;
  const std::size_t count = golden.differences.size();
  const std::size_t shown = style.full ? count : std::min(count, kMaxDifferences);
  for (std::size_t i = 0; i < shown; ++i)
    text += wrapped(golden.differences[i].message, indent, kTextWidth);
  if (shown < count) {
    text += std::string(indent, ' ') +
            painted(fmt::format("… {} more; hpsim golden diff lists them", count - shown), Ink::Dim,
                    style.color) +
            "\n";
  }
  return text;
}

std::string state_text(const GoldenComparison& golden) {
  if (golden.state == GoldenState::Same) return counted(golden.compared, "value") + " the same";
  if (golden.state == GoldenState::Missing) return "there is none; hpsim golden update writes it";
  return golden_cell(golden);
}

/// What an update did about a scenario, or what keeps a check from saying "same".
struct Badge {
  const char* word;
  Ink ink;
};

Badge badge_of(const GoldenRun& run, const Report& report) {
  if (report.outcome != Outcome::Pass) {
    return {run.action == GoldenAction::Update ? "refused" : "failed", Ink::Red};
  }
  HPSIM_CHECK(report.golden, "{} passed and was not compared", report.file);
  switch (report.golden->state) {
    case GoldenState::Same:
      return {"same", Ink::Green};
    case GoldenState::Missing:
      return run.writes ? Badge{"new", Ink::Green}
                        : Badge{"missing", report.exit_code == 0 ? Ink::Yellow : Ink::Red};
    case GoldenState::Differs:
      return run.writes ? Badge{"written", Ink::Green} : Badge{"differs", Ink::Red};
    case GoldenState::Unreadable:
      return run.writes ? Badge{"written", Ink::Green} : Badge{"unreadable", Ink::Red};
  }
  return {"", Ink::Plain};
}

std::string scenario_text(const GoldenRun& run, const Report& report, const TextStyle& style) {
  const Badge badge = badge_of(run, report);
  const bool is_same = std::string_view(badge.word) == "same";
  if (is_same && !fails_budget(report) && run.set.reports.size() > 1) return {};
  std::string text = painted(fmt::format("{:12}", badge.word), badge.ink, style.color);
  if (!report.golden) {
    text += report.file + "\n";
    if (report.outcome == Outcome::Error) return text;
    return text + std::string(12, ' ') + "the run does not pass; hpsim run " + report.file +
           " tells more\n" + findings_text(report, style);
  }
  text += report.golden->file;
  if (!report.golden->not_compared.empty()) {
    text += painted(fmt::format("  {} not compared, {} computes no numbers",
                                fmt::join(report.golden->not_compared, ", "), report.backend),
                    Ink::Dim, style.color);
  }
  text += "\n";
  text += differences_text(*report.golden, 12, style);
  for (const BudgetLine& budget : report.budget) {
    if (!budget.is_over()) continue;
    text += fmt::format("{:12}over budget: {}\n", "", budget_claim(budget));
  }
  return text;
}

std::string_view word_of(const GoldenRun& run, const Report& report) {
  return badge_of(run, report).word;
}

/// Number of scenarios by badge, in a fixed order.
std::vector<std::pair<std::string_view, std::int64_t>> counts_of(const GoldenRun& run) {
  constexpr std::array<std::string_view, 8> kOrder = {"same",       "written", "new",    "differs",
                                                      "unreadable", "missing", "failed", "refused"};
  std::vector<std::pair<std::string_view, std::int64_t>> counts;
  for (const std::string_view word : kOrder) {
    const auto count =
        std::count_if(run.set.reports.begin(), run.set.reports.end(),
                      [&](const Report& report) { return word_of(run, report) == word; });
    if (count > 0) counts.emplace_back(word, count);
  }
  return counts;
}

/// "46 same", "1 written", "1 removed", "2 obsolete"
std::vector<std::string> claims_of(const GoldenRun& run) {
  std::vector<std::string> claims;
  for (const auto& [word, count] : counts_of(run))
    claims.push_back(fmt::format("{} {}", count, word));
  const std::size_t num_obsolete = run.set.obsolete_goldens.size();
  if (!run.removed.empty()) claims.push_back(fmt::format("{} removed", run.removed.size()));
  if (num_obsolete > 0) claims.push_back(fmt::format("{} obsolete", num_obsolete));
  return claims;
}

bool is_all_well(const GoldenRun& run) {
  return std::all_of(run.set.reports.begin(), run.set.reports.end(),
                     [](const Report& report) { return report.exit_code == 0; }) &&
         run.set.obsolete_goldens.empty();
}

/// What to do about it, if there is anything to do.
std::string way_out(const GoldenRun& run) {
  if (run.writes) return {};
  const bool is_stale =
      !run.set.obsolete_goldens.empty() ||
      std::any_of(run.set.reports.begin(), run.set.reports.end(), [](const Report& report) {
        return report.golden && report.golden->state != GoldenState::Same;
      });
  if (!is_stale) return {};
  return run.action == GoldenAction::Update
             ? "  not written, since CI is set: run this where you can commit it\n"
             : "  if this is as you want it: hpsim golden update\n";
}

}  // namespace

std::string_view name_of(GoldenAction action) {
  switch (action) {
    case GoldenAction::Check:
      return "check";
    case GoldenAction::Update:
      return "update";
    case GoldenAction::Diff:
      return "diff";
  }
  HPSIM_CHECK(false, "unknown action {}", static_cast<int>(action));
  return {};
}

void judge_golden(bool requires_golden, Report& report) {
  HPSIM_CHECK(report.golden, "{} was not compared", report.file);
  const GoldenState state = report.golden->state;
  const bool fails = state == GoldenState::Differs || state == GoldenState::Unreadable ||
                     (state == GoldenState::Missing && requires_golden);
  if (fails && report.exit_code == 0) report.exit_code = kExitGolden;
}

std::string golden_and_budget_text(const Report& report, const TextStyle& style) {
  std::string text;
  if (report.golden) {
    const bool is_same = report.golden->state == GoldenState::Same;
    const bool is_new = report.golden->state == GoldenState::Missing && report.exit_code == 0;
    text += line(kIndent, is_same ? "✓" : (is_new ? "!" : "✗"),
                 is_same ? Ink::Green : (is_new ? Ink::Yellow : Ink::Red),
                 fmt::format("golden {}: {}", report.golden->file, state_text(*report.golden)),
                 style.color);
    text += differences_text(*report.golden, kIndent + 4, style);
  }
  for (const BudgetLine& budget : report.budget) {
    text += line(kIndent, budget.is_over() ? "✗" : "✓", budget.is_over() ? Ink::Red : Ink::Green,
                 "budget: " + budget_claim(budget), style.color);
  }
  return text;
}

std::string golden_run_text(const GoldenRun& run, double total_s, const TextStyle& style) {
  std::string text;
  TextStyle details = style;
  details.full = style.full || run.action == GoldenAction::Diff;
  for (const Report& report : run.set.reports)
    text += scenario_text(run, report, details);
  const auto add_files = [&](const char* word, Ink ink, const std::vector<std::string>& files,
                             const char* why) {
    for (const std::string& file : files)
      text += painted(fmt::format("{:12}", word), ink, style.color) + file + why + "\n";
  };
  add_files("removed", Ink::Green, run.removed, "");
  add_files("obsolete", Ink::Red, run.set.obsolete_goldens,
            ": no scenario is where it mirrors one");
  std::int64_t compared = 0;
  for (const Report& report : run.set.reports)
    compared += report.golden ? report.golden->compared : 0;
  text += fmt::format("{}{} of {} · {} compared · {}\n", text.empty() ? "" : "\n",
                      painted(fmt::format("{}", fmt::join(claims_of(run), ", ")),
                              is_all_well(run) ? Ink::Green : Ink::Red, style.color),
                      counted(static_cast<std::int64_t>(run.set.reports.size()), "scenario"),
                      counted(compared, "value"), format_seconds(total_s));
  return text + way_out(run);
}

std::string golden_run_markdown(const GoldenRun& run) {
  if (!run.writes) return reports_markdown(run.set);
  ReportSet changed = run.set;
  changed.obsolete_goldens = run.removed;
  return fmt::format("**{}** of {}\n{}", fmt::join(claims_of(run), ", "),
                     counted(static_cast<std::int64_t>(run.set.reports.size()), "scenario"),
                     changed_goldens_markdown(changed));
}

Json golden_comparison_json(const GoldenComparison& comparison) {
  Json json{{"file", comparison.file},
            {"state", name_of(comparison.state)},
            {"compared", comparison.compared}};
  json["differences"] = list_json(comparison.differences, [](const GoldenDifference& difference) {
    Json item{{"section", difference.section}};
    if (!difference.param.empty()) item["param"] = difference.param;
    if (difference.step) item["step"] = *difference.step;
    item["message"] = difference.message;
    return item;
  });
  json["not_compared"] = comparison.not_compared;
  return json;
}

Json budget_json(const std::vector<BudgetLine>& budget) {
  return list_json(budget, [](const BudgetLine& line) -> Json {
    return {{"name", line.name},
            {"limit", line.limit},
            {"got", line.got},
            {"verdict", line.is_over() ? "fail" : "pass"}};
  });
}

Json golden_run_json(const GoldenRun& run, int exit_code) {
  Json json{{"golden", name_of(run.action)},
            {"hpsim_version", HPSIM_VERSION},
            {"exit_code", exit_code},
            {"counts", Json::object()}};
  for (const auto& [word, count] : counts_of(run))
    json["counts"][std::string(word)] = count;
  json["scenarios"] = list_json(run.set.reports, [&](const Report& report) {
    Json entry{{"file", report.file},
               {"backend", report.backend},
               {"verdict", name_of(report.outcome)},
               {"exit_code", report.exit_code},
               {"result", word_of(run, report)}};
    if (report.golden) entry["golden"] = golden_comparison_json(*report.golden);
    if (!report.budget.empty()) entry["budget"] = budget_json(report.budget);
    entry["findings"] = list_json(report.findings, finding_json);
    entry["diagnostics"] = list_json(report.diagnostics, diagnostic_json);
    return entry;
  });
  json["obsolete"] = run.set.obsolete_goldens;
  json["removed"] = run.removed;
  return json;
}

}  // namespace hpsim
