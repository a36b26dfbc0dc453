#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "output_file.h"
#include "report/report.h"

namespace hpsim {

/// What a build server is told beside the output, as typed.
struct CiArguments {
  std::optional<std::string> junit;   ///< file
  bool annotations = false;           ///< in the form of GitHub's workflow commands
  std::optional<std::string> budget;  ///< see parse_budget
};

/// Whether the environment variable CI says that this is a build server: set, and neither empty nor
/// "0" nor "false".
[[nodiscard]] bool is_ci();

/// An unset variable makes an empty word, which must not switch a check off.
/// \throws Error (Usage) if the value of the flag is there and empty
void require_value(const char* flag, const std::optional<std::string>& value);

/// Budgets, JUnit file and annotations of one command.
class CiOutputs {
 public:
  /// \throws Error (Usage) for a budget that is not understood, (Environment) if the JUnit file
  ///         cannot be written
  explicit CiOutputs(const CiArguments& arguments);

  /// Compares the run with the budget.
  void judge(Report& report) const;

  /// Writes the JUnit file, and annotations: to stdout among text, to stderr beside what other
  /// programs read from stdout. \throws Error (Environment)
  void finish(const ReportSet& set, bool stdout_is_text);

 private:
  bool annotates_ = false;
  std::vector<BudgetLine> limits_;
  std::unique_ptr<OutputFile> junit_;
};

}  // namespace hpsim
