#include "report/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "base/check.h"
#include "plan/rank_layout.h"
#include "plan/recomputation.h"
#include "plan/step_text.h"
#include "report/digest.h"
#include "report/expect.h"
#include "report/json.h"
#include "report/routing_report.h"
#include "report/text_parts.h"
#include "scenario/locate.h"
#include "scenario/precision.h"
#include "trace/plan_ledger.h"

namespace hpsim {
namespace {

/// What experts exchange, in the order of an optimizer step.
constexpr std::array<std::pair<Phase, StepKind>, 5> kTokenSteps = {
    {{Phase::Forward, StepKind::Route},
     {Phase::Forward, StepKind::Dispatch},
     {Phase::Forward, StepKind::Combine},
     {Phase::Backward, StepKind::Dispatch},
     {Phase::Backward, StepKind::Combine}}};

Step token_step(Phase phase, StepKind kind, int module) {
  Step step;
  step.kind = kind;
  step.phase = phase;
  step.module = module;
  return step;
}

bool is_whole_bucket(const Plan& plan, const GradientRow& row) {
  return row.parameters == plan.bucket(row.bucket).parameters;
}

/// Into payload_reports, as what follows.
int norm_payload(const Plan& plan) {
  return static_cast<int>(plan.buckets.size() + plan.redistributions.size() + 1 +
                          experts_modules(plan.scenario.model).size() * kTokenSteps.size());
}

/// That of its bucket where all of its parameters are in the row.
int row_payload(const Plan& plan, int row) {
  if (is_whole_bucket(plan, plan.gradient_row(row))) return plan.gradient_row(row).bucket;
  return norm_payload(plan) + 1 + row;
}

Report report_of(const Scenario& scenario, const std::string& backend) {
  Report report;
  report.name = scenario.name;
  report.description = scenario.description;
  report.file = scenario.file;
  report.hash = scenario.hash;
  report.scenario = scenario;
  report.backend = backend;
  return report;
}

void add_plan(const Plan& plan, Report& report) {
  report.parameters = plan.parameters;
  report.recomputed = recomputed_parts(plan);
  report.payloads = payload_reports(plan);
  const std::map<std::int64_t, Overlap> overlaps = overlaps_of(plan);
  for (std::size_t i = 0; i < plan.steps.size(); ++i) {
    if (!plan.steps[i].collective) continue;
    const auto seq = static_cast<std::int64_t>(report.collectives.size());
    report.collectives.push_back(collective_report(plan, overlaps, i, seq));
  }
}

/// What a run with numbers sent to experts and back. \pre add_plan
void add_routed(const Plan& plan, const RunResult& run, Report& report) {
  if (!run.has_numbers() || experts_modules(plan.scenario.model).empty()) return;
  const Routing routing = run_routing(plan, run);
  MeshDims all_dims;
  for (int dim = 0; dim < plan.mesh().num_dims(); ++dim)
    all_dims.push_back(dim);
  std::size_t seq = 0;
  for (const Step& step : plan.steps) {
    if (!step.collective) continue;
    CollectiveReport& collective = report.collectives.at(seq++);
    if (!step.collective->is_routed) continue;
    const auto tabulated = [&](bool is_in) {
      return PerCoordinate::tabulate(plan.mesh(), all_dims, [&](const Coordinate& coordinate) {
        const RoutedElems elems = routed_elems(plan, step, coordinate, routing);
        return is_in ? elems.in : elems.out;
      });
    };
    collective.routed = {tabulated(true), tabulated(false)};
  }
}

void raise_to(std::int64_t& maximum, std::int64_t value) {
  maximum = std::max(maximum, value);
}

/// Where the most is alive.
void add_peak(const Plan& plan, Report& report) {
  const std::int64_t peak_step = report.memory.peak_step();
  if (peak_step < 0) return;
  const Step& step = plan.steps.at(static_cast<std::size_t>(peak_step));
  report.peak_at = step_text(plan, step);
  report.peak_at_step = step.step;
}

void add_measurements(const RunResult& run, Report& report) {
  const std::int64_t num_steps = run.layout().num_steps();
  report.has_run = true;
  report.ledger.resize(kNumMemoryKinds);
  for (LedgerReport& kind : report.ledger) {
    kind.after_step_bytes.assign(static_cast<std::size_t>(num_steps), 0);
  }
  const auto unsharded = static_cast<std::size_t>(MemoryKind::UnshardedParameters);
  for (const Rank r : run.layout().recording()) {
    const RankRecord& rank = run.rank_record(r);
    raise_to(report.counters.pad_allocations, rank.pad_allocations);
    raise_to(report.counters.pad_copies, rank.pad_copies);
    raise_to(report.counters.peak_unsharded_bytes, rank.ledger.peak()[unsharded]);
    raise_to(report.counters.peak_bytes, rank.ledger.peak_total());
    report.memory.add(rank.init, run.layout().records_events() ? run.memory_events(r)
                                                               : std::span<const MemoryEvent>());
    for (std::size_t kind = 0; kind < kNumMemoryKinds; ++kind) {
      raise_to(report.ledger[kind].peak_bytes, rank.ledger.peak()[kind]);
      for (std::int64_t step = 0; step < num_steps; ++step) {
        raise_to(report.ledger[kind].after_step_bytes[static_cast<std::size_t>(step)],
                 run.step_record(r, step).live_after[kind]);
      }
    }
  }
}

/// What routing does not change, for goldens. \pre add_measurements
void add_balanced_peaks(const Plan& plan, bool is_balanced, Report& report) {
  if (report.routing.empty()) return;
  report.balanced_peaks.assign(1 + kNumMemoryKinds, 0);
  if (is_balanced) {
    report.balanced_peaks[0] = report.counters.peak_bytes;
    for (std::size_t kind = 0; kind < kNumMemoryKinds; ++kind)
      report.balanced_peaks[1 + kind] = report.ledger[kind].peak_bytes;
    return;
  }
  for (const RankClass& each : rank_classes(plan)) {
    const Ledger ledger = planned_memory(plan, each.first).ledger;
    raise_to(report.balanced_peaks[0], ledger.peak_total());
    for (std::size_t kind = 0; kind < kNumMemoryKinds; ++kind)
      raise_to(report.balanced_peaks[1 + kind], ledger.peak()[kind]);
  }
}

void add_notes(const Scenario& scenario, Report& report) {
  if (scenario.is_exact()) {
    report.notes.emplace_back(
        "exact mode: every mean, and the avg scale, divides by the next power of two >= its count");
  }
  if (scenario.fully_shard.sync_object == SyncObject::Weight) {
    report.notes.emplace_back(
        "sync_object weight: weights are averaged after the optimizer; gradients, their norm and "
        "momentum buffers are means over the ranks that average");
  }
  if (is_emulated(scenario)) {
    const std::string_view carrier = name_of(carrier_dtype(scenario));
    report.notes.push_back(fmt::format(
        "numbers are held as {}: those of other dtypes are rounded to them after every operation, "
        "sums are made in {} and rounded once; bytes are those of the dtypes named",
        carrier, carrier));
  }
  const double ratio = gradient_ratio(scenario);
  if (ratio == 1) return;
  const FullyShardSpec& fully_shard = scenario.fully_shard;
  report.notes.push_back(fmt::format(
      "gradients are {} x those of the reported loss: reduce_op {}, k = {}, F = {}, loss {}",
      format_factor(ratio), to_string(fully_shard.reduce_op),
      format_factor(fully_shard.gradient_scaling_factor), format_factor(gradient_divisor(scenario)),
      name_of(scenario.training.loss_normalization)));
}

/// Where a prefetch was asked for, and there is nothing that could be begun ahead of time.
void add_prefetch_note(const Plan& plan, Phase phase, std::int64_t ahead, Report& report) {
  if (ahead == 0) return;
  bool gathers = false;
  for (const Step& step : plan.steps) {
    if (step.kind != StepKind::Unshard || step.phase != phase || !step.collective) continue;
    if (step.is_async) return;
    gathers = true;
  }
  report.notes.push_back(fmt::format(
      "{0}_prefetch {1} begins nothing: in {0} {2}", name_of(phase), ahead,
      gathers ? "only the unit that is asked for first is gathered" : "no unit is gathered"));
}

/// Fills in where the scenario file says what the findings are about: what `expect` says, else the
/// parameter or its module, else the beginning of the file.
void locate_findings(const Scenario& scenario, std::vector<Finding>& findings) {
  if (findings.empty() || !scenario.source) return;
  std::unordered_map<std::string_view, const ParameterSpec*> parameters;
  for (const ParameterSpec& parameter : scenario.parameters)
    parameters.emplace(parameter.name, &parameter);
  std::vector<std::string> pointers;
  for (const Finding& finding : findings) {
    pointers.push_back(finding.pointer);
    const auto parameter = parameters.find(finding.param);
    if (finding.pointer.empty() && parameter != parameters.end()) {
      pointers.back() = parameter_pointer(scenario, *parameter->second);
    }
  }
  const std::vector<SourcePosition> places = locate(*scenario.source, pointers);
  for (std::size_t i = 0; i < findings.size(); ++i) {
    findings[i].line = places[i].line;
    findings[i].column = places[i].column;
  }
}

/// How far losses or norms of a run may be from those of a free-running baseline.
std::vector<double> bounds_of(const std::vector<ReferenceScalar>& scalars,
                              const ReferenceRun& reference) {
  std::vector<double> bounds;
  for (const ReferenceScalar& scalar : scalars) {
    const double rounding = reference.exact ? 0 : 4 * reference.unit_roundoff;
    bounds.push_back(scalar.spread + rounding * std::abs(scalar.value));
  }
  return bounds;
}

/// What the baseline says of the whole training, one number per step.
void add_baseline(const ReferenceRun& reference, Report& report) {
  for (const ReferenceScalar& loss : reference.losses)
    report.baseline_losses.push_back(loss.value);
  for (const ReferenceScalar& norm : reference.grad_norms)
    report.baseline_grad_norms.push_back(norm.value);
  report.loss_bounds = bounds_of(reference.losses, reference);
  report.grad_norm_bounds = bounds_of(reference.grad_norms, reference);
}

void apply_expect(const Scenario& scenario, bool has_numbers, Report& report) {
  if (scenario.expect.empty()) return;
  const ExpectBounds bounds{.has_numbers = has_numbers,
                            .losses = report.loss_bounds,
                            .grad_norms = report.grad_norm_bounds};
  ExpectResult result = check_expect(scenario.expect, comparable_json(report, false), bounds);
  if (!result.not_compared.empty()) {
    report.notes.push_back(fmt::format("expect: {} not compared, {} computes no numbers",
                                       fmt::join(result.not_compared, ", "), report.backend));
  }
  if (!result.check) return;
  if (!result.check->passed) {
    report.outcome = Outcome::Fail;
    report.exit_code = 1;
  }
  report.checks.push_back(*result.check);
  locate_findings(scenario, result.findings);
  for (Finding& finding : result.findings) {
    report.findings.push_back(std::move(finding));
  }
}

/// Of the innermost unit of every module; empty for those of none.
std::vector<std::string> units_of_modules(const Scenario& scenario) {
  const std::vector<std::vector<int>> around = units_around(scenario.model, scenario.units);
  const bool has_root = !scenario.units.empty() && scenario.units[0].is_root;
  std::vector<std::string> names(around.size(), has_root ? scenario.units[0].name : "");
  for (std::size_t module = 0; module < around.size(); ++module) {
    if (around[module].empty()) continue;
    names[module] = scenario.units.at(static_cast<std::size_t>(around[module].back())).name;
  }
  return names;
}

OverlapReport overlap_report(const Plan& plan, const Overlap& overlap) {
  OverlapReport report;
  if (overlap.first >= 0) report.computes.push_back(compute_text(plan, overlap.first));
  if (overlap.last > overlap.first) report.computes.push_back(compute_text(plan, overlap.last));
  if (overlap.before >= 0) report.completed_before = compute_text(plan, overlap.before);
  return report;
}

/// Into payload_reports.
int token_payload(const Plan& plan, const Step& step) {
  const std::vector<int> modules = experts_modules(plan.scenario.model);
  const auto index = std::find(modules.begin(), modules.end(), step.module) - modules.begin();
  const Phase direction = runs_forward(step) ? Phase::Forward : Phase::Backward;
  const auto kind =
      std::find(kTokenSteps.begin(), kTokenSteps.end(), std::pair(direction, step.kind)) -
      kTokenSteps.begin();
  return static_cast<int>(plan.buckets.size() + plan.redistributions.size()) + 1 +
         static_cast<int>(index) * static_cast<int>(kTokenSteps.size()) + static_cast<int>(kind);
}

}  // namespace

std::string_view name_of(Outcome outcome) {
  switch (outcome) {
    case Outcome::Pass:
      return "pass";
    case Outcome::Fail:
      return "fail";
    case Outcome::Error:
      return "error";
  }
  HPSIM_CHECK(false, "unknown outcome {}", static_cast<int>(outcome));
  return {};
}

std::vector<PayloadReport> payload_reports(const Plan& plan) {
  std::vector<PayloadReport> reports;
  for (const Bucket& bucket : plan.buckets) {
    PayloadReport entry{.unit = plan.unit_name(bucket)};
    for (const int parameter : bucket.parameters)
      entry.params.push_back(plan.parameter(parameter).name);
    reports.push_back(std::move(entry));
  }
  for (const GradientRow& row : plan.gradient_rows) {
    if (!is_whole_bucket(plan, row)) continue;
    PayloadReport& entry = reports[static_cast<std::size_t>(row.bucket)];
    for (const PartialRange& range : row.partials)
      entry.partials.push_back(range.members);
  }
  const std::vector<std::string> units = units_of_modules(plan.scenario);
  for (const Redistribution& redistribution : plan.redistributions) {
    const int asker = redistribution.asked_by;
    reports.push_back({.unit = asker < 0 ? "" : units.at(static_cast<std::size_t>(asker)),
                       .activation = activation_text(plan, redistribution)});
  }
  reports.push_back({.activation = kLossPayload});
  for (const int module : experts_modules(plan.scenario.model)) {
    for (const auto& [phase, kind] : kTokenSteps) {
      reports.push_back({.unit = units.at(static_cast<std::size_t>(module)),
                         .activation = tokens_text(plan, token_step(phase, kind, module))});
    }
  }
  reports.push_back({.activation = kNormPayload});
  for (const GradientRow& row : plan.gradient_rows) {
    PayloadReport& entry = reports.emplace_back();
    if (is_whole_bucket(plan, row)) {  // no step refers to it: it carries what its bucket does
      entry.activation = "gradients";
      continue;
    }
    entry.unit = plan.unit_name(plan.bucket(row.bucket));
    entry.is_part = true;
    for (const int p : row.parameters)
      entry.params.push_back(plan.parameter(p).name);
    for (const PartialRange& range : row.partials)
      entry.partials.push_back(range.members);
  }
  return reports;
}

int payload_of(const Plan& plan, const Step& step) {
  const auto num_buckets = static_cast<int>(plan.buckets.size());
  if (step.row >= 0) return row_payload(plan, step.row);
  if (step.redistribution >= 0) return num_buckets + step.redistribution;
  if (step.kind == StepKind::Loss)
    return num_buckets + static_cast<int>(plan.redistributions.size());
  if (moves_tokens(step.kind)) return token_payload(plan, step);
  if (step.kind == StepKind::ClipGradients) return norm_payload(plan);
  return step.bucket;
}

CollectiveReport collective_report(const Plan& plan,
                                   const std::map<std::int64_t, Overlap>& overlaps,
                                   std::size_t plan_step, std::int64_t seq) {
  const Step& step = plan.steps.at(plan_step);
  CollectiveReport report{.seq = seq,
                          .phase = step.phase,
                          .step = step.step,
                          .micro_batch = step.micro_batch,
                          .payload = payload_of(plan, step),
                          .partial = step.partial,
                          .is_recomputed = step.is_recomputed,
                          .spec = step.collective.value()};
  if (step.is_async) {
    report.overlap = overlap_report(plan, overlaps.at(static_cast<std::int64_t>(plan_step)));
  }
  return report;
}

Report make_report(const VerifiedPlan& plan, const RunResult& run, const ReferenceRun& reference,
                   const Verdict& verdict) {
  const Scenario& scenario = plan->scenario;
  Report report = report_of(scenario, run.backend());
  report.outcome = verdict.passed() ? Outcome::Pass : Outcome::Fail;
  report.exit_code = verdict.passed() ? 0 : 1;
  report.checks = verdict.checks;
  report.findings = verdict.findings;
  report.left_out = verdict.left_out;
  locate_findings(scenario, report.findings);
  add_plan(*plan, report);
  add_routed(*plan, run, report);
  add_measurements(run, report);
  add_peak(*plan, report);
  report.routing = routing_reports(*plan, run);
  add_balanced_peaks(*plan, !run.has_numbers(), report);
  if (!report.routing.empty() && !run.has_numbers()) {
    report.notes.emplace_back(
        "nothing is computed: experts are taken to be loaded alike (balanced routing), in bytes, "
        "memory and padding");
  }
  const FullyShardSpec& fully_shard = scenario.fully_shard;
  add_prefetch_note(*plan, Phase::Forward, fully_shard.forward_prefetch, report);
  add_prefetch_note(*plan, Phase::Backward, fully_shard.backward_prefetch, report);
  report.losses = verdict.losses;
  report.grad_norms = verdict.grad_norms;
  report.drift = verdict.drift;
  if (run.has_numbers()) {
    add_baseline(reference, report);
    if (scenario.is_exact()) report.digest = digest_of(*plan, run, verdict.losses);
    add_notes(scenario, report);
  }
  apply_expect(scenario, run.has_numbers(), report);
  return report;
}

Report make_rejected_report(const Scenario& scenario, const std::string& backend,
                            const PlanRejected& rejected) {
  Report report = report_of(scenario, backend);
  report.outcome = Outcome::Fail;
  report.exit_code = 1;
  report.checks = rejected.checks().results;
  report.findings = rejected.findings();
  report.left_out = keep_told(report.findings);
  locate_findings(scenario, report.findings);
  return report;
}

Report make_error_report(const Scenario& scenario, const std::string& backend, const Error& error) {
  Report report = report_of(scenario, backend);
  report.exit_code = exit_code_of(error.kind());
  report.diagnostics = error.diagnostics();
  return report;
}

Report make_error_report(const std::string& file, const std::string& backend, const Error& error) {
  Report report;
  report.file = file;
  report.backend = backend;
  report.exit_code = exit_code_of(error.kind());
  report.diagnostics = error.diagnostics();
  return report;
}

double gradient_ratio(const Scenario& scenario) {
  const bool mean = scenario.training.loss_normalization == LossNormalization::LocalMean;
  const double loss_divisor = mean ? mean_divisor(scenario, scenario.num_data_ranks()) : 1;
  return scenario.fully_shard.gradient_scaling_factor * loss_divisor / gradient_divisor(scenario);
}

std::string format_factor(double factor) {
  const double inverse = 1 / factor;
  if (std::abs(factor) < 1 && factor != 0 && inverse == std::nearbyint(inverse)) {
    return fmt::format("1/{:.0f}", inverse);
  }
  return fmt::format("{:.6g}", factor);
}

}  // namespace hpsim
