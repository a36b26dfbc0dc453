#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/finding.h"
#include "plan/overlap.h"
#include "plan/plan.h"
#include "plan/verify_plan.h"
#include "report/budget.h"
#include "report/golden.h"
#include "trace/ledger.h"
#include "trace/memory_profile.h"
#include "trace/reference_run.h"
#include "trace/run_result.h"
#include "verify/verdict.h"

namespace hpsim {

/// What a run that passed exits with where it is not what its golden says, or over a limit.
inline constexpr int kExitGolden = 4;
inline constexpr int kExitOverBudget = 5;

enum class Outcome { Pass, Fail, Error };

/// "pass", "fail", "error"
[[nodiscard]] std::string_view name_of(Outcome outcome);

/// What a collective carries: the parameters of a bucket, or their gradients; or an activation.
struct PayloadReport {
  std::string unit;  ///< empty: none
  std::vector<std::string> params;
  std::vector<Interval> partials;  ///< ranges of params that are reduced together further on
  std::string activation;          ///< see activation_text; empty: parameters
  bool is_part = false;            ///< of a bucket: those of its parameters that have gradients
};

/// Of a collective that is only begun: the first and the last compute until it is completed, none
/// or one of them where there is no more, and what is computed next ("forward of l1").
struct OverlapReport {
  std::vector<std::string> computes;
  std::string completed_before;
  bool operator==(const OverlapReport&) const = default;
};

/// One collective, listed once for all groups that run it side by side.
struct CollectiveReport {
  std::int64_t seq = 0;  ///< from 0, over the whole run
  Phase phase = Phase::Forward;
  std::int64_t step = 0;
  std::int64_t micro_batch = 0;
  int payload = -1;            ///< into Report::payloads
  int partial = -1;            ///< into PayloadReport::partials; -1: all of it
  bool is_recomputed = false;  ///< the collective of forward once more
  CollectiveSpec spec;
  std::optional<OverlapReport> overlap;  ///< none: it is completed at once
  /// Of a collective of tokens in a run with numbers: what it really sent, while `spec` has what
  /// balanced routing would send, which is the same on every backend.
  struct Routed {
    PerCoordinate elems_in;
    PerCoordinate elems_out;
  };
  std::optional<Routed> routed;

  [[nodiscard]] const PerCoordinate& elems_in() const {
    return routed ? routed->elems_in : spec.elems_in;
  }
  [[nodiscard]] const PerCoordinate& elems_out() const {
    return routed ? routed->elems_out : spec.elems_out;
  }
};

/// The buckets of the plan, then the activations of its redistributions, the loss, what experts
/// exchange, the norm, and gradient rows that are of some parameters of their bucket only.
[[nodiscard]] std::vector<PayloadReport> payload_reports(const Plan& plan);

/// What a step carries, or would if it had a collective: into payload_reports; -1: nothing.
[[nodiscard]] int payload_of(const Plan& plan, const Step& step);

/// \pre step `plan_step` has a collective, number `seq` of the run; `overlaps` are those of the
/// plan
[[nodiscard]] CollectiveReport collective_report(const Plan& plan,
                                                 const std::map<std::int64_t, Overlap>& overlaps,
                                                 std::size_t plan_step, std::int64_t seq);

/// The load of an experts module in one optimizer step.
struct RoutingReport {
  std::string module;
  std::int64_t step = 0;
  bool is_assumed = false;             ///< balanced routing: the run has no numbers
  std::vector<std::int64_t> tokens;    ///< per expert, of the whole batch: positions that chose it
  double imbalance = 1;                ///< the most over the mean
  std::vector<std::int64_t> received;  ///< per rank: positions that its experts got; of meshes of
                                       ///< many ranks empty
  double rank_imbalance = 1;
};

/// Maxima over ranks.
struct Counters {
  std::int64_t pad_allocations = 0;
  std::int64_t pad_copies = 0;
  std::int64_t peak_unsharded_bytes = 0;
  std::int64_t peak_bytes = 0;
};

/// Bytes of one kind of memory, maxima over ranks.
struct LedgerReport {
  std::int64_t peak_bytes = 0;
  std::vector<std::int64_t> after_step_bytes;
};

/// Wall times, in seconds; the only part of a report besides `meta` that differs between two runs.
struct Timing {
  double start_s = 0;    ///< reading, planning, checking the plan
  double connect_s = 0;  ///< until all ranks were connected
  double run_s = 0;      ///< the steps, slowest rank
  double verify_s = 0;   ///< baseline, comparison, report
  double total_s = 0;
};

/// Everything there is to say about one scenario: version 1 of the report in the scenario format.
/// It is small for any number of ranks: ranks are listed when it is printed.
struct Report {
  std::string name;
  std::string description;
  std::string file;  ///< the argument as typed
  std::string hash;
  std::optional<Scenario> scenario;  ///< none if the file could not be read
  std::string backend;

