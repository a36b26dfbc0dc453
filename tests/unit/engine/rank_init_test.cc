// How parameters come to be, and how they take other values: init_device, reset_sharded_param.

#include <algorithm>
#include <string>
#include <vector>

#include "base/check.h"
#include "engine/rank_memory.h"
#include "one_rank.h"
#include "support/catch.h"
#include "support/scenarios.h"

namespace hpsim {
namespace {

/// Rows 2 2 2 1 of 8: the last rank's slot has one row of padding.
Scenario uneven(InitDevice device, DType dtype = DType::Float32) {
  Scenario scenario = test::fsdp_scenario(test::elementwise_model({{"w", {7, 8}}}), 4);
  scenario.training.init_device = device;
  scenario.numerics.dtype = dtype;
  return scenario;
}

/// Memory whose parameters are known only.
template <class T>
struct OnMeta {
  OnMeta(const Scenario& scenario, Rank rank)
      : plan(build_plan(scenario)),
        result(result_for(plan)),
        record(result.rank_record(rank)),
        memory(plan, rank, result) {}

  Plan plan;
  RunResult result;
  RankRecord& record;
  RankMemory<T> memory;
};

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const InternalError& error) {
    return error.what();
  }
  return {};
}

bool contains(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

TEST_CASE("an optimizer that took its parameter on meta holds the one that is trained") {
  for (const InitDevice device : {InitDevice::Cpu, InitDevice::Meta}) {
    OnMeta<float> rank(uneven(device), Rank{3});
    const ShardedParameter<float>* const held = rank.memory.registered(0).get();
    CHECK(held->is_on_meta);
    CHECK(held->data == nullptr);
    CHECK(held->elems == 8);
    rank.memory.make_parameters();
    CHECK(rank.memory.registered(0).get() == held);
    CHECK_FALSE(held->is_on_meta);
    CHECK(held->data == rank.memory.shard(0));
    CHECK(held->elems == 8);
  }
}

TEST_CASE("nothing computes with a parameter on meta") {
  OnMeta<float> rank(uneven(InitDevice::Meta), Rank{3});
  for (const std::function<void()>& use :
       {std::function<void()>([&] { (void)rank.memory.begin_unshard(0); }),
        std::function<void()>([&] { (void)rank.memory.shard(0); }),
        std::function<void()>([&] { (void)rank.memory.whole(0); })}) {
    CHECK(contains(message_of(use),
                   "parameter \"w\" is still on meta: it must be materialized before training"));
  }
  CHECK(rank.record.ledger.peak_total() == 0);
}

TEST_CASE("the same bits on meta, on cpu, and from whole parameters that ranks share") {
  Scenario scenario = test::hsdp_scenario(
      test::elementwise_model({{"a", {7, 8}}, {"b", {3}}, {"c", {4, 2}}}), 2, 4);
  scenario.fully_shard.shard_placements.resize(3);
  scenario.fully_shard.shard_placements[0].dims = {1};
  scenario.numerics.dtype = DType::BFloat16;
  const Plan cpu = build_plan(scenario);
  scenario.training.init_device = InitDevice::Meta;
  const Plan meta = build_plan(scenario);
  SharedParameters shared(cpu);
  for (std::int64_t r = 0; r < 8; ++r) {
    RunResult of_cpu = result_for(cpu);
    RunResult of_shared = result_for(cpu);
    RunResult of_meta = result_for(meta);
    RankMemory<float> alone(cpu, Rank{r}, of_cpu);
    RankMemory<float> together(cpu, Rank{r}, of_shared);
    RankMemory<float> on_meta(meta, Rank{r}, of_meta);
    alone.make_parameters();
    together.make_parameters(&shared.of<float>());
    on_meta.make_parameters();
    for (int p = 0; p < 3; ++p) {
      const std::int64_t elems = alone.shard_elems(p);
      CHECK(std::equal(alone.shard(p), alone.shard(p) + elems, on_meta.shard(p)));
      CHECK(std::equal(alone.shard(p), alone.shard(p) + elems, together.shard(p)));
    }
    // What the process shares, each rank would have made for itself.
    CHECK(of_shared.rank_record(Rank{r}).init.peak() == of_cpu.rank_record(Rank{r}).init.peak());
    CHECK(of_cpu.rank_record(Rank{r}).init.live() == of_meta.rank_record(Rank{r}).init.live());
  }
}

TEST_CASE("the ledger tells the whole tensor on cpu, and on meta that there was none") {
  OneRankOf<float> cpu(uneven(InitDevice::Cpu), Rank{3});
  CHECK(cpu.record.init.peak_total() == (16 + 56) * 4);
  OneRankOf<float> meta(uneven(InitDevice::Meta), Rank{3});
  CHECK(meta.record.init.peak_total() == (16 + 8) * 4);
  OneRankOf<float> full(uneven(InitDevice::Meta), Rank{0});
  CHECK(full.record.init.peak_total() == 16 * 4);
  for (const auto* const record : {&cpu.record, &meta.record, &full.record}) {
    CHECK(record->ledger.peak_total() == 16 * 4);
    CHECK(record->ledger.peak() == record->ledger.live());
  }
}

TEST_CASE("a load puts values into the storage, rebuilds padding and keeps the object") {
  OneRankOf<float> rank(uneven(InitDevice::Cpu), Rank{3});
  const ShardedParameter<float>* const held = rank.memory.registered(0).get();
  float* const storage = rank.memory.shard(0);
  std::fill_n(storage + 8, 8, 5.0F);  // as a load of old padding would leave it
  const std::vector<float> loaded = {1, 2, 3, 4, 5, 6, 7, 8};
  rank.memory.reset_sharded_param(0, loaded.data(), 8, DType::Float32);
  CHECK(rank.memory.registered(0).get() == held);
  CHECK(held->data == storage);
  CHECK(std::equal(loaded.begin(), loaded.end(), storage));
  CHECK(std::count(storage + 8, storage + 16, 0.0F) == 8);
  // Of the padded slot only the prefix is taken.
  std::vector<float> padded(16, 9.0F);
  rank.memory.reset_sharded_param(0, padded.data(), 16, DType::Float32);
  CHECK(std::count(storage, storage + 8, 9.0F) == 8);
  CHECK(std::count(storage + 8, storage + 16, 0.0F) == 8);
  CHECK(rank.record.ledger.live() == rank.record.init.live());
  (void)rank.memory.begin_unshard(0);
  CHECK(rank.record.padding_nonzero == 0);
}

TEST_CASE("a reset to what is there does nothing, and an even shard has nothing to pad") {
  OneRankOf<float> rank(uneven(InitDevice::Meta), Rank{3});
  const std::int64_t copies = rank.record.pad_copies;
  rank.memory.reset_sharded_param(0, rank.memory.shard(0), 8, DType::Float32);
  CHECK(rank.record.pad_copies == copies);
  OneRankOf<float> full(uneven(InitDevice::Meta), Rank{0});
  CHECK(full.record.pad_copies == 0);
  CHECK(full.record.pad_allocations == 0);
  const std::vector<float> loaded(16, 1.0F);
  full.memory.reset_sharded_param(0, loaded.data(), 16, DType::Float32);
  CHECK(full.record.pad_copies == 0);
  CHECK(full.memory.shard(0)[15] == 1);
}

TEST_CASE("a change of dtype and back: bytes follow, padding is zero, the object stays") {
  OneRankOf<double> rank(uneven(InitDevice::Cpu, DType::Float64), Rank{3});
  const ShardedParameter<double>* const held = rank.memory.registered(0).get();
  CHECK(rank.live(MemoryKind::ShardedParameters) == 8 * 8);
  CHECK(rank.live(MemoryKind::Padding) == 8 * 8);
  std::vector<double> values(8, 1.0 / 3);
  round_to(DType::Float32, values.data(), 8);
  std::fill_n(rank.memory.shard(0) + 8, 8, 5.0);
  rank.memory.reset_sharded_param(0, values.data(), 8, DType::Float32);
  CHECK(rank.live(MemoryKind::ShardedParameters) == 8 * 4);
  CHECK(rank.live(MemoryKind::Padding) == 8 * 4);
  CHECK(held->dtype == DType::Float32);
  CHECK(contains(message_of([&] { (void)rank.memory.begin_unshard(0); }),
                 "parameter \"w\" was reset to float32, but its plan is of float64"));
  rank.memory.reset_sharded_param(0, values.data(), 8, DType::Float64);
  CHECK(rank.live(MemoryKind::ShardedParameters) == 8 * 8);
  CHECK(rank.live(MemoryKind::Padding) == 8 * 8);
  CHECK(rank.memory.registered(0).get() == held);
  CHECK(held->data == rank.memory.shard(0));
  CHECK(held->data[7] == static_cast<double>(static_cast<float>(1.0 / 3)));
  CHECK(std::count(held->data + 8, held->data + 16, 0.0) == 8);
  (void)rank.memory.begin_unshard(0);
  CHECK(rank.record.padding_nonzero == 0);
}

TEST_CASE("a local tensor of another size is refused by name, with all sizes") {
  OneRankOf<float> rank(uneven(InitDevice::Meta), Rank{3});
  const std::vector<float> values(64, 1.0F);
  const std::vector<float> before(rank.memory.shard(0), rank.memory.shard(0) + 16);
  for (const std::int64_t elems : {0, 7, 9, 56}) {
    CHECK(contains(message_of([&] {
                     rank.memory.reset_sharded_param(0, values.data(), elems, DType::Float32);
                   }),
                   "\"w\": a local tensor of " + std::to_string(elems) +
                       " elements is neither the true shard, 8, nor its padded slot, 16"));
  }
  CHECK(std::equal(before.begin(), before.end(), rank.memory.shard(0)));
}

TEST_CASE("empty shards are made and reset too") {
  Scenario scenario = test::fsdp_scenario(test::elementwise_model({{"w", {3}}}), 4);
  scenario.training.init_device = InitDevice::Meta;
  OneRankOf<float> rank(scenario, Rank{3});
  CHECK(rank.memory.registered(0)->elems == 0);
  CHECK_FALSE(rank.memory.registered(0)->is_on_meta);
  CHECK(rank.memory.shard(0)[0] == 0);  // all of its slot is padding
  rank.memory.reset_sharded_param(0, nullptr, 0, DType::Float32);
  CHECK(rank.live(MemoryKind::Padding) == 4);
  CHECK(rank.record.init.peak_total() == 4);
}

}  // namespace
}  // namespace hpsim
