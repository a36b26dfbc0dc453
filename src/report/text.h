#pragma once

#include <string>
#include <vector>

#include "report/report.h"

namespace hpsim {

struct TextStyle {
  bool color = false;
  bool full = false;  ///< long lists are not folded
};

/// One scenario on one screen: header, a line per parameter, a line per optimizer step, collectives
/// by kind, memory, checks, verdict; findings, if any, below. Lines have at most 100 columns where
/// names allow; a small scenario takes at most 24 lines.
[[nodiscard]] std::string report_text(const Report& report, const TextStyle& style);

/// Heads the lines of several scenarios; `file_columns` is the width of their files.
[[nodiscard]] std::string list_heading(std::size_t file_columns, const TextStyle& style);

/// One scenario among several: verdict, file, ranks, numbers compared, worst err/bound, time.
[[nodiscard]] std::string report_line(const Report& report, std::size_t file_columns,
                                      const TextStyle& style);

/// "19 passed, 1 failed of 20 on gloo · 1.93 s"; `num_not_run` is what a stop left out.
[[nodiscard]] std::string summary_text(const ReportSet& set, std::size_t num_not_run,
                                       double total_s, const TextStyle& style);

/// The findings, a line each, an indented explanation and for errors where the scenario says so;
/// folded after ten. Empty if there is none.
[[nodiscard]] std::string findings_text(const Report& report, const TextStyle& style);

/// The section of the summary below on goldens; empty if all are as they were.
[[nodiscard]] std::string changed_goldens_markdown(const ReportSet& set);

/// A summary for a pull request in GitHub's Markdown: how many failed, a verdict table, the
/// findings with file:line:column, the goldens that differ, are missing or mirror no scenario, the
/// limits that are passed. Long lists are folded after twenty.
[[nodiscard]] std::string reports_markdown(const ReportSet& set);

}  // namespace hpsim
