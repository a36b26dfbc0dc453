#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ci_outputs.h"
#include "report/golden_report.h"
#include "scenario/scenario.h"

namespace hpsim {

/// What follows `hpsim run`, as typed.
struct RunArguments {
  std::vector<std::string> paths;
  std::string backend = "gloo";
  std::string format = "text";
  std::string color = "auto";
  double timeout_s = 30;
  bool keep_going = false;
  bool quiet = false;
  bool full = false;
  std::optional<std::string> golden;  ///< directory to compare with
  CiArguments ci;
};

/// What follows `hpsim golden check`, `update` or `diff`, as typed.
struct GoldenArguments {
  std::vector<std::string> paths;     ///< empty: scenarios
  std::optional<std::string> golden;  ///< directory; none: see GoldenFiles
  std::string backend = "auto";
  std::string format = "text";
  std::string color = "auto";
  double timeout_s = 30;
  bool quiet = false;
  bool full = false;
  CiArguments ci;
};

/// What follows `hpsim plan`, as typed.
struct PlanArguments {
  std::vector<std::string> paths;
  std::optional<std::int64_t> step;
  std::string format = "text";
  std::string color = "auto";
  bool full = false;
};

/// What follows `hpsim explain`, as typed.
struct ExplainArguments {
  std::string path;
  std::string param;  ///< name or glob; empty: all
  std::optional<std::int64_t> rank;
  std::string format = "text";
  std::string color = "auto";
  bool full = false;
};

/// What follows `hpsim faults`, as typed.
struct FaultsArguments {
  std::optional<std::string> name;
  std::string format = "text";
  std::string color = "auto";
};

/// What follows `hpsim mutate`, as typed.
struct MutateArguments {
  std::vector<std::string> paths;
  std::vector<std::string> faults;  ///< names; empty: all
  std::string backend = "local";
  std::string format = "text";
  std::string color = "auto";
  double timeout_s = 30;
  bool quiet = false;
  bool update = false;                ///< write the golden
  std::optional<std::string> golden;  ///< file to compare with
};

/// What follows `hpsim shrink`, as typed.
struct ShrinkArguments {
  std::string path;
  std::string output = "counterexample.json";
  std::string backend = "auto";
  std::string color = "auto";
  double time_s = 60;
  double timeout_s = 5;  ///< of every run
  bool quiet = false;
};

// One function per subcommand. The value is the exit code.
// \throws Error for what the user can mend, Error (Environment) if results cannot be written
[[nodiscard]] int run_command(const RunArguments& arguments);
[[nodiscard]] int golden_command(GoldenAction action, const GoldenArguments& arguments);
[[nodiscard]] int plan_command(const PlanArguments& arguments);
[[nodiscard]] int explain_command(const ExplainArguments& arguments);
[[nodiscard]] int faults_command(const FaultsArguments& arguments);
[[nodiscard]] int mutate_command(const MutateArguments& arguments);
[[nodiscard]] int shrink_command(const ShrinkArguments& arguments);
[[nodiscard]] int list_command(std::vector<std::string> paths);
[[nodiscard]] int schema_command();
[[nodiscard]] int exit_codes_command();

/// The index of the entry of `choices` that `word` names. \throws Error (Usage) that lists them all
[[nodiscard]] std::size_t choose(const std::string& flag, const std::string& word,
                                 const std::vector<std::string_view>& choices);

/// \throws Error (Usage) if --full would list more ranks in JSON than fit
void require_listable(const Scenario& scenario, bool full, bool is_json);

/// What several runs exit with: the first of 70, 7, 6, 3, 2, 1, 4, 5 that is among the codes, or 0.
[[nodiscard]] int worst_exit_code(const std::vector<int>& codes);
/// The same over reports; obsolete goldens count as 4.
[[nodiscard]] int worst_exit_code(const ReportSet& set);

/// \throws Error (Usage) if it is no time to wait for
void require_timeout(double timeout_s);

}  // namespace hpsim