  Outcome outcome = Outcome::Error;
  int exit_code = 70;
  std::vector<CheckResult> checks;
  std::vector<Finding> findings;  ///< errors and warnings
  std::vector<LeftOut> left_out;  ///< of checks with many findings: how many are not told
  std::vector<Diagnostic> diagnostics;
  std::vector<std::string> notes;  ///< what to know when reading the numbers

  std::vector<PlannedParameter> parameters;
  std::vector<std::string> recomputed;  ///< parts of the model that backward computes again
  std::vector<PayloadReport> payloads;
  std::vector<CollectiveReport> collectives;
  std::vector<double> losses;
  std::vector<double> baseline_losses;
  std::vector<double> grad_norms;
  std::vector<double> baseline_grad_norms;
  std::vector<double> loss_bounds;  ///< how far losses may be from baseline_losses
  std::vector<double> grad_norm_bounds;
  std::vector<StepDrift> drift;  ///< like losses; empty in exact mode
  bool has_run = false;          ///< counters and ledger were measured
  Counters counters;
  std::vector<LedgerReport> ledger;  ///< by MemoryKind
  MemoryProfile memory;              ///< step by step
  /// Where the most is alive: "backward of \"l0\"", of which optimizer step; empty: not recorded.
  std::string peak_at;
  std::int64_t peak_at_step = 0;
  std::vector<RoutingReport> routing;
  /// Peaks, the whole first, then by MemoryKind, as balanced routing would have them; empty where
  /// nothing is routed. The same on every backend.
  std::vector<std::int64_t> balanced_peaks;
  std::string digest;  ///< exact mode only

  std::optional<GoldenComparison> golden;  ///< where the run was compared with one
  std::vector<BudgetLine> budget;          ///< limits that the caller set

  Timing timing;
  std::vector<std::pair<std::string, std::string>> meta;
};

/// The reports of one command, and what belongs to none of its scenarios.
struct ReportSet {
  std::vector<Report> reports;
  std::vector<std::string> obsolete_goldens;  ///< files that mirror no scenario
};

/// The report of a run that was judged; applies the scenario's `expect` (see expect.h), which can
/// turn a pass into a failure.
[[nodiscard]] Report make_report(const VerifiedPlan& plan, const RunResult& run,
                                 const ReferenceRun& reference, const Verdict& verdict);

/// The report of a plan that was refused before anything ran: verdict fail, exit code 1.
[[nodiscard]] Report make_rejected_report(const Scenario& scenario, const std::string& backend,
                                          const PlanRejected& rejected);

/// The report of a scenario that was read but whose run ended without a verdict.
[[nodiscard]] Report make_error_report(const Scenario& scenario, const std::string& backend,
                                       const Error& error);

/// The report of a file that is no valid scenario.
[[nodiscard]] Report make_error_report(const std::string& file, const std::string& backend,
                                       const Error& error);

/// G over the gradient of the reported loss: k D / F for local_mean, k / F for the others, with the
/// divisors of exact mode where it is on (scenario format, "What is computed").
///
///   avg, k = 1, local_mean, 4 data ranks    1        sum, the same      4
///   avg, k = 2                              2        avg, F = 3         4/3
///   avg, loss sum                           1/4      sum, loss sum      1
[[nodiscard]] double gradient_ratio(const Scenario& scenario);

/// 0.25 -> "1/4", 4 -> "4", 1.5 -> "1.5": a factor for people.
[[nodiscard]] std::string format_factor(double factor);

}  // namespace hpsim
