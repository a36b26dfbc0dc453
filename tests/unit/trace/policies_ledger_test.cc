// Bytes of plans with narrow dtypes, micro-batches, parts of k and frozen parameters, by hand.

#include "base/error.h"
#include "plan/build_plan.h"
#include "support/catch.h"
#include "support/scenarios.h"
#include "trace/plan_ledger.h"
#include "trace/run_result.h"

namespace hpsim {
namespace {

using test::elementwise_model;
using test::fsdp_scenario;
using test::hsdp_scenario;
using test::linear;
using test::modules_model;

/// The rank at 0 along all dims.
struct Bytes {
  explicit Bytes(const Scenario& scenario)
      : plan(build_plan(scenario)),
        memory(planned_memory(plan,
                              Coordinate(static_cast<std::size_t>(plan.mesh().num_dims()), 0))) {}
  [[nodiscard]] std::int64_t peak(MemoryKind kind) const {
    return memory.ledger.peak()[static_cast<std::size_t>(kind)];
  }
  [[nodiscard]] std::int64_t live_after(MemoryKind kind, std::size_t step) const {
    return memory.live_after.at(step)[static_cast<std::size_t>(kind)];
  }
  [[nodiscard]] std::int64_t live(MemoryKind kind) const {
    return memory.ledger.live()[static_cast<std::size_t>(kind)];
  }

