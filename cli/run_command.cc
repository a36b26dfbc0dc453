#include <fmt/format.h>
#include <unistd.h>

#include <new>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/check.h"
#include "base/units.h"
#include "baseline/eigen_baseline.h"
#include "commands.h"
#include "exec/executor.h"
#include "exec/interrupted.h"
#include "exec/limits.h"
#include "plan/build_plan.h"
#include "plan/verify_plan.h"
#include "report/json.h"
#include "report/report.h"
#include "report/table.h"
#include "report/text.h"
#include "scenario_files.h"
#include "terminal.h"
#include "verify/compare_runs.h"

namespace hpsim {
namespace {

enum class Format { Text, Json, Markdown };

/// What the arguments mean.
struct RunSettings {
  Backend backend = Backend::Gloo;
  Format format = Format::Text;
  ColorMode color = ColorMode::Auto;
  double timeout_s = 30;
  bool keep_going = false;
  bool quiet = false;
  bool full = false;
};

constexpr int kExitInternalError = 70;
constexpr int kExitInterrupted = 130;

/// What the baseline says. It starts every step from what the run held, so that the errors of one
/// step do not count again in the next; in exact mode there are none, and it has run before.
ReferenceRun reference_for(const VerifiedPlan& plan, const RunResult& run) {
  if (!run.has_numbers()) return {};
  return run_baseline(plan->scenario, states_before_steps(*plan, run));
}

/// \throws Error (Usage) if --full would list more ranks than anybody reads
void require_listable_ranks(bool full, std::int64_t num_ranks) {
  constexpr std::int64_t kMost = 131072;
  if (!full || num_ranks <= kMost) return;
  throw Error(ErrorKind::Usage,
              fmt::format("--full lists every rank, up to {}, but the mesh has {}",
                          format_count(kMost), format_count(num_ranks)),
              "leave --full out: the report then has a line per kind of shard");
}

/// From scenario to report.
Report run_scenario(const Scenario& scenario, const RunSettings& settings, ProgressLine& progress) {
  const double start_s = now_s();
  progress.start();
  require_ranks(settings.backend, scenario.mesh.num_ranks());
  require_listable_ranks(settings.full, scenario.mesh.num_ranks());
  require_faults(settings.backend, scenario);
  const VerifiedPlan plan = verify_plan(build_plan(scenario));
  const std::unique_ptr<Executor> executor = make_executor(settings.backend);
  // In exact mode the baseline goes first: it refuses what is not exact.
  const bool is_exact = scenario.is_exact() && settings.backend != Backend::Symbolic;
  ReferenceRun reference = is_exact ? run_baseline(scenario) : ReferenceRun{};

  RunOptions options;
  options.timeout_s = settings.timeout_s;
  options.on_progress = [&](std::int64_t step) {
    progress.show(
        fmt::format("{}: step {} of {}", scenario.name, step + 1, scenario.training.steps));
  };
  const double run_start_s = now_s();
  const RunResult run = executor->run(plan, options);
  progress.clear();

  const double verify_start_s = now_s();
  if (!is_exact) reference = reference_for(plan, run);
  const Verdict verdict = compare_runs(plan, run, reference);
  Report report = make_report(plan, run, reference, verdict);

  report.timing = {.start_s = run_start_s - start_s,
                   .connect_s = run.connect_time_s,
                   .run_s = run.run_time_s,
                   .verify_s = now_s() - verify_start_s,
                   .total_s = now_s() - start_s};
  return report;
}

/// Names the scenario in what a later stage found wrong with it.
Error in_file(const Error& error, const std::string& file) {
  std::vector<Diagnostic> diagnostics = error.diagnostics();
  for (Diagnostic& diagnostic : diagnostics) {
    if (diagnostic.file.empty()) diagnostic.file = file;
  }
  return {error.kind(), std::move(diagnostics)};
}

Report internal_error_report(const Scenario& scenario, const std::string& backend,
                             const std::string& message) {
  Report report = make_error_report(
      scenario, backend,
      Error(ErrorKind::Environment,
            {Diagnostic{.file = scenario.file,
                        .message = "internal error: " + message,
                        .help = "this is a bug in hpsim; please report it with the scenario"}}));
  report.exit_code = kExitInternalError;
  return report;
}

/// Every way in which a run can end but for Ctrl-C, as a report.
Report report_on(const Scenario& scenario, const RunSettings& settings, ProgressLine& progress) {
  const std::string backend(name_of(settings.backend));
  try {
    return run_scenario(scenario, settings, progress);
  } catch (const PlanRejected& rejected) {
    return make_rejected_report(scenario, backend, rejected);
  } catch (const Error& error) {
    progress.clear();
    return make_error_report(scenario, backend, in_file(error, scenario.file));
  } catch (const InternalError& error) {
    progress.clear();
    return internal_error_report(scenario, backend, error.what());
  } catch (const std::bad_alloc&) {
    progress.clear();
    return make_error_report(
        scenario, backend,
        in_file(Error(ErrorKind::Environment, "out of memory",
                      "use fewer ranks, steps or elements, or --backend symbolic"),
                scenario.file));
  }
}

void add_meta(Report& report) {
  char host[256] = "";
  ::gethostname(host, sizeof host - 1);
  report.meta = {{"host", host},
                 {"cores", fmt::format("{}", std::thread::hardware_concurrency())},
                 {"compiler", __VERSION__}};
}

/// Writes reports as they come, or at the end where the format needs them all.
class Output {
 public:
  Output(const RunSettings& settings, const std::vector<std::string>& files)
      : settings_(settings),
        num_scenarios_(files.size()),
        style_{.color = wants_color(settings.color, STDOUT_FILENO), .full = settings.full} {
    for (const std::string& file : files)
      file_columns_ = std::max(file_columns_, columns_of(file));
  }

