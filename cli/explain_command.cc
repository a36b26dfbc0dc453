#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/glob.h"
#include "base/suggest.h"
#include "commands.h"
#include "plan/build_plan.h"
#include "report/explain_report.h"
#include "report/json.h"
#include "report/plan_report.h"
#include "scenario_files.h"
#include "terminal.h"

namespace hpsim {
namespace {

[[noreturn]] void refuse(const std::string& file, std::string message, std::string help) {
  throw Error(ErrorKind::Usage,
              {Diagnostic{.file = file, .message = std::move(message), .help = std::move(help)}});
}

/// "the parameters are "a", "b", … and 97 more", or the one that was meant.
std::string help_for_name(const Scenario& scenario, const std::string& name) {
  constexpr std::size_t kMaxListed = 10;
  std::vector<std::string_view> names;
  for (const ParameterSpec& parameter : scenario.parameters)
    names.push_back(parameter.name);
  if (const auto near = suggest(name, names)) return fmt::format("did you mean \"{}\"?", *near);
  std::vector<std::string> quoted;
  for (std::size_t i = 0; i < std::min(names.size(), kMaxListed); ++i)
    quoted.push_back(fmt::format("\"{}\"", names[i]));
  std::string help = fmt::format("the parameters are {}", fmt::join(quoted, ", "));
  if (names.size() > kMaxListed) help += fmt::format(", … and {} more", names.size() - kMaxListed);
  return help;
}

/// Indices of the parameters that are named so, or that the glob matches; all for no pattern.
/// \throws Error (Usage) if there is none
std::vector<int> find_parameters(const Scenario& scenario, const std::string& pattern) {
  std::vector<int> found;
  for (int p = 0; p < static_cast<int>(scenario.parameters.size()); ++p) {
    const std::string& name = scenario.parameters[static_cast<std::size_t>(p)].name;
    if (pattern.empty() || name == pattern || glob_matches(pattern, name)) found.push_back(p);
  }
  if (found.empty()) {
    refuse(scenario.file, fmt::format("--param \"{}\" matches no parameter", pattern),
           help_for_name(scenario, pattern));
  }
  return found;
}

}  // namespace

int explain_command(const ExplainArguments& arguments) {
  const bool is_json = choose("--format", arguments.format, {"text", "json"}) == 1;
  const auto color =
      static_cast<ColorMode>(choose("--color", arguments.color, {"auto", "always", "never"}));
  std::error_code failure;
  if (std::filesystem::is_directory(arguments.path, failure)) {
    refuse(arguments.path, "is a directory", "explain takes one scenario file");
  }
  const ReadScenarios read = read_scenarios(find_scenario_files({arguments.path}));
  for (const RejectedFile& file : read.rejected)
    print_diagnostics(file.diagnostics, color);
  if (!read.rejected.empty()) return exit_code_of(ErrorKind::InvalidScenario);

  const Scenario& scenario = read.scenarios.at(0);
  const std::int64_t num_ranks = scenario.mesh.num_ranks();
  ExplainView view{.parameters = find_parameters(scenario, arguments.param),
                   .in_detail = !arguments.param.empty(),
                   .full = arguments.full};
  if (arguments.rank) {
    if (*arguments.rank < 0 || *arguments.rank >= num_ranks) {
      refuse(scenario.file,
             fmt::format("--rank is {}, but the mesh has {} rank{}", *arguments.rank, num_ranks,
                         num_ranks == 1 ? "" : "s"),
             fmt::format("ranks are 0 to {}", num_ranks - 1));
    }
    view.rank = Rank{*arguments.rank};
  }
  require_listable(scenario, arguments.full, is_json);
  constexpr std::size_t kMostInJson = 10000;  // they take 400 MB
  if (is_json && view.parameters.size() > kMostInJson) {
    refuse(scenario.file,
           fmt::format("--format json tells of at most {} parameters, not {}", kMostInJson,
                       view.parameters.size()),
           "choose some: --param takes a glob");
  }

  const PlanReport report = make_plan_report(build_plan(scenario));
  if (!report.passed) {  // what a wrong plan says would be no explanation
    write_stdout(plan_text(report, {}, wants_color(color, STDOUT_FILENO)));
    return 1;
  }
  if (is_json) {
    write_stdout(json_text(explain_json(report.plan, view)));
  } else {
    write_stdout(explain_text(report.plan, view, wants_color(color, STDOUT_FILENO)));
  }
  return 0;
}

}  // namespace hpsim
