#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/units.h"
#include "commands.h"
#include "exec/interrupted.h"
#include "exec/limits.h"
#include "output_file.h"
#include "plan/build_plan.h"
#include "report/explain_report.h"
#include "report/json.h"
#include "report/text_parts.h"
#include "run_scenario.h"
#include "scenario/fault_catalog.h"
#include "scenario/json_text.h"
#include "scenario/parse.h"
#include "scenario_files.h"
#include "shrink/shrink.h"
#include "shrink/symptom.h"
#include "terminal.h"

namespace hpsim {
namespace {

[[noreturn]] void refuse(const std::string& file, std::string message, std::string help) {
  throw Error(ErrorKind::Usage,
              {Diagnostic{.file = file, .message = std::move(message), .help = std::move(help)}});
}

/// `auto`: gloo where a fault needs a process per rank, else local for as many ranks as it takes,
/// else symbolic.
Backend backend_for(const std::string& word, const Scenario& scenario) {
  if (const std::optional<Backend> backend = parse_backend(word)) return *backend;
  for (const FaultSpec& fault : scenario.faults) {
    if (fault_kind(fault.name).stage == FaultStage::Process) return Backend::Gloo;
  }
  return scenario.mesh.num_ranks() <= max_ranks(Backend::Local) ? Backend::Local
                                                                : Backend::Symbolic;
}

/// A scenario that fails, and what of it must stay.
struct Failing {
  Scenario scenario;
  RunSettings settings;
  Symptom symptom;
  bool is_vacuous = false;             ///< of its bounds, one says nothing
  bool passes_without_faults = false;  ///< the faults that it plants are all that is wrong
};

Report quiet_run(const Scenario& scenario, const RunSettings& settings) {
  ProgressLine silent(false);
  return run_scenario(scenario, settings, silent);
}

bool passes_without_faults(Scenario scenario, const RunSettings& settings) {
  if (scenario.faults.empty()) return false;
  scenario.faults.clear();
  return quiet_run(scenario, settings).outcome == Outcome::Pass;
}

/// \throws Error (Usage) if it passes, or cannot be run as the caller asks
Failing failing_of(Scenario scenario, const RunSettings& settings) {
  const Report report = quiet_run(scenario, settings);
  if (report.outcome == Outcome::Pass) {
    refuse(scenario.file,
           fmt::format("passes on backend {}: there is nothing to shrink", report.backend),
           "shrink takes a scenario that fails (exit 1 or 6); --backend chooses where it runs");
  }
  const bool has_run = report.outcome == Outcome::Fail || report.exit_code == kExitInternalError ||
                       report.exit_code == exit_code_of(ErrorKind::RankFailure);
  if (!has_run) {
    throw Error(report.exit_code == exit_code_of(ErrorKind::InvalidScenario)
                    ? ErrorKind::InvalidScenario
                : report.exit_code == exit_code_of(ErrorKind::Usage) ? ErrorKind::Usage
                                                                     : ErrorKind::Environment,
                report.diagnostics);
  }
  const std::optional<Symptom> symptom = main_symptom(report);
  if (!symptom) refuse(scenario.file, "fails without a finding", "hpsim run tells how");
  const bool passes = passes_without_faults(scenario, settings);
  return {.scenario = std::move(scenario),
          .settings = settings,
          .symptom = *symptom,
          .is_vacuous = has_vacuous_bound(report),
          .passes_without_faults = passes};
}

/// Whether the scenario shows the same symptom, and is otherwise as sound as the first: it passes
/// without faults if that did, and no bound says nothing if none did.
bool fails_alike(const Failing& failing, const Scenario& smaller) {
  const Report report = quiet_run(smaller, failing.settings);
  if (!shows(report, failing.symptom)) return false;
  if (failing.passes_without_faults) return passes_without_faults(smaller, failing.settings);
  return failing.is_vacuous || !has_vacuous_bound(report);
}

ShrinkResult smallest(const Failing& failing, const ShrinkArguments& arguments, double start_s) {
  ProgressLine progress(!arguments.quiet);
  progress.start();
  const ShrinkHooks hooks{
      .fails_alike = [&](const Scenario& smaller) { return fails_alike(failing, smaller); },
      .has_time = [&] { return now_s() - start_s < arguments.time_s; },
      .on_run =
          [&](std::int64_t runs, std::int64_t smaller) {
            progress.show(
                fmt::format("{}: {} runs, {} reductions", failing.scenario.file, runs, smaller));
          }};
  const JsonText text(*failing.scenario.source, failing.scenario.file);
  ShrinkResult result = shrink(text.root(), failing.scenario.file, hooks);
  progress.clear();
  return result;
}

/// "8 ranks -> 2"; "2 ranks" where nothing has changed
std::string change_text(std::int64_t before, std::int64_t after, std::string_view noun) {
  if (before == after) return counted(before, noun);
  return fmt::format("{} -> {}", counted(before, noun), format_count(after));
}

std::string summary_of(const Failing& failing, const ShrinkResult& result, const Scenario& smallest,
                       const ShrinkArguments& arguments) {
  const Scenario& first = failing.scenario;
  std::string text = fmt::format(
      "{}: {} stays, after {} and {} of {}\n", arguments.output, to_string(failing.symptom),
      counted(static_cast<std::int64_t>(result.change.size()), "reduction"),
      counted(result.runs, "run"), first.file);
  text += fmt::format(
      "{}, {}, {}\n", change_text(first.mesh.num_ranks(), smallest.mesh.num_ranks(), "rank"),
      change_text(std::ssize(first.parameters), std::ssize(smallest.parameters), "parameter"),
      result.is_minimal
          ? std::string("nothing more can be left out")
          : fmt::format("stopped after {} s: more time may leave less", arguments.time_s));
  return text;
}

/// Where the elements of the parameter live that a finding is about, else of the first.
std::string picture_of(const Report& report, const TextStyle& style) {
  const Plan plan = build_plan(*report.scenario);
  int parameter = 0;
  for (int p = static_cast<int>(plan.parameters.size()) - 1; p >= 0; --p) {
    for (const Finding& finding : report.findings) {
      if (finding.param == plan.parameter(p).name) parameter = p;
    }
  }
  const ParameterFacts facts =
      Explainer(plan).explain(parameter, plan.mesh().coordinate_of(Rank{0}));
  return fmt::format("{} {}\n{}", plan.parameter(parameter).name,
                     to_string(plan.parameter(parameter).shape),
                     picture_section(plan, facts, style));
}

/// The scenario at the path. \throws Error (InvalidScenario) with what is wrong with it
Scenario read_one(const std::string& path) {
  std::error_code failure;
  if (std::filesystem::is_directory(path, failure))
    refuse(path, "is a directory", "shrink takes one scenario file");
  ReadScenarios read = read_scenarios(find_scenario_files({path}));
  if (!read.rejected.empty())
    throw Error(ErrorKind::InvalidScenario, read.rejected.front().diagnostics);
  return std::move(read.scenarios.at(0));
}

int shrink_and_tell(const ShrinkArguments& arguments, ColorMode color) {
  const double start_s = now_s();
  const OutputFile output(arguments.output);
  Scenario first = read_one(arguments.path);
  const RunSettings settings{.backend = backend_for(arguments.backend, first),
                             .timeout_s = arguments.timeout_s};
  const Failing failing = failing_of(std::move(first), settings);
  const ShrinkResult result = smallest(failing, arguments, start_s);
  const std::string text = json_text(nlohmann::ordered_json::parse(result.text));
  output.commit(text);

  const Scenario scenario = parse_scenario(text, arguments.output);
  const Report report = quiet_run(scenario, failing.settings);
  const TextStyle style{.color = wants_color(color, STDOUT_FILENO)};
  write_stdout(fmt::format("{}\n{}\n{}{}", summary_of(failing, result, scenario, arguments), text,
                           picture_of(report, style), findings_text(report, style)));
  print_diagnostics(report.diagnostics, color);
  return 0;
}

}  // namespace

int shrink_command(const ShrinkArguments& arguments) {
  const auto color =
      static_cast<ColorMode>(choose("--color", arguments.color, {"auto", "always", "never"}));
  (void)choose("--backend", arguments.backend, {"auto", "symbolic", "local", "gloo"});
  require_timeout(arguments.timeout_s);
  if (!(arguments.time_s > 0 && arguments.time_s <= 1e6)) {
    throw Error(ErrorKind::Usage,
                fmt::format("--time is {} s, but must be more than 0 and at most 1000000",
                            arguments.time_s));
  }
  try {
    return shrink_and_tell(arguments, color);
  } catch (const Interrupted&) {
    write_stderr("interrupted\n");
    return kExitInterrupted;
  }
}

}  // namespace hpsim
