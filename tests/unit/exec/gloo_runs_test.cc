// All-reduces that take the largest, and groups that are runs of consecutive members, over Gloo.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <vector>

#include "exec/gloo/gloo_executor.h"
#include "exec/gloo/supervisor.h"
#include "exec/local.h"
#include "exec/shared_memory.h"
#include "mesh/group.h"
#include "plan/build_plan.h"
#include "plan/verify_plan.h"
#include "support/catch.h"
#include "support/scenarios.h"
#include "trace/plan_ledger.h"

namespace hpsim {
namespace {

using test::elementwise_model;
using test::fsdp_scenario;
using test::hsdp_scenario;
using test::linear;
using test::modules_model;

/// Element i of what a rank sends: the largest of n ranks is that of rank i % n, all are below -1.
double sent(std::int64_t rank, std::int64_t i, std::int64_t num_ranks) {
  return rank == i % num_ranks ? -1.0 - static_cast<double>(i) / 1024
                               : -2000.0 - static_cast<double>(rank);
}

template <class T>
std::int64_t count_wrong(RankSession& session, RankGroup& group, DType dtype, std::int64_t elems,
                         std::uint64_t tag) {
  const auto num_ranks = static_cast<std::int64_t>(group.members.size());
  std::vector<T> values;
  for (std::int64_t i = 0; i < elems; ++i)
    values.push_back(static_cast<T>(sent(session.rank().value, i, num_ranks)));
  const CollectiveCall call{.op = CollectiveOp::AllReduce,
                            .dtype = dtype,
                            .input = values.data(),
                            .output = values.data(),
                            .elems_in = elems,
                            .elems_out = elems,
                            .takes_max = true};
  std::int64_t wrong = session.communicate(call, group, tag) ? 1 : 0;  // nothing is rounded
  for (std::int64_t i = 0; i < elems; ++i)
    wrong +=
        values[static_cast<std::size_t>(i)] != static_cast<T>(sent(i % num_ranks, i, num_ranks));
  return wrong;
}

TEST_CASE("an all-reduce takes the largest, in one round and in two, on 2 to 5 ranks") {
  for (std::int64_t n = 2; n <= 5; ++n) {
    const auto block = map_shared(2 * sizeof(std::atomic<std::int64_t>));
    auto* const counts = reinterpret_cast<std::atomic<std::int64_t>*>(block.get());
    const auto describe = [](std::int64_t) { return std::string("a case"); };
    RunOptions options;
    options.timeout_s = 60;
    run_ranks(n, options, describe, [&](RankSession& session) {
      RankGroup group{{}, 1, 0};
      for (std::int64_t rank = 0; rank < n; ++rank)
        group.members.push_back(Rank{rank});
      std::uint64_t tag = 5;
      for (const std::int64_t elems : {1, 7, 20'011}) {
        counts[0] += count_wrong<float>(session, group, DType::Float32, elems, tag++);
        counts[0] += count_wrong<double>(session, group, DType::Float64, elems, tag++);
        // A sum after a maximum is a sum again.
        double one = 1;
        const CollectiveCall call{0, CollectiveOp::AllReduce, DType::Float64, &one, &one, 1, 1};
        (void)session.communicate(call, group, tag++);
        counts[0] += one != static_cast<double>(n);
        counts[1] += 2 * elems;
      }
    });
    CAPTURE(n);
    CHECK(counts[0] == 0);
    CHECK(counts[1] == n * 2 * (1 + 7 + 20'011));
  }
}

VerifiedPlan verified(const Scenario& scenario) {
  return verify_plan(build_plan(scenario));
}

/// Parts of k between forward and backward; three micro-batches, which gather six times.
std::vector<Scenario> scenarios_in_runs() {
  std::vector<Scenario> scenarios = {
      fsdp_scenario(elementwise_model({{"a", {9, 5}}, {"b", {3}}}), 4),
      hsdp_scenario(modules_model({linear("l0", 6, 10), linear("l1", 10, 3)}), 2, 4),
      fsdp_scenario(modules_model({linear("l0", 6, 10)}), 6)};
  scenarios[1].mesh = Mesh({2, 4}, {"rep", "fsdp"}, {5, 1, 0, 4, 2, 3, 7, 6});
  for (Scenario& scenario : scenarios) {
    scenario.training.steps = 2;
    scenario.training.micro_batches = 3;
    scenario.training.global_batch = 3 * scenario.num_data_ranks();
    scenario.fully_shard.post_forward_size = 2;
  }
  scenarios[2].fully_shard.post_forward_size = 3;
  return scenarios;
}

TEST_CASE("every event of every rank over Gloo has the bytes that the plan tells") {
  std::vector<Scenario> scenarios = scenarios_in_runs();
  scenarios[1].training.optimizer.kind = OptimizerSpec::Kind::Adam;
  scenarios[2].training.init_device = InitDevice::Meta;
  int num_compared = 0;
  for (const Scenario& scenario : scenarios) {
    const VerifiedPlan plan = verified(scenario);
    const RunResult run = make_gloo_executor()->run(plan, {});
    for (std::int64_t r = 0; r < plan->mesh().num_ranks(); ++r) {
      const Rank rank{r};
      const PlannedMemory planned = planned_memory(*plan, plan->mesh().coordinate_of(rank));
      const auto events = run.memory_events(rank);
      REQUIRE(events.size() == planned.events.size());
      for (std::size_t i = 0; i < events.size(); ++i) {
        CAPTURE(r, i);
        REQUIRE(events[i] == planned.events[i]);
        ++num_compared;
      }
      CHECK(run.rank_record(rank).init.peak() == planned.init.peak());
      CHECK(run.rank_record(rank).init.peak_total() == planned.init.peak_total());
    }
  }
  CHECK(num_compared > 500);
}

bool same_parameters(const VerifiedPlan& plan, const RunResult& a, const VerifiedPlan& other,
                     const RunResult& b) {
  for (std::int64_t time = 0; time <= plan->scenario.training.steps; ++time) {
    if (assemble_state(*plan, a, time).parameters != assemble_state(*other, b, time).parameters)
      return false;
  }
  return true;
}

TEST_CASE("runs of k consecutive ranks gather what all ranks gather, on local and on Gloo") {
  for (const Scenario& scenario : scenarios_in_runs()) {
    const VerifiedPlan plan = verified(scenario);
    const auto num_in_runs =
        std::count_if(plan->steps.begin(), plan->steps.end(),
                      [](const Step& s) { return s.collective && s.collective->consecutive > 0; });
    CHECK(num_in_runs == 2 * 3 * static_cast<std::int64_t>(plan->buckets.size()));
    RunResult on_local = LocalExecutor().run(plan, {});
    RunResult on_gloo = make_gloo_executor()->run(plan, {});
    const std::int64_t size = on_local.layout().size_bytes();
    REQUIRE(on_gloo.layout().size_bytes() == size);
    CHECK(std::memcmp(on_gloo.bytes(0), on_local.bytes(0), static_cast<std::size_t>(size)) == 0);
    Scenario whole = scenario;
    whole.fully_shard.post_forward_size = 0;
    const VerifiedPlan plan_of_whole = verified(whole);
    CHECK(same_parameters(plan, on_local, plan_of_whole, LocalExecutor().run(plan_of_whole, {})));
  }
}

TEST_CASE("policies, partial gradients and clipping: gloo records what local records") {
  Scenario base = hsdp_scenario(modules_model({linear("l0", 6, 10), linear("l1", 10, 3)}), 2, 2);
  base.training.steps = 2;
  base.training.micro_batches = 2;
  base.training.global_batch = 2 * base.num_data_ranks();
  base.training.all_reduces = {false, true};
  base.training.optimizer.kind = OptimizerSpec::Kind::Adam;
  base.fully_shard.mp_policy = {.param_dtype = DType::BFloat16, .reduce_dtype = DType::Float32};
  std::vector<Scenario> scenarios(3, base);
  scenarios[0].training.clip_grad_norm = ClipSpec{.max_norm = 0.125, .norm_type = INFINITY};
  scenarios[1].training.clip_grad_norm = ClipSpec{.max_norm = 0.125, .norm_type = 3};
  scenarios[1].fully_shard.mp_policy.reduce_dtype = DType::Float16;
  scenarios[1].numerics.dtype = DType::Float64;
  scenarios[2].training.trained_from = {2, 0, 1, 0};
  scenarios[2].fully_shard.fuses_collectives = false;
  for (const Scenario& scenario : scenarios) {
    const VerifiedPlan plan = verified(scenario);
    RunResult on_local = LocalExecutor().run(plan, {});
    RunResult on_gloo = make_gloo_executor()->run(plan, {});
    const std::int64_t size = on_local.layout().size_bytes();
    REQUIRE(on_gloo.layout().size_bytes() == size);
    CHECK(std::memcmp(on_gloo.bytes(0), on_local.bytes(0), static_cast<std::size_t>(size)) == 0);
    CHECK(on_local.rank_record(Rank{0}).wire_checked > 0);
    CHECK(on_local.rank_record(Rank{0}).wire_foreign == 0);
  }
}

/// Uneven rows, casts, parts between passes, micro-batches, copies of what are no rows, and units
/// of which TP leaves a rank nothing.
std::vector<Scenario> scenarios_to_prefetch() {
  const ModelSpec model =
      modules_model({linear("l0", 6, 10), linear("l1", 10, 7), linear("l2", 7, 3)});
  std::vector<Scenario> scenarios(5, fsdp_scenario(model, 4));
  scenarios[1] = hsdp_scenario(model, 2, 2);
  scenarios[1].training.micro_batches = 2;
  scenarios[1].training.global_batch = 2 * scenarios[1].num_data_ranks();
  scenarios[1].fully_shard.reshard_after_backward = false;
  scenarios[1].fully_shard.fuses_collectives = false;
  scenarios[2].fully_shard.post_forward_size = 2;
  scenarios[2].fully_shard.mp_policy = {.param_dtype = DType::BFloat16};
  scenarios[3].fully_shard.replicate_params = {2, 5};
  scenarios[3].fully_shard.mp_policy = {.param_dtype = DType::Float64};
  scenarios[4] = fsdp_scenario(elementwise_model({{"a", {9, 5}}, {"b", {3}}, {"c", {8, 6}}}), 4);
  scenarios[4].units = assign_units(scenarios[4].model, scenarios[4].parameters, {"a", "b"}, true);
  scenarios[4].fully_shard.shard_placements = {{}, {}, {{0, 1}, {}}};
  scenarios[4].fully_shard.shard_placements[2].local_units = LocalUnits({1, 2, 3, 2});
  for (Scenario& scenario : scenarios)
    scenario.training.steps = 2;
  return scenarios;
}

TEST_CASE("prefetch: gloo records what local records, and both compute what they do without") {
  for (const Scenario& base : scenarios_to_prefetch()) {
    const VerifiedPlan without = verified(base);
    const RunResult expected = LocalExecutor().run(without, {});
    for (const std::int64_t ahead : {1, 2}) {
      Scenario scenario = base;
      scenario.fully_shard.forward_prefetch = ahead;
      scenario.fully_shard.backward_prefetch = 3 - ahead;
      const VerifiedPlan plan = verified(scenario);
      CHECK(std::any_of(plan->steps.begin(), plan->steps.end(),
                        [](const Step& step) { return step.is_async; }));
      RunResult on_local = LocalExecutor().run(plan, {});
      RunResult on_gloo = make_gloo_executor()->run(plan, {});
      const std::int64_t size = on_local.layout().size_bytes();
      REQUIRE(on_gloo.layout().size_bytes() == size);
      CHECK(std::memcmp(on_gloo.bytes(0), on_local.bytes(0), static_cast<std::size_t>(size)) == 0);
      CHECK(same_parameters(plan, on_gloo, without, expected));
      // Where each was completed is recorded: at once, or in the step that waits for it.
      std::int64_t num_ended_later = 0;
      for (std::int64_t i = 0; i < on_gloo.rank_record(Rank{0}).num_collectives; ++i) {
        const ExecutedCollective& executed = on_gloo.executed(Rank{0})[i];
        const Step& step = plan->steps[static_cast<std::size_t>(executed.plan_step)];
        CHECK((executed.completed_in > executed.plan_step) == step.is_async);
        num_ended_later += step.is_async ? 1 : 0;
      }
      CHECK(num_ended_later > 0);
    }
  }
}

}  // namespace
}  // namespace hpsim