  Plan plan;
  PlannedMemory memory;
};

using enum MemoryKind;

/// w of 4 x 4 on two ranks: shards of 8, 16 gathered; two samples on each rank, one per pass where
/// there are two micro-batches.
Scenario square(std::optional<DType> param, std::optional<DType> reduce,
                std::int64_t micro_batches = 1) {
  Scenario scenario = fsdp_scenario(elementwise_model({{"w", {4, 4}}}), 2);
  scenario.fully_shard.mp_policy.param_dtype = param;
  scenario.fully_shard.mp_policy.reduce_dtype = reduce;
  scenario.training.micro_batches = micro_batches;
  scenario.training.optimizer.kind = OptimizerSpec::Kind::Adam;
  return scenario;
}

TEST_CASE("bfloat16 compute, float32 reductions: bytes are those of each stage's dtype") {
  const Bytes bytes(square(DType::BFloat16, DType::Float32));
  CHECK(bytes.peak(ShardedParameters) == 8 * 4);
  CHECK(bytes.peak(Padding) == 0);
  // While it is gathered, the row that was cast for it.
  CHECK(bytes.peak(UnshardedParameters) == 8 * 2 + 16 * 2);
  CHECK(bytes.peak(UnshardedGradients) == 16 * 4);
  CHECK(bytes.peak(ReduceBuffers) == 8 * 4);
  CHECK(bytes.peak(Gradients) == 8 * 4);
  CHECK(bytes.peak(OptimizerState) == 2 * 8 * 4);
  // Two samples: inputs in bfloat16, targets in float32.
  CHECK(bytes.peak(Activations) == 2 * 16 * (2 + 4));
  CHECK(bytes.live_after(UnshardedParameters, 0) == 0);
  CHECK(bytes.live_after(UnshardedGradients, 0) == 0);
  CHECK(bytes.live_after(ReduceBuffers, 0) == 0);
  CHECK(bytes.live_after(Gradients, 0) == 0);
  CHECK(bytes.live_after(OptimizerState, 0) == 2 * 8 * 4);
}

TEST_CASE("reductions in what compute leaves, all in bfloat16, inputs as they come") {
  const Bytes narrow(square(DType::BFloat16, {}));
  CHECK(narrow.peak(UnshardedGradients) == 16 * 2);
  CHECK(narrow.peak(ReduceBuffers) == 8 * 2);
  CHECK(narrow.peak(Gradients) == 8 * 4);
  const Bytes reduced(square({}, DType::Float16));
  CHECK(reduced.peak(UnshardedParameters) == 16 * 4);  // nothing is cast
  CHECK(reduced.peak(UnshardedGradients) == 16 * 2);
  Scenario own = square({}, {});
  own.numerics.dtype = DType::BFloat16;
  const Bytes all(own);
  CHECK(all.peak(ShardedParameters) == 8 * 2);
  CHECK(all.peak(UnshardedParameters) == 16 * 2);
  CHECK(all.peak(Gradients) == 8 * 2);
  CHECK(all.peak(OptimizerState) == 2 * 8 * 2);
  CHECK(all.peak(Activations) == 2 * 16 * (2 + 2));
  Scenario uncast = square(DType::BFloat16, {});
  uncast.fully_shard.mp_policy.cast_forward_inputs = false;
  CHECK(Bytes(uncast).peak(Activations) == 2 * 16 * (4 + 4));
}

TEST_CASE("what is cast but not cut is a copy while compute sees it") {
  Scenario scenario = square(DType::BFloat16, {});
  scenario.fully_shard.shards_parameters = false;
  const Bytes bytes(scenario);
  CHECK(bytes.peak(ShardedParameters) == 16 * 4);
  CHECK(bytes.peak(UnshardedParameters) == 16 * 2);
  CHECK(bytes.live_after(UnshardedParameters, 0) == 0);
  scenario.fully_shard.mp_policy = {};
  CHECK(Bytes(scenario).peak(UnshardedParameters) == 0);
}

TEST_CASE("padding counts in every row: 7 rows over 4 ranks are 2 2 2 1") {
  Scenario scenario = fsdp_scenario(elementwise_model({{"w", {7, 8}}}), 4);
  scenario.fully_shard.mp_policy.param_dtype = DType::BFloat16;
  scenario.fully_shard.mp_policy.reduce_dtype = DType::Float32;
  const Plan plan = build_plan(scenario);
  const PlannedMemory last = planned_memory(plan, {3});
  const auto peak = [&](MemoryKind kind) {
    return last.ledger.peak()[static_cast<std::size_t>(kind)];
  };
  CHECK(peak(ShardedParameters) == 8 * 4);
  CHECK(peak(Padding) == 8 * 4);
  CHECK(peak(UnshardedParameters) == (16 + 64) * 2);
  CHECK(peak(UnshardedGradients) == 64 * 4);
  CHECK(peak(ReduceBuffers) == 16 * 4);
  CHECK(peak(Gradients) == 8 * 4);
}

TEST_CASE("a gradient that is added lends memory of its own, in the dtype of compute") {
  // Both micro-batches reduce: nothing adds up before the store.
  CHECK(Bytes(square(DType::BFloat16, DType::Float32, 2)).peak(UnshardedGradients) == 16 * 4);
  Scenario scenario = square(DType::BFloat16, DType::Float32, 2);
  scenario.training.gradient_syncs = {false, true};
  const Bytes bytes(scenario);
  CHECK(bytes.peak(UnshardedGradients) == 16 * 4 + 16 * 2);
  CHECK(bytes.peak(ReduceBuffers) == 8 * 4);
  CHECK(bytes.peak(Activations) == 1 * 16 * (2 + 4));  // one sample per pass
  scenario.fully_shard.mp_policy.reduce_dtype.reset();
  CHECK(Bytes(scenario).peak(UnshardedGradients) == 16 * 2 + 16 * 2);
}

TEST_CASE("rows that wait for their all-reduce: two while one is added") {
  Scenario scenario = hsdp_scenario(elementwise_model({{"w", {4, 4}}}), 2, 2);
  scenario.training.micro_batches = 2;
  scenario.fully_shard.mp_policy.reduce_dtype = DType::BFloat16;
  CHECK(Bytes(scenario).peak(ReduceBuffers) == 8 * 2);
  scenario.training.all_reduces = {false, true};
  const Bytes bytes(scenario);
  CHECK(bytes.peak(ReduceBuffers) == 2 * 8 * 2);
  CHECK(bytes.live_after(ReduceBuffers, 0) == 0);
  CHECK(bytes.peak(UnshardedGradients) == 16 * 2);
  // Nothing waits where there are no replicas, whatever is said of all-reduces.
  Scenario cut = square({}, {}, 2);
  cut.training.all_reduces = {false, true};
  CHECK(Bytes(cut).peak(ReduceBuffers) == 8 * 4);
}

TEST_CASE("int k: a part of the whole stays between forward and backward, and is freed by it") {
  // Of 8 rows of 4 on four ranks a shard has 8 numbers, the whole 32, a part of two 16.
  Scenario scenario = fsdp_scenario(elementwise_model({{"w", {8, 4}}}), 4);
  scenario.fully_shard.post_forward_size = 2;
  const Bytes bytes(scenario);
  CHECK(bytes.peak(UnshardedParameters) == (32 + 16) * 4);
  CHECK(bytes.live_after(UnshardedParameters, 0) == 0);
  scenario.fully_shard.mp_policy.param_dtype = DType::BFloat16;
  CHECK(Bytes(scenario).peak(UnshardedParameters) == (32 + 16) * 2);
  // Two units: the part of the first one beside the whole of the second, and its part.
  Scenario units =
      fsdp_scenario(modules_model({linear("l0", 4, 8, false), linear("l1", 8, 4, false)}), 4);
  units.fully_shard.post_forward_size = 2;
  CHECK(Bytes(units).peak(UnshardedParameters) == (16 + 32 + 16) * 4);
}

TEST_CASE("what is begun is there from then on: the whole beside the one that computes") {
  // Two weights of 32 numbers on four ranks, shards of 8.
  Scenario scenario =
      fsdp_scenario(modules_model({linear("l0", 4, 8, false), linear("l1", 8, 4, false)}), 4);
  CHECK(Bytes(scenario).peak(UnshardedParameters) == 32 * 4);
  scenario.fully_shard.forward_prefetch = 1;
  CHECK(Bytes(scenario).peak(UnshardedParameters) == (32 + 32) * 4);
  CHECK(Bytes(scenario).live_after(UnshardedParameters, 0) == 0);
  // The row that is cast for it is needed until it is all there.
  scenario.fully_shard.mp_policy.param_dtype = DType::BFloat16;
  CHECK(Bytes(scenario).peak(UnshardedParameters) == (32 + 8 + 32) * 2);
  // So is the part of it that was kept: l1 whole, then half of l0 and the whole that is gathered.
  scenario.fully_shard = {};
  scenario.fully_shard.post_forward_size = 2;
  CHECK(Bytes(scenario).peak(UnshardedParameters) == (16 + 32 + 16) * 4);
  scenario.fully_shard.backward_prefetch = 1;
  CHECK(Bytes(scenario).peak(UnshardedParameters) == (32 + 16 + 32) * 4);
  CHECK(Bytes(scenario).live_after(UnshardedParameters, 0) == 0);
}

TEST_CASE("the copy of what are no rows is made when it is awaited") {
  // 16 numbers each; b is copied. Begun beside a: 16 and 16; a is freed before the copy of 16.
  Scenario scenario = fsdp_scenario(elementwise_model({{"a", {4, 4}}, {"b", {4, 4}}}), 2);
  scenario.units = assign_units(scenario.model, scenario.parameters, {"a", "b"}, true);
  scenario.fully_shard.shard_placements = {{}, {{0, 1}, LocalUnits({1, 1})}};
  scenario.fully_shard.forward_prefetch = 1;
  const Bytes bytes(scenario);
  CHECK(bytes.peak(UnshardedParameters) == (16 + 16) * 4);
  CHECK(bytes.live_after(UnshardedParameters, 0) == 0);
}

TEST_CASE("frozen parameters have neither gradients nor state, unfrozen ones from their step on") {
  Scenario scenario = fsdp_scenario(elementwise_model({{"a", {4}}, {"b", {8}}}), 2);
  scenario.training.steps = 3;
  scenario.training.optimizer.kind = OptimizerSpec::Kind::Adam;
  scenario.training.trained_from = {0, 1};
  const Bytes bytes(scenario);
  CHECK(bytes.peak(ShardedParameters) == (2 + 4) * 4);
  CHECK(bytes.peak(UnshardedParameters) == (4 + 8) * 4);
  CHECK(bytes.live_after(OptimizerState, 0) == 2 * 2 * 4);
  CHECK(bytes.live_after(OptimizerState, 1) == 2 * (2 + 4) * 4);
  CHECK(bytes.live_after(OptimizerState, 2) == 2 * (2 + 4) * 4);
  CHECK(bytes.peak(Gradients) == (2 + 4) * 4);
  CHECK(bytes.peak(UnshardedGradients) == (4 + 8) * 4);
  CHECK(bytes.peak(ReduceBuffers) == (2 + 4) * 4);
  scenario.training.trained_from = {0, 3};
  const Bytes frozen(scenario);
  CHECK(frozen.peak(OptimizerState) == 2 * 2 * 4);
  CHECK(frozen.peak(Gradients) == 2 * 4);
  CHECK(frozen.peak(UnshardedGradients) == 4 * 4);
  CHECK(frozen.peak(ReduceBuffers) == 2 * 4);
  CHECK(frozen.peak(UnshardedParameters) == (4 + 8) * 4);
}

TEST_CASE("a part that is left out keeps a copy of its input until its last module has computed") {
  // One sample of 4 on one rank: input 4, output of l0 4, and of l1 4, whose input is copied.
  Scenario scenario =
      fsdp_scenario(modules_model({linear("l0", 4, 4, false), linear("l1", 4, 4, false)}), 1);
  scenario.training.global_batch = 1;
  const std::int64_t all = Bytes(scenario).peak(Activations);
  scenario.data.inactive = {
      {.first = 1, .end = 2, .data_ranks = {0}, .steps = {0}, .micro_batches = {0}}};
  const Bytes bytes(scenario);
  // In backward of l1: input 4, output of l0 4, gradients of both sides of l1, 4 each, and around
  // it that of its output, 4.
  CHECK(all == 4 * 4 * 4);
  CHECK(bytes.peak(Activations) == 5 * 4 * 4);
  CHECK(bytes.live(Activations) == 0);
}

TEST_CASE("passes are numbered through a run") {
  Scenario scenario = fsdp_scenario(elementwise_model({{"w", {4}}}), 2);
  scenario.training.micro_batches = 2;
  scenario.training.steps = 2;
  Step step;
  step.step = 1;
  step.micro_batch = 1;
  CHECK(pass_of(scenario, step) == 3);
  step.micro_batch = 0;
  CHECK(pass_of(scenario, step) == 2);
}

/// 2^50 elements, 2^11 samples, 8 B of input and target per element: 2^64, which would wrap to 0.
TEST_CASE("bytes that no machine has are refused, not wrapped") {
  Scenario scenario = fsdp_scenario(elementwise_model({{"w", {1 << 25, 1 << 25}}}), 1);
  scenario.training.global_batch = 1 << 11;
  CHECK_THROWS_AS(Bytes(scenario), Error);
  scenario.training.global_batch = 1 << 8;
  CHECK(Bytes(scenario).peak(Activations) == std::int64_t{1} << 61);
}

}  // namespace
}  // namespace hpsim
