// Runs that average weights instead of gradients: what the checks compare, and what they find.

#include <algorithm>
#include <cmath>
#include <functional>

#include "baseline/eigen_baseline.h"
#include "exec/local.h"
#include "plan/build_plan.h"
#include "plan/verify_plan.h"
#include "planted_run.h"
#include "support/catch.h"
#include "support/scenarios.h"
#include "trace/rank_mean.h"
#include "verify/compare_runs.h"

namespace hpsim::test {
namespace {

using Ids = std::vector<CheckId>;

/// ep 2 x tp 3, the batch split over tp only: weights are averaged over tp, copies over ep agree.
/// "a" is copied, "b" cut over tp.
Scenario weight_scenario() {
  Scenario scenario;
  scenario.name = "built";
  scenario.mesh = Mesh({2, 3}, {"ep", "tp"});
  scenario.roles.ep_dim = 0;
  scenario.roles.tp_dim = 1;
  scenario.data.data_dims = {1};
  scenario.model = elementwise_model({{"a", {5, 3}}, {"b", {6}}});
  scenario.placements = {{Replicate{}, Replicate{}}, {Replicate{}, Shard{0}}};
  scenario.fully_shard.shards_parameters = false;
  scenario.fully_shard.sync_object = SyncObject::Weight;
  scenario.fully_shard.gradient_scaling_factor = 3;
  scenario.training.steps = 3;
  scenario.training.optimizer = {
      .lr = 0.05, .weight_decay = 0.01, .momentum = 0.9, .nesterov = true};
  finish_scenario(scenario);
  return scenario;
}

/// A run of it, and its judge.
struct WeightRun {
  explicit WeightRun(const Scenario& scenario = weight_scenario())
      : plan(verify_plan(build_plan(scenario))),
        run(LocalExecutor().run(plan, {})),
        reference(run_baseline(scenario, states_before_steps(*plan, run))) {}

  [[nodiscard]] Verdict judge() const { return compare_runs(plan, run, reference); }
  [[nodiscard]] float* at(std::int64_t offset) {
    return reinterpret_cast<float*>(run.bytes(offset));
  }
  [[nodiscard]] float* gradient(std::int64_t rank, std::int64_t step, int p = 0) {
    return at(run.layout().gradient(Rank{rank}, step, p));
  }
  [[nodiscard]] float* parameter(std::int64_t rank, std::int64_t time, int p = 0) {
    return at(run.layout().parameter(Rank{rank}, time, p));
  }
  [[nodiscard]] float* buffer(std::int64_t rank, std::int64_t step, int p = 0) {
    return at(run.layout().state(Rank{rank}, step, 0, p));
  }

