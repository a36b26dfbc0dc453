#include <fmt/format.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "base/units.h"
#include "commands.h"
#include "exec/interrupted.h"
#include "golden_files.h"
#include "report/golden_report.h"
#include "report/json.h"
#include "report/table.h"
#include "report/text.h"
#include "run_scenario.h"
#include "scenario_files.h"
#include "terminal.h"

namespace hpsim {
namespace {

enum class Format { Text, Json, Markdown };

/// How reports are shown.
struct OutputSettings {
  Format format = Format::Text;
  ColorMode color = ColorMode::Auto;
  bool full = false;
};

/// Writes reports as they come, or at the end where the format needs them all.
class Output {
 public:
  Output(const OutputSettings& settings, const std::vector<std::string>& files)
      : settings_(settings),
        num_scenarios_(files.size()),
        style_{.color = wants_color(settings.color, STDOUT_FILENO), .full = settings.full} {
    for (const std::string& file : files)
      file_columns_ = std::max(file_columns_, columns_of(file));
  }

  void add(Report report) {
    print_diagnostics(report.diagnostics, settings_.color);
    if (settings_.format == Format::Text) write_stdout(text_of(report));
    set_.reports.push_back(std::move(report));
  }

  void add_obsolete_goldens(std::vector<std::string> files) {
    for (const std::string& file : files)
      print_diagnostics({{.file = file, .message = "this golden mirrors no scenario"}},
                        settings_.color);
    set_.obsolete_goldens = std::move(files);
  }

  void finish(double total_s) const {
    switch (settings_.format) {
      case Format::Text:
        if (num_scenarios_ == 1) return;
        return write_stdout(
            summary_text(set_, num_scenarios_ - set_.reports.size(), total_s, style_));
      case Format::Json:
        return write_stdout(json_text(json()));
      case Format::Markdown:
        return write_stdout(reports_markdown(set_));
    }
  }

  [[nodiscard]] const ReportSet& set() const { return set_; }

 private:
  [[nodiscard]] std::string text_of(const Report& report) const {
    const bool is_detailed = report.scenario && report.outcome != Outcome::Error;
    if (num_scenarios_ == 1) return is_detailed ? report_text(report, style_) : std::string();
    std::string text = set_.reports.empty() ? list_heading(file_columns_, style_) : std::string();
    text += report_line(report, file_columns_, style_);
    const bool is_as_golden = !report.golden || report.golden->state == GoldenState::Same;
    if (report.outcome == Outcome::Pass && (report.exit_code != 0 || !is_as_golden))
      return text + golden_and_budget_text(report, style_);
    if (report.outcome != Outcome::Fail) return text;
    return fmt::format("{}\n{}\n", text, report_text(report, style_));
  }

  [[nodiscard]] nlohmann::ordered_json json() const {
    if (num_scenarios_ == 1 && set_.reports.size() == 1) {
      return report_json(set_.reports.front(), settings_.full);
    }
    nlohmann::ordered_json array = nlohmann::ordered_json::array();
    for (const Report& report : set_.reports)
      array.push_back(report_json(report, settings_.full));
    return array;
  }

  const OutputSettings& settings_;
  std::size_t num_scenarios_;
  std::size_t file_columns_ = 0;
  TextStyle style_;
  ReportSet set_;
};

/// \throws Error (Usage) for an argument that is not understood, (Environment) for nccl
RunSettings settings_from(const RunArguments& arguments) {
  const std::vector<std::string_view> backends = {"symbolic", "local", "gloo", "nccl"};
  if (backends[choose("--backend", arguments.backend, backends)] == "nccl") {
    throw Error(ErrorKind::Environment,
                "--backend nccl needs CUDA, NCCL and a GPU per rank, and this version of hpsim "
                "does not contain it",
                "--backend gloo runs the same plan over real collectives on this machine");
  }
  require_timeout(arguments.timeout_s);
  return {.backend = *parse_backend(arguments.backend),
          .timeout_s = arguments.timeout_s,
          .full = arguments.full};
}

OutputSettings output_settings_from(const RunArguments& arguments) {
  return {
      .format = static_cast<Format>(choose("--format", arguments.format, {"text", "json", "md"})),
      .color =
          static_cast<ColorMode>(choose("--color", arguments.color, {"auto", "always", "never"})),
      .full = arguments.full,
  };
}

/// Runs all, or up to the first that does not pass. \throws Interrupted
void run_all(const std::vector<Scenario>& scenarios, const RunArguments& arguments,
             const RunSettings& settings, const std::optional<GoldenFiles>& goldens,
             const CiOutputs& ci, Output& output) {
  ProgressLine progress(!arguments.quiet);
  for (const Scenario& scenario : scenarios) {
    Report report = run_scenario(scenario, settings, progress);
    if (goldens) goldens->compare(report);
    if (report.golden) judge_golden(is_ci(), report);
    ci.judge(report);
    const bool passed = report.outcome == Outcome::Pass;
    output.add(std::move(report));
    if (!passed && !arguments.keep_going) break;
  }
  if (goldens) output.add_obsolete_goldens(goldens->obsolete());
}

}  // namespace

int run_command(const RunArguments& arguments) {
  const double start_s = now_s();
  const OutputSettings output_settings = output_settings_from(arguments);
  const RunSettings settings = settings_from(arguments);
  const bool is_text = output_settings.format == Format::Text;
  const std::vector<std::string> files = find_scenario_files(arguments.paths);
  CiOutputs ci(arguments.ci);
  std::optional<GoldenFiles> goldens;
  require_value("--golden", arguments.golden);
  if (arguments.golden) goldens.emplace(arguments.paths, files, *arguments.golden);
  const ReadScenarios read = read_scenarios(files);
  Output output(output_settings, files);
  if (!read.rejected.empty()) {
    const ReportSet set = rejected_set(read.rejected, arguments.backend);
    for (const Report& report : set.reports) {
      if (is_text) print_diagnostics(report.diagnostics, output_settings.color);
      if (!is_text) output.add(report);
    }
    if (!is_text) output.finish(0);
    ci.finish(set, is_text);
    return worst_exit_code(set);
  }
  try {
    run_all(read.scenarios, arguments, settings, goldens, ci, output);
  } catch (const Interrupted&) {
    output.finish(now_s() - start_s);
    write_stderr("interrupted\n");
    return kExitInterrupted;
  }
  output.finish(now_s() - start_s);
  ci.finish(output.set(), is_text);
  return worst_exit_code(output.set());
}

}  // namespace hpsim
