#include "run_scenario.h"

#include <fmt/format.h>
#include <unistd.h>

#include <new>
#include <thread>

#include "base/check.h"
#include "base/units.h"
#include "baseline/contributions.h"
#include "baseline/eigen_baseline.h"
#include "exec/limits.h"
#include "plan/build_plan.h"
#include "plan/faults/plan_faults.h"
#include "plan/verify_plan.h"
#include "report/planted_faults.h"
#include "scenario/locate.h"
#include "verify/compare_runs.h"

namespace hpsim {
namespace {

/// What the baseline says. It starts every step from what the run held, so that the errors of one
/// step do not count again in the next; in exact mode there are none, and it has run before.
ReferenceRun reference_for(const VerifiedPlan& plan, const RunResult& run) {
  if (!run.has_numbers()) return {};
  try {
    return run_baseline(plan->scenario, states_before_steps(*plan, run));
  } catch (const Error&) {
    // A planted fault may leave what no step can be judged from: then a training without it judges.
    if (plan->scenario.faults.empty()) throw;
    return run_baseline(plan->scenario);
  }
}

/// What the baseline answers once a check has failed.
CauseSources causes_from_baseline(const Scenario& scenario, const ReferenceRun& reference) {
  using Tensors = CauseSources::Tensors;
  return {
      .cost =
          [&](const ContributionRequest& request) { return contribution_cost(scenario, request); },
      .contributions =
          [&](const ContributionRequest& request, const Tensors& parameters) {
            return contributions_to(scenario, request, parameters);
          },
      .gradients =
          [&](const Scenario& variant, std::int64_t step, const Tensors& parameters) {
            return gradients_of_step(variant, step, parameters, reference.confidence);
          }};
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
Report judged_run(const Scenario& scenario, const RunSettings& settings, ProgressLine& progress) {
  const double start_s = now_s();
  progress.start();
  require_ranks(settings.backend, scenario.mesh.num_ranks());
  require_listable_ranks(settings.full, scenario.mesh.num_ranks());
  require_faults(settings.backend, scenario);
  const VerifiedPlan plan = verify_plan(plant_plan_faults(build_plan(scenario)));
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
  const Verdict verdict =
      compare_runs(plan, run, reference, causes_from_baseline(plan->scenario, reference));
  Report report = make_report(plan, run, reference, verdict);

  report.timing = {.start_s = run_start_s - start_s,
                   .connect_s = run.connect_time_s,
                   .run_s = run.run_time_s,
                   .verify_s = now_s() - verify_start_s,
                   .total_s = now_s() - start_s};
  return report;
}

/// Names the scenario, and the place in it, in what a later stage found wrong with it.
Error in_file(const Error& error, const Scenario& scenario) {
  std::vector<Diagnostic> diagnostics = error.diagnostics();
  for (Diagnostic& diagnostic : diagnostics) {
    if (diagnostic.file.empty()) diagnostic.file = scenario.file;
    if (diagnostic.line > 0 || diagnostic.pointer.empty() || !scenario.source) continue;
    const SourcePosition place = locate(*scenario.source, {diagnostic.pointer}).at(0);
    diagnostic.line = place.line;
    diagnostic.column = place.column;
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

Report report_on(const Scenario& scenario, const RunSettings& settings, ProgressLine& progress) {
  const std::string backend(name_of(settings.backend));
  try {
    return judged_run(scenario, settings, progress);
  } catch (const PlanRejected& rejected) {
    return make_rejected_report(scenario, backend, rejected);
  } catch (const Error& error) {
    progress.clear();
    return make_error_report(scenario, backend, in_file(error, scenario));
  } catch (const InternalError& error) {
    progress.clear();
    return internal_error_report(scenario, backend, error.what());
  } catch (const std::bad_alloc&) {
    progress.clear();
    return make_error_report(
        scenario, backend,
        in_file(Error(ErrorKind::Environment, "out of memory",
                      "use fewer ranks, steps or elements, or --backend symbolic"),
                scenario));
  }
}

void add_meta(Report& report) {
  char host[256] = "";
  ::gethostname(host, sizeof host - 1);
  report.meta = {{"host", host},
                 {"cores", fmt::format("{}", std::thread::hardware_concurrency())},
                 {"compiler", __VERSION__}};
}

}  // namespace

Report run_scenario(const Scenario& scenario, const RunSettings& settings, ProgressLine& progress) {
  Report report = report_on(scenario, settings, progress);
  judge_planted_faults(report);
  add_meta(report);
  return report;
}

ReportSet rejected_set(const std::vector<RejectedFile>& rejected, const std::string& backend) {
  ReportSet set;
  for (const RejectedFile& file : rejected) {
    set.reports.push_back(
        make_error_report(file.file, backend, Error(ErrorKind::InvalidScenario, file.diagnostics)));
    add_meta(set.reports.back());
  }
  return set;
}

}  // namespace hpsim