  VerifiedPlan plan;
  RunResult run;
  ReferenceRun reference;
};

void check_passes(const Scenario& scenario) {
  const Verdict verdict = WeightRun(scenario).judge();
  for (const Finding& finding : verdict.findings)
    UNSCOPED_INFO(finding.message);
  CHECK(verdict.passed());
}

TEST_CASE("averaged weights are what the baseline makes of the mean gradient") {
  check_passes(weight_scenario());
  Scenario wide = weight_scenario();
  wide.numerics.dtype = DType::Float64;
  check_passes(wide);
  Scenario model = hsdp_scenario(
      modules_model({linear("l0", 5, 7), activation("a", ModuleType::Gelu), linear("l1", 7, 3)}), 2,
      3);
  model.fully_shard.shards_parameters = false;
  model.fully_shard.sync_object = SyncObject::Weight;
  model.training.steps = 3;
  model.training.optimizer.momentum = 0.9;
  check_passes(model);
}

/// Exact, on rep 2 x fsdp 4: the mean of weights and the sum of gradients train the same. Steps are
/// so large that ranks round to different weights if they round before they average.
void check_same_training(std::int64_t steps, double momentum) {
  Scenario exact = hsdp_scenario(elementwise_model({{"w", {7, 8}}, {"b", {5}}}), 2, 4);
  exact.fully_shard.shards_parameters = false;
  exact.fully_shard.sync_object = SyncObject::Weight;
  make_exact(exact);
  exact.training.steps = steps;
  exact.training.loss_normalization = LossNormalization::Sum;
  exact.training.optimizer.lr = 0.25;
  exact.training.optimizer.momentum = momentum;
  const WeightRun weights(exact);
  CHECK(weights.judge().passed());
  CHECK(assemble_state(*weights.plan, weights.run, 0).parameters !=
        assemble_state(*weights.plan, weights.run, steps).parameters);
  exact.fully_shard.sync_object = SyncObject::Grad;
  const WeightRun gradients(exact);
  for (std::int64_t time = 0; time <= steps; ++time) {
    const TrainingState a = assemble_state(*weights.plan, weights.run, time);
    const TrainingState b = assemble_state(*gradients.plan, gradients.run, time);
    CHECK(a.parameters == b.parameters);
    CHECK(a.state == b.state);
  }
}

TEST_CASE("in exact mode weights are rounded once averaged: equal to the last bit for many steps") {
  check_same_training(20, 0);
  // A buffer gains a bit per step.
  check_same_training(5, 0.5);
}

TEST_CASE("gradients of ranks differ, their mean is what is compared") {
  WeightRun planted;
  CHECK(planted.gradient(0, 0)[0] != planted.gradient(1, 0)[0]);
  CHECK(planted.gradient(0, 0)[0] == planted.gradient(3, 0)[0]);
  CHECK(planted.buffer(0, 1)[0] != planted.buffer(1, 1)[0]);
  CHECK(planted.parameter(0, 1)[0] == planted.parameter(1, 1)[0]);
  const Verdict verdict = planted.judge();
  // "a", 15 numbers: a mean for each of 2 ep ranks; "b", 6 numbers on 2 copies; 3 steps.
  CHECK(check_of(verdict, CheckId::GradientParity).compared == (15 * 2 + 6 * 2) * 3);
  CHECK(check_of(verdict, CheckId::OptimizerStateParity).compared == (15 * 2 + 6 * 2) * 3);
  // Weights on all 6 ranks, and the initial ones.
  CHECK(check_of(verdict, CheckId::ParameterParity).compared == (15 * 6 + 6 * 2) * 4);
  // Copies: weights of "a" on 5 ranks more, of "b" on one more; gradients and buffers once more.
  CHECK(check_of(verdict, CheckId::ReplicaAgreement).compared ==
        (15 * 5 + 6) * 4 + (15 * 3 + 6) * 2 * 3);
}

TEST_CASE("held state is the mean of the ranks, with their distance from it") {
  WeightRun planted;
  const TrainingState held = assemble_state(*planted.plan, planted.run, 2);
  const double x = planted.buffer(0, 1)[4];
  const double y = planted.buffer(1, 1)[4];
  const double z = planted.buffer(2, 1)[4];
  const double mean = (x + y + z) / 3;
  CHECK(held.state[0][0][4] == Approx(mean).epsilon(1e-15));
  CHECK(held.scatter[0][0][4] ==
        Approx((std::pow(x - mean, 2) + std::pow(y - mean, 2) + std::pow(z - mean, 2)) / 3));
  // "b" is cut: each rank holds its own part of one buffer.
  CHECK(held.state[0][1][5] == planted.buffer(2, 1, 1)[1]);
  CHECK(held.scatter[0][1].empty());
  CHECK(assemble_state(*planted.plan, planted.run, 0).scatter[0][0].empty());
}

/// Ids of the checks that fail after `plant`.
Ids failed_after(const std::function<void(WeightRun&)>& plant) {
  WeightRun planted;
  plant(planted);
  return failed_checks(planted.judge());
}

TEST_CASE("planted faults in the numbers of an averaging run are found") {
  CHECK(failed_after([](WeightRun&) {}).empty());
  // A gradient of one rank moves the mean, differs from its copy, and shows in the norm.
  CHECK(failed_after([](WeightRun& w) { w.gradient(4, 1)[7] += 1; }) ==
        Ids{CheckId::GradientParity, CheckId::GradNormParity, CheckId::ReplicaAgreement});
  // On both copies alike.
  CHECK(failed_after([](WeightRun& w) {
          for (const std::int64_t rank : {1, 4})
            w.gradient(rank, 1)[7] += 1;
        }) == Ids{CheckId::GradientParity, CheckId::GradNormParity});
  CHECK(failed_after([](WeightRun& w) { w.buffer(4, 1)[7] += 1; }) ==
        Ids{CheckId::OptimizerStateParity, CheckId::ReplicaAgreement});
  // One unit in the last place of one copy of a weight.
  CHECK(failed_after([](WeightRun& w) {
          float& weight = w.parameter(5, 2)[3];
          weight = std::nextafter(weight, 2.0F);
        }) == Ids{CheckId::ReplicaAgreement});
  CHECK(failed_after([](WeightRun& w) { w.run.step_record(Rank{2}, 0).norm_power *= 1.001; }) ==
        Ids{CheckId::GradNormParity});
}

TEST_CASE("the mean that is off is named with its dims and the first of its ranks") {
  WeightRun planted;
  planted.gradient(5, 1)[7] += 1;
  const Verdict verdict = planted.judge();
  const Finding& finding = verdict.findings.at(0);
  CHECK(finding.check == CheckId::GradientParity);
  CHECK(finding.param == "a");
  CHECK(finding.rank == 3);
  CHECK(finding.step == 1);
  CHECK(finding.index == std::vector<std::int64_t>{2, 1});
  CHECK(finding.message.find("mean over tp of the gradient of \"a\" on rank 3 (ep=1, tp=0)") !=
        std::string::npos);
}

TEST_CASE("weights that were never averaged, or before their update, are no update by the mean") {
  // Never: every rank goes on from its own update.
  const auto unaveraged = [](WeightRun& w) {
    for (std::int64_t rank = 0; rank < 6; ++rank) {
      for (std::int64_t i = 0; i < 15; ++i) {
        const float before = w.parameter(rank, 0)[i];
        const float g = w.gradient(rank, 0)[i] + 0.01F * before;
        w.parameter(rank, 1)[i] = before - 0.05F * (g + 0.9F * w.buffer(rank, 0)[i]);
      }
    }
  };
  CHECK(failed_after(unaveraged) == Ids{CheckId::ParameterParity, CheckId::ReplicaAgreement});
  // All copies are those of rank 0: they agree, and are wrong.
  CHECK(failed_after([&](WeightRun& w) {
          unaveraged(w);
          for (std::int64_t rank = 1; rank < 6; ++rank)
            std::copy_n(w.parameter(0, 1), 15, w.parameter(rank, 1));
        }) == Ids{CheckId::ParameterParity});
}

TEST_CASE("gradients that are divided twice, by F and by the mean, are named by that number") {
  WeightRun planted;
  for (std::int64_t rank = 0; rank < 6; ++rank) {
    for (std::int64_t step = 0; step < 3; ++step) {
      for (std::int64_t i = 0; i < 15; ++i)
        planted.gradient(rank, step)[i] /= 3;
    }
  }
  const Finding finding = planted.judge().findings.at(0);
  CHECK(finding.code == FindingCode::GradScale);
  CHECK(finding.ratio == 1.0 / 3);
}

TEST_CASE("a run that sums gradients instead makes the same weights: its collectives tell") {
  const Scenario told = weight_scenario();
  Scenario done = told;
  done.fully_shard.sync_object = SyncObject::Grad;
  const VerifiedPlan plan = verify_plan(build_plan(told));
  const RunResult run = LocalExecutor().run(verify_plan(build_plan(done)), {});
  const Verdict verdict =
      compare_runs(plan, run, run_baseline(told, states_before_steps(*plan, run)));
  CHECK(check_of(verdict, CheckId::GradientParity).passed);
  CHECK(check_of(verdict, CheckId::ParameterParity).passed);
  CHECK_FALSE(check_of(verdict, CheckId::PlanAgreement).passed);
}

TEST_CASE("a wrong learning rate shows in the averaged weights alone") {
  const WeightRun planted;
  Scenario told = weight_scenario();
  told.training.optimizer.lr = 0.051;
  const Verdict verdict =
      compare_runs(planted.plan, planted.run,
                   run_baseline(told, states_before_steps(*planted.plan, planted.run)));
  CHECK(failed_checks(verdict) == Ids{CheckId::ParameterParity});
}

}  // namespace
}  // namespace hpsim::test
