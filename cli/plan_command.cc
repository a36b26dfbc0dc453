#include <fmt/format.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "commands.h"
#include "plan/build_plan.h"
#include "report/json.h"
#include "report/plan_report.h"
#include "scenario_files.h"
#include "terminal.h"

namespace hpsim {
namespace {

/// \throws Error (Usage) if the scenario has no such optimizer step
void require_step(const Scenario& scenario, std::int64_t step) {
  const std::int64_t count = scenario.training.steps;
  if (step >= 0 && step < count) return;
  throw Error(
      ErrorKind::Usage,
      {Diagnostic{
          .file = scenario.file,
          .message = fmt::format(
              "--step is {}, but there {}", step,
              count == 1 ? "is 1 optimizer step" : fmt::format("are {} optimizer steps", count)),
          .help = count == 1 ? "the only one is 0" : fmt::format("they are 0 to {}", count - 1)}});
}

}  // namespace

void require_listable(const Scenario& scenario, bool full, bool is_json) {
  constexpr std::int64_t kMostListed = std::int64_t{1} << 20;
  if (!full || !is_json || scenario.mesh.num_ranks() <= kMostListed) return;
  throw Error(ErrorKind::Usage,
              {Diagnostic{.file = scenario.file,
                          .message = fmt::format("--full lists every rank, at most {}, not {}",
                                                 kMostListed, scenario.mesh.num_ranks()),
                          .help = "leave --full out: ranks are then told by mesh dims"}});
}

int plan_command(const PlanArguments& arguments) {
  const bool is_json = choose("--format", arguments.format, {"text", "json"}) == 1;
  const auto color =
      static_cast<ColorMode>(choose("--color", arguments.color, {"auto", "always", "never"}));
  const std::vector<std::string> files = find_scenario_files(arguments.paths);
  const ReadScenarios read = read_scenarios(files);
  for (const RejectedFile& file : read.rejected)
    print_diagnostics(file.diagnostics, color);
  if (!read.rejected.empty()) return exit_code_of(ErrorKind::InvalidScenario);
  for (const Scenario& scenario : read.scenarios) {
    if (arguments.step) require_step(scenario, *arguments.step);
    require_listable(scenario, arguments.full, is_json);
  }
  const PlanView view{.step = arguments.step, .full = arguments.full};
  nlohmann::ordered_json array = nlohmann::ordered_json::array();
  std::vector<int> codes;
  for (const Scenario& scenario : read.scenarios) {
    const PlanReport report = make_plan_report(build_plan(scenario));
    codes.push_back(report.passed ? 0 : 1);
    if (is_json) {
      array.push_back(plan_json(report, view));
      continue;
    }
    const std::string text = plan_text(report, view, wants_color(color, STDOUT_FILENO));
    write_stdout(codes.size() == 1 ? text : "\n" + text);
  }
  if (is_json) write_stdout(json_text(files.size() == 1 ? array.at(0) : array));
  return worst_exit_code(codes);
}

}  // namespace hpsim
