#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/suggest.h"
#include "commands.h"
#include "mutation/matrix_report.h"
#include "output_file.h"
#include "report/json.h"
#include "scenario_files.h"
#include "terminal.h"
#include "trials.h"

namespace hpsim {
namespace {

/// \throws Error (Usage) if one of the names is that of no fault, or of one that only processes
/// have
std::vector<const FaultKind*> chosen_faults(const std::vector<std::string>& names) {
  std::vector<const FaultKind*> chosen;
  std::vector<std::string_view> known;
  for (const FaultKind& kind : all_faults()) {
    if (kind.stage != FaultStage::Process) known.push_back(kind.name);
  }
  for (const std::string& name : names) {
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    const auto near = suggest(name, known);
    throw Error(
        ErrorKind::Usage, fmt::format("--fault: nothing to plant is named \"{}\"", name),
        near ? fmt::format("did you mean \"{}\"?", *near) : "hpsim faults lists all of them");
  }
  for (const std::string_view name : known) {
    if (names.empty() || std::find(names.begin(), names.end(), name) != names.end())
      chosen.push_back(&fault_kind(name));
  }
  return chosen;
}

/// Runs the trials of all scenarios on several threads; the result is in the order of scenarios.
class Trials {
 public:
  Trials(std::vector<Scenario> scenarios, std::vector<const FaultKind*> faults,
         const MutateArguments& arguments, Backend backend)
      : scenarios_(std::move(scenarios)),
        faults_(std::move(faults)),
        backend_(backend),
        timeout_s_(arguments.timeout_s),
        progress_(!arguments.quiet) {}

  KillMatrix run() {
    KillMatrix matrix;
    for (const FaultKind* const fault : faults_)
      matrix.faults.emplace_back(fault->name);
    matrix.scenarios.resize(scenarios_.size());
    progress_.start();
    // Ranks of gloo are forked: one run at a time, from a process of one thread.
    const unsigned num_threads =
        backend_ == Backend::Gloo ? 1 : std::max(1U, std::thread::hardware_concurrency());
    if (num_threads == 1) {
      work(matrix);
    } else {
      std::vector<std::jthread> threads;
      for (unsigned t = 0; t < num_threads; ++t)
        threads.emplace_back([&] { work(matrix); });
    }
    progress_.clear();
    if (failure_) std::rethrow_exception(failure_);
    return matrix;
  }

 private:
  void work(KillMatrix& matrix) {
    for (std::size_t i = next_++; i < scenarios_.size(); i = next_++) {
      try {
        show(i);
        matrix.scenarios[i] = TrialBench(scenarios_[i], backend_, timeout_s_).run(faults_);
      } catch (...) {
        const std::lock_guard lock(mutex_);
        if (!failure_) failure_ = std::current_exception();
        next_ = scenarios_.size();
      }
    }
  }

  void show(std::size_t index) {
    const std::lock_guard lock(mutex_);
    progress_.show(
        fmt::format("{} of {}: {}", index + 1, scenarios_.size(), scenarios_[index].file));
  }

  std::vector<Scenario> scenarios_;
  std::vector<const FaultKind*> faults_;
  Backend backend_;
  double timeout_s_;
  ProgressLine progress_;
  std::mutex mutex_;  ///< of progress_ and failure_
  std::exception_ptr failure_;
  std::atomic<std::size_t> next_ = 0;
};

/// Compares with the golden, or writes it. The value is the exit code.
int settle_golden(const MutateArguments& arguments, const nlohmann::ordered_json& got) {
  if (arguments.update) {
    if (std::getenv("CI") != nullptr) {
      throw Error(ErrorKind::Usage, "--update writes a golden, and CI is set",
                  "update it elsewhere, and commit it");
    }
    OutputFile(*arguments.golden).commit(json_text(got));
    return 0;
  }
  constexpr std::size_t kMostBytes = std::size_t{64} << 20;
  const auto golden =
      nlohmann::ordered_json::parse(read_text_file(*arguments.golden, kMostBytes), nullptr, false);
  if (golden.is_discarded()) {
    throw Error(ErrorKind::Usage, {Diagnostic{.file = *arguments.golden,
                                              .message = "this is no JSON",
                                              .help = "write it anew: hpsim mutate --update"}});
  }
  const std::vector<std::string> differences = matrix_differences(golden, got);
  for (const std::string& difference : differences)
    print_diagnostics({{.file = *arguments.golden, .message = difference}}, ColorMode::Auto);
  return differences.empty() ? 0 : 4;
}

}  // namespace

int mutate_command(const MutateArguments& arguments) {
  const bool is_json = choose("--format", arguments.format, {"text", "json"}) == 1;
  const auto color =
      static_cast<ColorMode>(choose("--color", arguments.color, {"auto", "always", "never"}));
  const Backend backend =
      static_cast<Backend>(choose("--backend", arguments.backend, {"symbolic", "local", "gloo"}));
  require_timeout(arguments.timeout_s);
  if (arguments.update && !arguments.golden) {
    throw Error(ErrorKind::Usage, "--update needs --golden FILE", "name the file to write");
  }
  std::vector<const FaultKind*> faults = chosen_faults(arguments.faults);
  ReadScenarios read = read_scenarios(find_scenario_files(arguments.paths));
  for (const RejectedFile& file : read.rejected)
    print_diagnostics(file.diagnostics, color);
  if (!read.rejected.empty()) return exit_code_of(ErrorKind::InvalidScenario);
  const KillMatrix matrix =
      Trials(std::move(read.scenarios), std::move(faults), arguments, backend).run();
  const nlohmann::ordered_json json = matrix_json(matrix);
  write_stdout(is_json ? json_text(json) : matrix_text(matrix, wants_color(color, STDOUT_FILENO)));
  const int golden_code = arguments.golden ? settle_golden(arguments, json) : 0;
  return worst_exit_code({matrix.passed() ? 0 : 1, golden_code});
}

}  // namespace hpsim
