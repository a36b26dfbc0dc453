#include "engine/rank_memory.h"

#include <cmath>
#include <cstdlib>
#include <memory>

#include "plan/build_plan.h"
#include "support/catch.h"
#include "support/scenarios.h"

namespace hpsim {
namespace {

/// One rank of a plan, and the block it records into.
struct OneRank {
  OneRank(Scenario scenario, Rank rank)
      : plan(build_plan(std::move(scenario))),
        result("test", ResultLayout(plan, true), zeroed(ResultLayout(plan, true).size_bytes())),
        record(result.rank_record(rank)),
        memory(plan, rank, result) {}

  static std::shared_ptr<std::byte> zeroed(std::int64_t bytes) {
    return {static_cast<std::byte*>(std::calloc(1, static_cast<std::size_t>(bytes))),
            [](std::byte* data) { std::free(data); }};
  }

  Plan plan;
  RunResult result;
  RankRecord& record;
  RankMemory<float> memory;
};

OneRank last_of_four() {
  // Rows 2 2 2 1: the last rank's slot has one row of padding.
  return {test::fsdp_scenario(test::elementwise_model({{"w", {7, 8}}}), 4), Rank{3}};
}

TEST_CASE("padding of gradients is poisoned when the buffer is taken, and zero when it is sent") {
  OneRank rank = last_of_four();
  for (int step = 0; step < 2; ++step) {
    rank.memory.begin_gradients(0);
    std::int64_t poisoned = 0;
    const float* const rows = rank.memory.whole_gradient(0).data;
    for (std::int64_t i = 56; i < 64; ++i)
      poisoned += std::isnan(rows[i]) ? 1 : 0;
    CHECK(poisoned == 8);
    const auto ends = rank.memory.begin_reduce_scatter(0);
    for (std::int64_t i = 56; i < 64; ++i)
      CHECK(ends.input[i] == 0);
    CHECK(rank.record.padding_checked == 8 * (step + 1));
    CHECK(rank.record.padding_nonzero == 0);
    rank.memory.end_reduce_scatter(0);
    rank.memory.store_gradients(0);
    rank.memory.drop_gradients();
  }
}

TEST_CASE("padding that is not zero is seen when it is sent: in a gather, and in a reduced row") {
  OneRank rank = last_of_four();
  rank.memory.enter_step(5);
  // What no optimizer may do: write behind the shard.
  rank.memory.shard(0)[rank.memory.shard_elems(0) + 2] = 1;
  (void)rank.memory.begin_unshard(0);
  CHECK(rank.record.padding_checked == 8);
  CHECK(rank.record.padding_nonzero == 1);
  CHECK(rank.record.first_nonzero_step == 5);
  CHECK(rank.record.first_nonzero_parameter == 0);

  rank.memory.begin_gradients(0);
  (void)rank.memory.begin_reduce_scatter(0);
  rank.memory.end_reduce_scatter(0);
  float* const row = rank.memory.reduced_row(0);
  for (std::int64_t i = 0; i < 16; ++i)
    row[i] = i < 8 ? 1.0F : 0.0F;
  CHECK(rank.memory.row_to_reduce(0) == row);
  CHECK(rank.record.padding_nonzero == 1);
  row[15] = std::nanf("");
  (void)rank.memory.row_to_reduce(0);
  CHECK(rank.record.padding_nonzero == 2);
}

TEST_CASE("shards are views of the communication storage: what is gathered is what is optimized") {
  OneRank rank = last_of_four();
  const auto ends = rank.memory.begin_unshard(0);
  CHECK(ends.input == rank.memory.shard(0));
  CHECK(rank.memory.shard_elems(0) == 8);
  for (std::int64_t i = 8; i < 16; ++i)
    CHECK(ends.input[i] == 0);
}

}  // namespace
}  // namespace hpsim
