#pragma once

#include <string>

#include "exec/executor.h"
#include "report/report.h"
#include "scenario/scenario.h"
#include "scenario_files.h"
#include "terminal.h"

namespace hpsim {

/// How a scenario is run.
struct RunSettings {
  Backend backend = Backend::Gloo;
  double timeout_s = 30;
  bool full = false;
};

/// From scenario to report: every way in which a run can end but for Ctrl-C.
/// \throws Interrupted
[[nodiscard]] Report run_scenario(const Scenario& scenario, const RunSettings& settings,
                                  ProgressLine& progress);

/// The reports of files that are no valid scenarios.
[[nodiscard]] ReportSet rejected_set(const std::vector<RejectedFile>& rejected,
                                     const std::string& backend);

}  // namespace hpsim
