#include "unit/report/sample_report.h"

#include <fmt/format.h>

namespace hpsim {
namespace {

CollectiveReport collective(std::int64_t seq, CollectiveOp op, Phase phase, double scale,
                            MeshDims dims, std::int64_t size, std::int64_t in, std::int64_t out) {
  return {.seq = seq,
          .phase = phase,
          .payload = 0,
          .spec = {.op = op,
                   .dims = std::move(dims),
                   .group_size = size,
                   .elems_in = in,
                   .elems_out = out,
                   .scale = scale}};
}

CheckResult check(CheckId id, std::int64_t compared, std::optional<double> ratio = {}) {
  CheckResult result{.id = id, .passed = true, .compared = compared};
  if (ratio) result.worst = WorstElement{"weight", 3, 0, *ratio};
  return result;
}

Scenario scenario_on(Mesh mesh) {
  Scenario scenario;
  scenario.name = "uneven";
  scenario.description = "7 rows over 4 ranks";
  scenario.file = "scenarios/fsdp/uneven.json";
  scenario.hash = "0123456789abcdef";
  scenario.mesh = std::move(mesh);
  scenario.training.global_batch = 8;
  return scenario;
}

Report report_of(Scenario scenario) {
  Report report;
  report.name = scenario.name;
  report.description = scenario.description;
  report.file = scenario.file;
  report.hash = scenario.hash;
  report.scenario = std::move(scenario);
  report.backend = "local";
  report.outcome = Outcome::Pass;
  report.exit_code = 0;
  report.payloads = {{"(root)", {"weight"}, {}, {}}};
  report.has_run = true;
  report.ledger.resize(kNumMemoryKinds);
  for (LedgerReport& kind : report.ledger)
    kind.after_step_bytes = {0};
  report.timing = {
      .start_s = 0.003, .connect_s = 0, .run_s = 0.004, .verify_s = 0.0121, .total_s = 0.0193};
  return report;
}

}  // namespace

Report sample_report() {
  Report report = report_of(scenario_on(Mesh({4}, {"fsdp"})));
  PlannedParameter weight;
  weight.name = "weight";
  weight.shape = {7, 8};
  weight.sharded = {RaggedShard{{0}, {2, 2, 2, 1}}};
  weight.unsharded = {Replicate{}};
  weight.sharded_group = {{0}, 4};
  weight.cut.num_shards = 4;
  weight.padded_elems = 16;
  report.parameters.push_back(weight);
  report.collectives = {
      collective(0, CollectiveOp::AllGather, Phase::Forward, 1, {0}, 4, 16, 64),
      collective(1, CollectiveOp::AllGather, Phase::Backward, 1, {0}, 4, 16, 64),
      collective(2, CollectiveOp::ReduceScatter, Phase::Backward, 0.25, {0}, 4, 64, 16)};
  report.checks = {check(CheckId::Coverage, 5),
                   check(CheckId::SyncSet, 1),
                   check(CheckId::PlanAgreement, 12),
                   check(CheckId::Placements, 4),
                   check(CheckId::LossParity, 1, 0.02),
                   check(CheckId::GradientParity, 56, 0.125),
                   check(CheckId::ParameterParity, 1234, 0.1)};
  report.losses = {0.421875};
  report.baseline_losses = {0.421875};
  report.grad_norms = {2};
  report.counters = {
      .pad_allocations = 1, .pad_copies = 2, .peak_unsharded_bytes = 256, .peak_bytes = 640};
  report.ledger[0] = {64, {64}};  // 2 rows of 8, 4 bytes each
  report.ledger[1] = {32, {32}};
  report.ledger[2] = {256, {0}};
  // The whole (7, 8) beside a slot while it is made; two events of a training.
  Ledger init;
  init.allocate(MemoryKind::ShardedParameters, 64);
  init.allocate(MemoryKind::UnshardedParameters, 224);
  report.memory.add(init, std::vector<MemoryEvent>{{{64, 32, 256, 0, 0, 0, 0, 0}, 640},
                                                   {{64, 32, 0, 0, 0, 0, 0, 0}, 352}});
  report.peak_at = "unshard of unit \"(root)\"";
  return report;
}

Report failed_report() {
  Report report = sample_report();
  report.outcome = Outcome::Fail;
  report.exit_code = 1;
  report.checks[5].passed = false;
  Finding error;
  error.code = FindingCode::GradScale;
  error.check = CheckId::GradientParity;
  error.param = "weight";
  error.rank = 3;
  error.coordinate = {3};
  error.step = 0;
  error.index = {6, 0};
  error.ratio = 4;
  error.explains = {"S=4"};
  error.message = "got 0.5, expected 0.125; 4 times the expected value: S=4";
  error.line = 6;
  error.column = 18;
  Finding warning;
  warning.code = FindingCode::SpecDisagrees;
  warning.severity = Severity::Warning;
  warning.check = CheckId::Placements;
  warning.param = "weight";
  warning.message = "torch has no name for 2 2 2 1";
  warning.line = 6;
  warning.column = 18;
  report.findings = {error, warning};
  return report;
}

Report large_report() {
  Report report = report_of(scenario_on(Mesh({2, 64}, {"rep", "fsdp"})));
  PlannedParameter weight;
  weight.name = "weight";
  weight.shape = {32, 64};
  weight.sharded = {Replicate{}, Shard{0}};
  weight.unsharded = {Replicate{}, Replicate{}};
  weight.sharded_group = {{1}, 64};
  weight.unsharded_group = {{0}, 2};
  weight.cut.num_shards = 64;
  weight.padded_elems = 64;
  report.parameters.push_back(weight);
  report.collectives = {collective(0, CollectiveOp::AllReduce, Phase::Backward, 1, {0}, 2, 64, 64)};
  report.checks = {check(CheckId::Coverage, 64)};
  return report;
}

Report error_report() {
  const Diagnostic diagnostic{.file = "b.json",
                              .message = "rank 1 died of signal 9",
                              .help = "ranks 0, 2 waited in all_gather"};
  return make_error_report("b.json", "gloo", Error(ErrorKind::RankFailure, {diagnostic}));
}

GoldenComparison golden_of(GoldenState state, std::size_t num_differences) {
  GoldenComparison golden{.file = "golden/fsdp/uneven.json", .state = state};
  for (std::size_t i = 0; i < num_differences; ++i)
    golden.differences.push_back({.section = "parameters", .message = fmt::format("d{}", i)});
  return golden;
}

}  // namespace hpsim
