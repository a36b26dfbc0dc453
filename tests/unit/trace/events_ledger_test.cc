// Memory around every step of a plan, by hand, and what must hold of it in any plan.

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "plan/build_plan.h"
#include "scenario/parse.h"
#include "support/catch.h"
#include "support/scenarios.h"
#include "trace/memory_profile.h"
#include "trace/plan_ledger.h"

namespace hpsim {
namespace {

using test::elementwise_model;
using test::fsdp_scenario;
using test::hsdp_scenario;
using test::linear;
using test::modules_model;
using enum MemoryKind;

std::int64_t bytes_of(const BytesByKind& bytes, MemoryKind kind) {
  return bytes[static_cast<std::size_t>(kind)];
}

/// As one number: sharded parameters, padding, unsharded parameters, unsharded gradients, reduce
/// buffers, gradients, optimizer state, activations.
std::vector<std::int64_t> list_of(const BytesByKind& bytes) {
  return {bytes.begin(), bytes.end()};
}

TEST_CASE("every step of the smallest uneven parameter, by hand") {
  // (7, 8) float32 over 4 ranks: the last rank has 8 elements and 8 of padding; all rows 64
  // elements, 256 B; inputs and targets of 2 samples 224 elements, 896 B.
  const Plan plan = build_plan(fsdp_scenario(elementwise_model({{"w", {7, 8}}}), 4));
  const PlannedMemory last = planned_memory(plan, {3});
  struct Row {
    StepKind kind;
    std::vector<std::int64_t> live_after;
    std::int64_t peak;
  };
  const std::vector<Row> rows = {
      {StepKind::Unshard, {32, 32, 256, 0, 0, 0, 0, 0}, 320},
      {StepKind::Forward, {32, 32, 256, 0, 0, 0, 0, 896}, 1216},
      {StepKind::Reshard, {32, 32, 0, 0, 0, 0, 0, 896}, 1216},
      {StepKind::Loss, {32, 32, 0, 0, 0, 0, 0, 896}, 960},
      {StepKind::Unshard, {32, 32, 256, 0, 0, 0, 0, 896}, 1216},
      {StepKind::Backward, {32, 32, 256, 256, 0, 0, 0, 0}, 1472},
      {StepKind::Reshard, {32, 32, 0, 256, 0, 0, 0, 0}, 576},
      // All rows of the gradients, until the own one has arrived.
      {StepKind::ReduceScatter, {32, 32, 0, 0, 64, 0, 0, 0}, 384},
      {StepKind::StoreGradient, {32, 32, 0, 0, 0, 32, 0, 0}, 160},
      {StepKind::Optimizer, {32, 32, 0, 0, 0, 0, 0, 0}, 96},
  };
  REQUIRE(last.events.size() == rows.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    CAPTURE(i);
    CHECK(plan.steps[i].kind == rows[i].kind);
    CHECK(list_of(last.events[i].live_after) == rows[i].live_after);
    CHECK(last.events[i].peak_total == rows[i].peak);
  }
  const MemoryProfile profile = planned_profile(plan);
  CHECK(profile.peak_step() == 5);
  // Rank 0 has 64 B of rows and no padding: each number is the most of any rank.
  CHECK(list_of(profile.events[0].live_after) ==
        std::vector<std::int64_t>{64, 32, 256, 0, 0, 0, 0, 0});
  CHECK(profile.events[0].total_after == 320);
}

TEST_CASE("peaks are those of the events, and events follow from each other") {
  std::vector<Scenario> scenarios = {
      fsdp_scenario(elementwise_model({{"a", {7, 8}}, {"b", {3}}}), 4),
      hsdp_scenario(modules_model({linear("l0", 6, 10), linear("l1", 10, 3)}), 2, 4)};
  scenarios[1].training.micro_batches = 2;
  scenarios[1].training.gradient_syncs = {false, true};
  for (Scenario& scenario : scenarios) {
    scenario.training.steps = 2;
    scenario.training.optimizer.kind = OptimizerSpec::Kind::Adam;
    const Plan plan = build_plan(scenario);
    const PlannedMemory memory =
        planned_memory(plan, Coordinate(static_cast<std::size_t>(plan.mesh().num_dims()), 0));
    std::int64_t before = total_of(memory.init.live());
    std::int64_t most = before;
    std::size_t step = 0;
    for (std::size_t i = 0; i < plan.steps.size(); ++i) {
      const MemoryEvent& event = memory.events[i];
      CHECK(event.peak_total >= std::max(before, total_of(event.live_after)));
      before = total_of(event.live_after);
      most = std::max(most, event.peak_total);
      if (plan.steps[i].kind == StepKind::Optimizer)
        CHECK(event.live_after == memory.live_after.at(step++));
    }
    CHECK(most == memory.ledger.peak_total());
    CHECK(memory.events.back().live_after == memory.ledger.live());
    CHECK(step == 2);
  }
}

TEST_CASE("parameters are made whole on cpu, and shard by shard on meta") {
  // Slots of 2·8 and 1·4 elements; the whole (7, 8) has 56.
  Scenario scenario = fsdp_scenario(elementwise_model({{"w", {7, 8}}, {"b", {4}}}), 4);
  const Plan cpu = build_plan(scenario);
  scenario.training.init_device = InitDevice::Meta;
  const Plan meta = build_plan(scenario);
  for (const std::int64_t rank : {0, 3}) {
    const Ledger on_cpu = planned_memory(cpu, {rank}).init;
    CHECK(on_cpu.peak_total() == (16 + 1 + 56) * 4);
    CHECK(bytes_of(on_cpu.peak(), UnshardedParameters) == 56 * 4);
    const Ledger on_meta = planned_memory(meta, {rank}).init;
    // The last rank draws its row of w apart, since padding follows it.
    CHECK(on_meta.peak_total() == (16 + 1 + (rank == 3 ? 8 : 0)) * 4);
    CHECK(bytes_of(on_meta.peak(), UnshardedParameters) == 0);
    CHECK(on_meta.live() == on_cpu.live());
    // Training does not know how its parameters came to be.
    CHECK(planned_memory(meta, {rank}).ledger.peak() == planned_memory(cpu, {rank}).ledger.peak());
    CHECK(planned_memory(meta, {rank}).events == planned_memory(cpu, {rank}).events);
  }
  // A rank that keeps all of a parameter throws nothing away.
  scenario.training.init_device = InitDevice::Cpu;
  scenario.fully_shard.shards_parameters = false;
  CHECK(planned_memory(build_plan(scenario), {0}).init.peak_total() == (56 + 4) * 4);
}

/// `count` equal units of 8 x 8: a row of 16 elements per rank of four, 64 in all.
Scenario equal_units(int count, bool has_replicas) {
  std::vector<ModuleSpec> modules;
  for (int i = 0; i < count; ++i)
    modules.push_back(linear(fmt::format("l{}", i), 8, 8, false));
  ModelSpec model = modules_model(std::move(modules));
  return has_replicas ? hsdp_scenario(std::move(model), 2, 4) : fsdp_scenario(std::move(model), 4);
}

/// `count` equal units of a norm and an mlp under sequence parallelism: a rank of fsdp 4, tp 2 has
/// 2 elements of the norm, whose gradient is Partial along tp, 8 of w1 and 8 of w2, which tp cuts:
/// a row of 18 elements, 72 in all.
Scenario equal_sequence_parallel_units(int count, bool has_replicas) {
  std::string modules;
  for (int i = 0; i < count; ++i) {
    modules += fmt::format(R"({}{{"name": "b{}", "type": "sequential", "modules": [
        {{"name": "norm", "type": "rms_norm", "dim": 8}},
        {{"name": "mlp", "type": "mlp", "dim": 8, "hidden": 8, "gated": false}}]}})",
                           i > 0 ? ", " : "", i);
  }
  const std::string mesh = has_replicas
                               ? R"({"shape": [2, 4, 2], "mesh_dim_names": ["rep", "fsdp", "tp"]})"
                               : R"({"shape": [4, 2], "mesh_dim_names": ["fsdp", "tp"]})";
  return parse_scenario(R"({"hpsim": 1, "mesh": )" + mesh + R"(, "model": [)" + modules + R"(],
          "parallelize": {"*.norm": "sequence_parallel", "*.mlp": "rowwise_sp"},
          "data": {"sample_shape": [4, 8]}})",
                        "test.json");
}

