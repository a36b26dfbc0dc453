#include <fmt/format.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "commands.h"
#include "exec/interrupted.h"
#include "exec/limits.h"
#include "golden_files.h"
#include "report/json.h"
#include "report/text.h"
#include "run_scenario.h"
#include "scenario_files.h"
#include "terminal.h"

namespace hpsim {
namespace {

enum class Format { Text, Json, Markdown };

/// The backend that is asked for; `auto` is local for as many ranks as it takes, else symbolic.
Backend backend_for(const std::string& word, const Scenario& scenario) {
  if (const std::optional<Backend> backend = parse_backend(word)) return *backend;
  return scenario.mesh.num_ranks() <= max_ranks(Backend::Local) ? Backend::Local
                                                                : Backend::Symbolic;
}

void write_output(const GoldenRun& run, Format format, ColorMode color, bool full, double total_s) {
  for (const Report& report : run.set.reports)
    print_diagnostics(report.diagnostics, color);
  switch (format) {
    case Format::Text:
      return write_stdout(golden_run_text(
          run, total_s, {.color = wants_color(color, STDOUT_FILENO), .full = full}));
    case Format::Json:
      return write_stdout(json_text(golden_run_json(run, worst_exit_code(run.set))));
    case Format::Markdown:
      return write_stdout(golden_run_markdown(run));
  }
}

/// Makes the goldens say what the runs did. What cannot be written becomes the error of its report.
void update(const GoldenFiles& goldens, GoldenRun& run) {
  for (Report& report : run.set.reports) {
    if (!report.golden || report.golden->state == GoldenState::Same) continue;
    try {
      goldens.write(report);
    } catch (const Error& error) {
      report = make_error_report(report.file, report.backend, error);
    }
  }
  for (const std::string& golden : run.set.obsolete_goldens)
    goldens.remove(golden);
  run.removed = std::move(run.set.obsolete_goldens);
  run.set.obsolete_goldens.clear();
}

}  // namespace

int golden_command(GoldenAction action, const GoldenArguments& arguments) {
  const double start_s = now_s();
  const auto format =
      static_cast<Format>(choose("--format", arguments.format, {"text", "json", "md"}));
  const auto color =
      static_cast<ColorMode>(choose("--color", arguments.color, {"auto", "always", "never"}));
  (void)choose("--backend", arguments.backend, {"auto", "symbolic", "local", "gloo"});
  require_timeout(arguments.timeout_s);
  const std::vector<std::string> paths =
      arguments.paths.empty() ? std::vector<std::string>{"scenarios"} : arguments.paths;
  const std::vector<std::string> files = find_scenario_files(paths);
  require_value("--golden", arguments.golden);
  const GoldenFiles goldens(paths, files, arguments.golden.value_or(""));
  CiOutputs ci(arguments.ci);
  GoldenRun run{.action = action, .writes = action == GoldenAction::Update && !is_ci()};
  const ReadScenarios read = read_scenarios(files);
  if (!read.rejected.empty()) {
    run.set = rejected_set(read.rejected, arguments.backend);
  } else {
    ProgressLine progress(!arguments.quiet);
    try {
      for (const Scenario& scenario : read.scenarios) {
        const RunSettings settings{.backend = backend_for(arguments.backend, scenario),
                                   .timeout_s = arguments.timeout_s};
        Report report = run_scenario(scenario, settings, progress);
        goldens.compare(report);
        if (report.golden && !run.writes) judge_golden(is_ci(), report);
        ci.judge(report);
        run.set.reports.push_back(std::move(report));
      }
    } catch (const Interrupted&) {
      write_stderr("interrupted\n");
      return kExitInterrupted;
    }
    run.set.obsolete_goldens = goldens.obsolete();
    if (run.writes) update(goldens, run);
  }
  write_output(run, format, color, arguments.full, now_s() - start_s);
  ci.finish(run.set, format == Format::Text);
  return worst_exit_code(run.set);
}

}  // namespace hpsim