  void add(Report report) {
    add_meta(report);
    print_diagnostics(report.diagnostics, settings_.color);
    if (settings_.format == Format::Text) write_stdout(text_of(report));
    reports_.push_back(std::move(report));
  }

  void finish(double total_s) const {
    switch (settings_.format) {
      case Format::Text:
        if (num_scenarios_ == 1) return;
        return write_stdout(
            summary_text(reports_, num_scenarios_ - reports_.size(), total_s, style_));
      case Format::Json:
        return write_stdout(json_text(json()));
      case Format::Markdown:
        return write_stdout(reports_markdown({reports_, {}}));
    }
  }

  [[nodiscard]] int exit_code() const {
    std::vector<int> codes;
    for (const Report& report : reports_)
      codes.push_back(report.exit_code);
    return worst_exit_code(codes);
  }

 private:
  [[nodiscard]] std::string text_of(const Report& report) const {
    const bool is_detailed = report.scenario && report.outcome != Outcome::Error;
    if (num_scenarios_ == 1) return is_detailed ? report_text(report, style_) : std::string();
    std::string text = reports_.empty() ? list_heading(file_columns_, style_) : std::string();
    text += report_line(report, file_columns_, style_);
    if (report.outcome != Outcome::Fail) return text;
    return fmt::format("{}\n{}\n", text, report_text(report, style_));
  }

  [[nodiscard]] nlohmann::ordered_json json() const {
    if (num_scenarios_ == 1 && reports_.size() == 1) {
      return report_json(reports_.front(), settings_.full);
    }
    nlohmann::ordered_json array = nlohmann::ordered_json::array();
    for (const Report& report : reports_)
      array.push_back(report_json(report, settings_.full));
    return array;
  }

  const RunSettings& settings_;
  std::size_t num_scenarios_;
  std::size_t file_columns_ = 0;
  TextStyle style_;
  std::vector<Report> reports_;
};

int reject_files(const std::vector<RejectedFile>& rejected, const std::vector<std::string>& files,
                 const RunSettings& settings) {
  if (settings.format == Format::Text) {
    for (const RejectedFile& file : rejected)
      print_diagnostics(file.diagnostics, settings.color);
    return exit_code_of(ErrorKind::InvalidScenario);
  }
  Output output(settings, files);
  for (const RejectedFile& file : rejected) {
    output.add(make_error_report(file.file, std::string(name_of(settings.backend)),
                                 Error(ErrorKind::InvalidScenario, file.diagnostics)));
  }
  output.finish(0);
  return output.exit_code();
}

/// \throws Error (Usage) for an argument that is not understood, (Environment) for nccl
RunSettings settings_from(const RunArguments& arguments) {
  const std::vector<std::string_view> backends = {"symbolic", "local", "gloo", "nccl"};
  if (backends[choose("--backend", arguments.backend, backends)] == "nccl") {
    throw Error(ErrorKind::Environment,
                "--backend nccl needs CUDA, NCCL and a GPU per rank, and this version of hpsim "
                "does not contain it",
                "--backend gloo runs the same plan over real collectives on this machine");
  }
  if (!(arguments.timeout_s > 0 && arguments.timeout_s <= 1e6)) {
    throw Error(ErrorKind::Usage,
                fmt::format("--timeout is {} s, but must be more than 0 and at most 1000000",
                            arguments.timeout_s));
  }
  return {
      .backend = *parse_backend(arguments.backend),
      .format = static_cast<Format>(choose("--format", arguments.format, {"text", "json", "md"})),
      .color =
          static_cast<ColorMode>(choose("--color", arguments.color, {"auto", "always", "never"})),
      .timeout_s = arguments.timeout_s,
      .keep_going = arguments.keep_going,
      .quiet = arguments.quiet,
      .full = arguments.full,
  };
}

}  // namespace

int run_command(const RunArguments& arguments) {
  const double start_s = now_s();
  const RunSettings settings = settings_from(arguments);
  const std::vector<std::string> files = find_scenario_files(arguments.paths);
  const ReadScenarios read = read_scenarios(files);
  if (!read.rejected.empty()) return reject_files(read.rejected, files, settings);

  Output output(settings, files);
  ProgressLine progress(!settings.quiet);
  try {
    for (const Scenario& scenario : read.scenarios) {
      Report report = report_on(scenario, settings, progress);
      const bool passed = report.outcome == Outcome::Pass;
      output.add(std::move(report));
      if (!passed && !settings.keep_going) break;
    }
  } catch (const Interrupted&) {
    progress.clear();
    output.finish(now_s() - start_s);
    write_stderr("interrupted\n");
    return kExitInterrupted;
  }
  output.finish(now_s() - start_s);
  return output.exit_code();
}

}  // namespace hpsim