/// Policies under which gradients are reduced in every micro-batch.
std::vector<Scenario> policies_of(const Scenario& of_shards, const Scenario& of_replicas) {
  std::vector<Scenario> scenarios;
  for (const Scenario& base : {of_shards, of_replicas}) {
    const auto add = [&](auto&& change) {
      scenarios.push_back(base);
      change(scenarios.back());
    };
    add([](Scenario&) {});
    add([](Scenario& s) { s.fully_shard.reshard_after_forward = false; });
    add([](Scenario& s) { s.fully_shard.post_forward_size = 2; });
    add([](Scenario& s) { s.fully_shard.reshard_after_backward = false; });
    add([](Scenario& s) { s.fully_shard.fuses_collectives = false; });
    add([](Scenario& s) { s.fully_shard.mp_policy.reduce_dtype = DType::Float64; });
    add([](Scenario& s) { s.training.clip_grad_norm = ClipSpec{}; });
    add([](Scenario& s) { s.training.optimizer.kind = OptimizerSpec::Kind::Adam; });
    add([](Scenario& s) {
      s.training.micro_batches = 2;
      s.training.global_batch *= 2;
    });
  }
  return scenarios;
}

TEST_CASE("reduce buffers and whole gradients are those of one unit, however many there are") {
  // Of a unit: from its reduce-scatter, which makes its row, to its store, which comes before the
  // backward of the next unit; the rows of its gradients, of all ranks, from backward to reduction.
  // Parameters that are not fused are reduced and stored one after another.
  struct Kind {
    std::function<Scenario(int, bool)> make;
    std::int64_t row_elems;
    std::int64_t most_of_a_parameter;
  };
  for (const auto& [make, row_elems, most_of_a_parameter] :
       {Kind{equal_units, 16, 16}, Kind{equal_sequence_parallel_units, 18, 8}}) {
    for (int num_units = 1; num_units <= 12; ++num_units) {
      for (const Scenario& scenario : policies_of(make(num_units, false), make(num_units, true))) {
        const Plan plan = build_plan(scenario);
        const Coordinate first(static_cast<std::size_t>(plan.mesh().num_dims()), 0);
        const PlannedMemory memory = planned_memory(plan, first);
        const std::int64_t width = size_bytes(plan.bucket(0).reduce_dtype);
        CAPTURE(num_units, scenario.mesh.num_dims(), row_elems, width);
        const std::int64_t reduced =
            scenario.fully_shard.fuses_collectives ? row_elems : most_of_a_parameter;
        CHECK(bytes_of(memory.ledger.peak(), ReduceBuffers) == reduced * width);
        CHECK(bytes_of(memory.ledger.peak(), UnshardedGradients) == 4 * row_elems * width);
      }
    }
  }
  // What adds up over micro-batches waits in every unit.
  Scenario waiting = equal_units(12, false);
  waiting.training.micro_batches = 2;
  waiting.training.gradient_syncs = {false, true};
  const PlannedMemory memory = planned_memory(build_plan(waiting), {0});
  CHECK(bytes_of(memory.ledger.peak(), UnshardedGradients) >= 12 * 64 * 4);
}

