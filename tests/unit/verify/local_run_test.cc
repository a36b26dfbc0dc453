#include "exec/local.h"

#include "baseline/eigen_baseline.h"
#include "exec/symbolic.h"
#include "plan/build_plan.h"
#include "plan/verify_plan.h"
#include "planted_run.h"
#include "support/catch.h"
#include "support/scenarios.h"
#include "verify/compare_runs.h"

namespace hpsim::test {
namespace {

using Ids = std::vector<CheckId>;

/// Runs one scenario and judges it as another: what differs between them is the fault.
Verdict judge_as(const Scenario& told, const Scenario& done) {
  const VerifiedPlan plan = verify_plan(build_plan(told));
  const RunResult run = LocalExecutor().run(verify_plan(build_plan(done)), {});
  return compare_runs(plan, run, run_baseline(told, states_before_steps(*plan, run)));
}

ModelSpec two_layers() {
  return modules_model({linear("l0", 5, 7), activation("a", ModuleType::Gelu), linear("l1", 7, 3)});
}

Scenario hsdp() {
  Scenario scenario = hsdp_scenario(two_layers(), 2, 3);
  scenario.training.steps = 3;
  return scenario;
}

void check_passes(const Scenario& scenario) {
  const Verdict verdict = judge_as(scenario, scenario);
  for (const Finding& finding : verdict.findings)
    UNSCOPED_INFO(finding.message);
  CHECK(verdict.passed());
}

TEST_CASE("what the local executor computes is what the baseline says") {
  check_passes(fsdp_scenario(elementwise_model({{"weight", {7, 8}}}), 4));
  check_passes(hsdp());
  Scenario adamw = hsdp();
  adamw.training.optimizer = {.kind = OptimizerSpec::Kind::AdamW, .lr = 0.01, .weight_decay = 0.1};
  check_passes(adamw);
  adamw.numerics.dtype = DType::Float64;
  check_passes(adamw);
  Scenario exact = fsdp_scenario(elementwise_model({{"weight", {7, 8}}, {"bias", {5}}}), 4);
  make_exact(exact);
  exact.training.steps = 20;
  check_passes(exact);
}

TEST_CASE("the numbers compared on HSDP are those of every copy") {
  const Verdict verdict = judge_as(hsdp(), hsdp());
  // 5*7 + 7 + 7*3 + 3 = 66 numbers on 2 replicas, 3 steps; initial parameters besides.
  CHECK(check_of(verdict, CheckId::GradientParity).compared == 66 * 2 * 3);
  CHECK(check_of(verdict, CheckId::ParameterParity).compared == 66 * 2 * 4);
  CHECK(check_of(verdict, CheckId::ReplicaAgreement).compared == 66 * (1 + 3 * 2));
}

TEST_CASE("a run without numbers is judged by the plan and its placements") {
  const VerifiedPlan plan = verify_plan(build_plan(hsdp()));
  const Verdict verdict = compare_runs(plan, SymbolicExecutor().run(plan, {}), {});
  CHECK(verdict.passed());
  Ids ids;
  for (const CheckResult& check : verdict.checks)
    ids.push_back(check.id);
  CHECK(ids ==
        Ids{CheckId::Coverage, CheckId::SyncSet, CheckId::PlanAgreement, CheckId::Placements});
  CHECK(verdict.losses.empty());
}

TEST_CASE("a sum where the mean was asked for is named by the number of data ranks") {
  Scenario sum = hsdp();
  sum.fully_shard.reduce_op = ReduceOp::Sum;
  const Verdict verdict = judge_as(hsdp(), sum);
  CHECK(failed_checks(verdict) ==
        Ids{CheckId::GradientParity, CheckId::ParameterParity, CheckId::GradNormParity});
  const Finding& finding = verdict.findings.at(0);
  CHECK(finding.code == FindingCode::GradScale);
  CHECK(finding.ratio == 6.0);
  CHECK(finding.explains == std::vector<std::string>{"D=6", "S*R=6", "F=6"});
  CHECK(finding.message.find("likewise on all 6 ranks, 4 parameters, 3 steps") !=
        std::string::npos);
}

TEST_CASE("a factor that is applied though nobody asked for it is found") {
  Scenario scaled = hsdp();
  scaled.fully_shard.gradient_scaling_factor = 2;
  const Verdict verdict = judge_as(hsdp(), scaled);
  CHECK(verdict.findings.at(0).code == FindingCode::GradScale);
  CHECK(verdict.findings.at(0).ratio == 2.0);
}

TEST_CASE("a wrong learning rate shows in the parameters alone") {
  Scenario fast = hsdp();
  fast.training.optimizer.lr = 0.11;
  CHECK(failed_checks(judge_as(hsdp(), fast)) == Ids{CheckId::ParameterParity});
}

TEST_CASE("a wrong momentum shows in state and parameters") {
  Scenario told = hsdp();
  told.training.optimizer.momentum = 0.9;
  Scenario done = told;
  done.training.optimizer.momentum = 0.8;
  CHECK(failed_checks(judge_as(told, done)) ==
        Ids{CheckId::ParameterParity, CheckId::OptimizerStateParity});
}

TEST_CASE("other data than told shows in loss and gradients from the first step on") {
  Scenario other = hsdp();
  other.data.input.bound = 1.01;
  const Verdict verdict = judge_as(hsdp(), other);
  CHECK(failed_checks(verdict) == Ids{CheckId::LossParity, CheckId::GradientParity,
                                      CheckId::ParameterParity, CheckId::GradNormParity});
  CHECK(verdict.findings.at(0).step == 0);
}

TEST_CASE("plans with other collectives are told apart") {
  Scenario kept = hsdp();
  kept.fully_shard.reshard_after_forward = false;
  // Kept parameters need no second gather, and both units are live at once.
  const Verdict verdict = judge_as(kept, hsdp());
  CHECK(failed_checks(verdict) == Ids{CheckId::PlanAgreement, CheckId::Ledger});
  CHECK(verdict.findings.at(0).code == FindingCode::CommCount);
  // Forward gathers 2 units, backward 0 or 2, then 2 reduce-scatters and 2 all-reduces; 3 steps.
  CHECK(verdict.findings.at(0).expected == 18.0);
  CHECK(verdict.findings.at(0).got == 24.0);
}

}  // namespace
}  // namespace hpsim::test
