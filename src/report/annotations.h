#pragma once

#include <string>

#include "report/report.h"

namespace hpsim {

/// What is wrong, as workflow commands that GitHub shows at the lines of the files, one a line:
///
///   ::error file=a.json,line=8,col=15,title=GRAD_SCALE::gradient-parity: weight, rank 3: got ...
///
/// Findings, diagnostics, golden differences (the first ten of each scenario and how many more),
/// limits that are passed, goldens of no scenario. Empty if there is nothing.
[[nodiscard]] std::string github_annotations(const ReportSet& set);

}  // namespace hpsim
