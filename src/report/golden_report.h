#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "report/report.h"
#include "report/text.h"

namespace hpsim {

enum class GoldenAction { Check, Update, Diff };

/// "check", "update", "diff"
[[nodiscard]] std::string_view name_of(GoldenAction action);

/// What `hpsim golden` did.
struct GoldenRun {
  GoldenAction action = GoldenAction::Check;
  ReportSet set;
  bool writes = false;               ///< an update outside CI: what differs has been written
  std::vector<std::string> removed;  ///< goldens that were obsolete
};

/// Lets a run that passed exit with 4 if it is not what its golden says, or `requires_golden` and
/// it has none. \pre report.golden
void judge_golden(bool requires_golden, Report& report);

/// The lines below a scenario: what its golden says, and which limits it passed. Of more than ten
/// differences the first ones, unless in full.
///
///   "  ✓ golden golden/a.json: 61 values the same"
///   "  ✗ golden golden/a.json: 1 difference"
///   "      weight: rank 3 holds 0 rows, golden 1"
///   "  ✗ budget: collectives 4, allowed 3"
[[nodiscard]] std::string golden_and_budget_text(const Report& report, const TextStyle& style);

/// What `hpsim golden` says: the scenarios that are not what their goldens say, or do not pass,
/// with their differences; then a line of counts.
[[nodiscard]] std::string golden_run_text(const GoldenRun& run, double total_s,
                                          const TextStyle& style);

/// For a pull request: as reports_markdown, but after an update only what was written and removed.
[[nodiscard]] std::string golden_run_markdown(const GoldenRun& run);

/// {"file", "state", "compared", "differences": [{"section", "param", "step", "message"}],
/// "not_compared"}
[[nodiscard]] nlohmann::ordered_json golden_comparison_json(const GoldenComparison& comparison);

/// [{"name", "limit", "got", "verdict"}]
[[nodiscard]] nlohmann::ordered_json budget_json(const std::vector<BudgetLine>& budget);

/// {"golden": "check", "exit_code", "counts", "scenarios": [{"file", "backend", "verdict",
/// "exit_code", "result", "golden", "budget", "findings", "diagnostics"}], "obsolete", "removed"};
/// times are left out.
[[nodiscard]] nlohmann::ordered_json golden_run_json(const GoldenRun& run, int exit_code);

}  // namespace hpsim
