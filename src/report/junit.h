#pragma once

#include <string>

#include "report/report.h"

namespace hpsim {

/// The reports in the XML that Jenkins, GitLab and others read as results of JUnit: a test suite
/// per scenario, a test case per check.
///
///   check that failed           <failure> with the text of all its errors, file:line first
///   warnings of a check         <system-out>
///   golden, budget              a case of that name; a missing golden that may be: <skipped>
///   no verdict                  a case "run" with an <error>
///   goldens of no scenario      a last suite "goldens", a failed case for each
///
/// The seconds of a scenario stand at its suite and, for tools that add up cases, at its first
/// case. Bytes that XML 1.0 cannot hold are written as U+FFFD.
[[nodiscard]] std::string junit_xml(const ReportSet& set);

}  // namespace hpsim
