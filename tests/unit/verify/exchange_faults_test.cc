// Every planted fault of exchanges that has a place in a scenario is found by its own check.

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "baseline/eigen_baseline.h"
#include "engine/faults/engine_fault.h"
#include "exec/local.h"
#include "plan/build_plan.h"
#include "plan/verify_plan.h"
#include "scenario/fault_catalog.h"
#include "scenario/faults/fault_tables.h"
#include "support/catch.h"
#include "support/scenarios.h"
#include "verify/compare_runs.h"

namespace hpsim {
namespace {

using test::activation;
using test::elementwise_model;
using test::fsdp_scenario;
using test::hsdp_scenario;
using test::linear;
using test::modules_model;

ModelSpec three_layers() {
  return modules_model({linear("l0", 6, 6), activation("a0", ModuleType::Gelu), linear("l1", 6, 6),
                        linear("l2", 6, 6)});
}

/// Layers of one size over replicas, micro-batches that only add up.
Scenario accumulating(Scenario scenario, bool reduces) {
  scenario.training.micro_batches = 3;
  scenario.training.global_batch = 3 * scenario.num_data_ranks();
  if (!reduces) scenario.training.gradient_syncs = {false, false, true};
  scenario.training.all_reduces = {false, false, true};
  return scenario;
}

/// Uneven shards, replicas, TP beside FSDP, prefetch, clipping, float16, unfused, averaged weights.
std::vector<Scenario> assorted() {
  std::vector<Scenario> all = {
      fsdp_scenario(elementwise_model({{"a", {7, 8}}, {"b", {5, 3}}}), 4),
      hsdp_scenario(three_layers(), 2, 2),
      hsdp_scenario(three_layers(), 4, 1),
      accumulating(fsdp_scenario(three_layers(), 4), false),
      accumulating(hsdp_scenario(three_layers(), 2, 2), false),
      accumulating(hsdp_scenario(three_layers(), 2, 2), true),
      accumulating(hsdp_scenario(three_layers(), 4, 1), true),
  };
  all[1].training.steps = 2;
  all[1].training.clip_grad_norm = ClipSpec{0.1, 2};
  all[2].fully_shard.fuses_collectives = false;
  Scenario prefetching = fsdp_scenario(three_layers(), 4);
  prefetching.fully_shard.forward_prefetch = 2;
  all.push_back(prefetching);
  Scenario narrow = fsdp_scenario(three_layers(), 4);
  narrow.fully_shard.mp_policy.reduce_dtype = DType::Float16;
  all.push_back(narrow);
  Scenario averaging = hsdp_scenario(three_layers(), 4, 1);
  averaging.fully_shard.sync_object = SyncObject::Weight;
  averaging.fully_shard.shards_parameters = false;
  all.push_back(averaging);
  Scenario cut = fsdp_scenario(modules_model({linear("up", 6, 8), linear("down", 8, 6)}), 2);
  cut.mesh = Mesh({2, 2}, {"fsdp", "tp"});
  cut.roles.tp_dim = 1;
  cut.styles = {ParallelStyle::Colwise, ParallelStyle::Rowwise};
  const Placement copy = Replicate{};
  cut.placements = {{copy, Shard{0}}, {copy, Shard{0}}, {copy, Shard{1}}, {copy, copy}};
  all.push_back(cut);
  return all;
}

/// Errors of the checks, and what a run ended with.
std::vector<CaughtAs> found_in(const Scenario& scenario) {
  std::vector<CaughtAs> found;
  try {
    const VerifiedPlan plan = verify_plan(build_plan(scenario));
    const RunResult run = LocalExecutor().run(plan, {});
    const ReferenceRun reference = run_baseline(plan->scenario, states_before_steps(*plan, run));
    for (const Finding& finding : compare_runs(plan, run, reference).findings) {
      if (finding.severity == Severity::Error) found.push_back({finding.check, finding.code});
    }
  } catch (const Error& error) {
    FAIL(error.what());
  }
  return found;
}

FaultSpec fault_of(const FaultKind& kind) {
  FaultSpec fault;
  fault.name = kind.name;
  fault.pointer = "/faults/0";
  return fault;
}

TEST_CASE("faults of exchanges are found by their own checks in all kinds of scenarios") {
  std::set<std::string_view> planted;
  for (const Scenario& right : assorted()) {
    CAPTURE(to_string(right.mesh.shape()), right.training.micro_batches);
    CHECK(found_in(right).empty());
    const Plan plan = build_plan(right);
    for (const FaultKind& kind : exchange_faults()) {
      CAPTURE(kind.name);
      Scenario wrong = right;
      wrong.faults = {fault_of(kind)};
      if (!has_place(plan, wrong.faults[0])) continue;
      planted.insert(kind.name);
      const std::vector<CaughtAs> found = found_in(wrong);
      CHECK(std::any_of(kind.caught_by.begin(), kind.caught_by.end(), [&](const CaughtAs& own) {
        return std::find(found.begin(), found.end(), own) != found.end();
      }));
    }
  }
  // All have a place in some of these but what needs experts, the sequence or tokens.
  for (const FaultKind& kind : exchange_faults()) {
    const std::set<std::string_view> others = {"skip_partial_all_reduce",  "skip_loss_collective",
                                               "expert_divisor_ep",        "expert_divisor_group",
                                               "token_order_swapped",      "combine_weight_missing",
                                               "dispatch_to_wrong_expert", "mean_of_means"};
    CAPTURE(kind.name);
    CHECK(planted.contains(kind.name) != others.contains(kind.name));
  }
}

TEST_CASE("a wrong factor is told with what it is") {
  Scenario scenario = hsdp_scenario(elementwise_model({{"w", {8, 2}}}), 2, 2);
  const auto explained = [&](const char* name) {
    FaultSpec fault;
    fault.name = name;
    fault.pointer = "/faults/0";
    scenario.faults = {fault};
    const VerifiedPlan plan = verify_plan(build_plan(scenario));
    const RunResult run = LocalExecutor().run(plan, {});
    const ReferenceRun reference = run_baseline(plan->scenario, states_before_steps(*plan, run));
    for (const Finding& finding : compare_runs(plan, run, reference).findings) {
      if (finding.code == FindingCode::GradScale) return finding.explains;
    }
    return std::vector<std::string>{};
  };
  const auto contains_text = [&](const char* name, const std::string& text) {
    const std::vector<std::string> texts = explained(name);
    return std::find(texts.begin(), texts.end(), text) != texts.end();
  };
  CHECK(contains_text("sum_for_avg", "D=4"));
  CHECK(contains_text("scale_twice", "1/D=1/4"));
  CHECK(contains_text("average_of_replicas_again", "1/R=1/2"));
  CHECK(contains_text("scale_by_numel", "1/numel=1/16"));
}

TEST_CASE("replicas that are fed identical data are warned of") {
  const auto warns = [](const Scenario& scenario) {
    const VerifiedPlan plan = verify_plan(build_plan(scenario));
    const RunResult run = LocalExecutor().run(plan, {});
    const ReferenceRun reference = run_baseline(plan->scenario, states_before_steps(*plan, run));
    const std::vector<Finding> findings = compare_runs(plan, run, reference).findings;
    return std::any_of(findings.begin(), findings.end(), [](const Finding& finding) {
      return finding.severity == Severity::Warning && finding.code == FindingCode::LossValue &&
             finding.message.starts_with("replicas fed identical data");
    });
  };
  Scenario scenario = hsdp_scenario(three_layers(), 2, 2);
  CHECK_FALSE(warns(scenario));
  FaultSpec fault;
  fault.name = "same_data_on_replicas";
  fault.pointer = "/faults/0";
  scenario.faults = {fault};
  CHECK(warns(scenario));
  // Where the batch is split over fsdp alone it is meant so.
  Scenario meant = hsdp_scenario(three_layers(), 2, 2);
  meant.data.data_dims = {1};
  meant.training.global_batch = 4;
  CHECK_FALSE(warns(meant));
}

}  // namespace
}  // namespace hpsim