TEST_CASE("even models have no padding in any event") {
  int num_even = 0;
  for (const std::int64_t ranks : {1, 2, 3, 4, 6}) {
    for (const std::int64_t rows : {ranks, 2 * ranks, 5 * ranks}) {
      for (const bool is_meta : {false, true}) {
        Scenario scenario = fsdp_scenario(
            modules_model({linear("l0", 3, rows), linear("l1", rows, 2 * ranks)}), ranks);
        scenario.training.steps = 2;
        scenario.training.init_device = is_meta ? InitDevice::Meta : InitDevice::Cpu;
        const Plan plan = build_plan(scenario);
        for (std::int64_t rank = 0; rank < ranks; ++rank) {
          const PlannedMemory memory = planned_memory(plan, {rank});
          CHECK(memory.pad_allocations == 0);
          CHECK(memory.pad_copies == 0);
          CHECK(bytes_of(memory.init.peak(), Padding) == 0);
          for (const MemoryEvent& event : memory.events) {
            if (bytes_of(event.live_after, Padding) != 0) FAIL("padding in an even model");
          }
          ++num_even;
        }
      }
    }
  }
  CHECK(num_even == 2 * 3 * (1 + 2 + 3 + 4 + 6));
}

TEST_CASE("the peak of an uneven model is that of an even one and the padding, byte for byte") {
  // 56 elements both times: rows 7 7 7 7 of 2, or 2 2 2 1 of 8 in slots of 16. At the peak,
  // backward, there are a slot, all slots as they were gathered, and all slots of gradients: 16, 64
  // and 64 elements in place of 14, 56 and 56, that is 2 + 8 + 8 of padding.
  const auto peaks = [](Shape shape) {
    const Plan plan = build_plan(fsdp_scenario(elementwise_model({{"w", std::move(shape)}}), 4));
    std::vector<std::int64_t> of_ranks;
    for (std::int64_t rank = 0; rank < 4; ++rank)
      of_ranks.push_back(planned_memory(plan, {rank}).ledger.peak_total());
    return of_ranks;
  };
  const std::int64_t even = (14 + 56 + 56 + 4 * 56) * 4;
  CHECK(peaks({28, 2}) == std::vector<std::int64_t>(4, even));
  CHECK(peaks({7, 8}) == std::vector<std::int64_t>(4, even + (2 + 8 + 8) * 4));
}

}  // namespace
}  // namespace hpsim
