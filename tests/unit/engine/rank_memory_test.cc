#include "engine/rank_memory.h"

#include <algorithm>
#include <cmath>

#include "one_rank.h"
#include "support/catch.h"
#include "support/scenarios.h"

namespace hpsim {
namespace {

using OneRank = OneRankOf<float>;

/// Rows 2 2 2 1: the last rank's slot has one row of padding.
struct LastOfFour : OneRank {
  LastOfFour()
      : OneRank(test::fsdp_scenario(test::elementwise_model({{"w", {7, 8}}}), 4), Rank{3}) {}
};

TEST_CASE("padding of gradients is poisoned when the buffer is taken, and zero when it is sent") {
  LastOfFour rank;
  for (int step = 0; step < 2; ++step) {
    rank.memory.begin_gradients(rank.backward());
    std::int64_t poisoned = 0;
    float* const rows = rank.memory.whole_gradient(0).data;
    std::fill_n(rows, 56, 1.0F);
    for (std::int64_t i = 56; i < 64; ++i)
      poisoned += std::isnan(rows[i]) ? 1 : 0;
    CHECK(poisoned == 8);
    CHECK_FALSE(rank.memory.end_gradients(rank.backward()));
    const auto ends = rank.memory.begin_reduce_scatter(0);
    for (std::int64_t i = 56; i < 64; ++i)
      CHECK(ends.input[i] == 0);
    CHECK(rank.record.padding_checked == 8 * (step + 1));
    CHECK(rank.record.padding_nonzero == 0);
    rank.memory.end_reduce_scatter(0);
    CHECK_FALSE(rank.memory.add_arrived(0));
    CHECK_FALSE(rank.memory.store_gradients(0));
    rank.memory.drop_gradients();
  }
}

TEST_CASE("padding that is not zero is seen when it is sent: in a gather, and in a reduced row") {
  LastOfFour rank;
  rank.memory.enter_step(5);
  // What no optimizer may do: write behind the shard.
  rank.memory.shard(0)[rank.memory.shard_elems(0) + 2] = 1;
  (void)rank.memory.begin_unshard(0);
  CHECK(rank.record.padding_checked == 8);
  CHECK(rank.record.padding_nonzero == 1);
  CHECK(rank.record.first_nonzero_step == 5);
  CHECK(rank.record.first_nonzero_parameter == 0);

  rank.memory.begin_gradients(rank.backward());
  std::fill_n(rank.memory.whole_gradient(0).data, 56, 1.0F);
  (void)rank.memory.end_gradients(rank.backward());
  (void)rank.memory.begin_reduce_scatter(0);
  rank.memory.end_reduce_scatter(0);
  (void)rank.memory.add_arrived(0);
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
  LastOfFour rank;
  const float* const shard = rank.memory.shard(0);
  const auto ends = rank.memory.begin_unshard(0);
  CHECK(ends.input == shard);
  CHECK(rank.memory.shard_elems(0) == 8);
  for (std::int64_t i = 8; i < 16; ++i)
    CHECK(ends.input[i] == 0);
}

}  // namespace
}  // namespace hpsim
