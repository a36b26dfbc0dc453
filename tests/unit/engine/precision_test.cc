// Numbers that are held in a wider dtype than they have: rounded once at every stage, by hand.

#include <cmath>
#include <vector>

#include "engine/elementwise.h"
#include "one_rank.h"
#include "support/catch.h"
#include "support/scenarios.h"

namespace hpsim {
namespace {

using OneRank = OneRankOf<float>;

/// Two passes on two ranks, gradients of both are reduced at the end.
Scenario in_two_passes(std::optional<DType> reduce, const Shape& shape = {2}) {
  Scenario scenario = test::fsdp_scenario(test::elementwise_model({{"w", shape}}), 2);
  scenario.fully_shard.mp_policy.param_dtype = DType::BFloat16;
  scenario.fully_shard.mp_policy.reduce_dtype = reduce;
  scenario.training.micro_batches = 2;
  scenario.training.gradient_syncs = {false, true};
  return scenario;
}

/// What the gradient becomes when these are left by the passes, and whether each rounded.
struct Added {
  float sum = 0;
  std::vector<bool> rounded;
};

Added add_up(const Scenario& scenario, const std::vector<float>& terms) {
  OneRank rank(scenario, Rank{0});
  Added added;
  for (std::size_t m = 0; m < terms.size(); ++m) {
    const Step& backward = rank.backward(0, 0, static_cast<std::int64_t>(m));
    rank.memory.begin_gradients(backward);
    rank.memory.whole_gradient(0).each_block(
        [&](float* block, std::int64_t, std::int64_t rows) { std::fill_n(block, rows, terms[m]); });
    added.rounded.push_back(rank.memory.end_gradients(backward));
  }
  const auto ends = rank.memory.begin_reduce_scatter(0);
  added.sum = ends.input[0];
  CHECK(ends.input[1] == added.sum);
  return added;
}

TEST_CASE("terms are rounded to the dtype of compute, their sum to that of reductions") {
  using Flags = std::vector<bool>;
  // bfloat16 has 8 bits: behind 1 comes 1 + 2^-7.
  const auto in_float = [](const std::vector<float>& terms) {
    return add_up(in_two_passes(DType::Float32), terms);
  };
  CHECK(in_float({1, 0x1p-8F}).sum == 1 + 0x1p-8F);
  CHECK(in_float({1, 0x1p-8F}).rounded == Flags{false, false});
  // Each term for itself: ties to even, 1 and 1 + 2^-6.
  CHECK(in_float({1 + 0x1p-8F, 0}).sum == 1);
  CHECK(in_float({1 + 0x1p-8F, 0}).rounded == Flags{true, false});
  CHECK(in_float({0, 1 + 0x1.8p-7F}).sum == 1 + 0x1p-6F);
  CHECK(in_float({0, 1 + 0x1.8p-7F}).rounded == Flags{false, true});
  // Sums in bfloat16 lose what is below.
  const auto in_brain = [](const std::vector<float>& terms) {
    return add_up(in_two_passes({}), terms);
  };
  CHECK(in_brain({1, 0x1p-8F}).sum == 1);
  CHECK(in_brain({1, 0x1p-8F}).rounded == Flags{false, true});
  CHECK(in_brain({1, 0x1p-7F}).sum == 1 + 0x1p-7F);
  CHECK(in_brain({1, 0x1p-7F}).rounded == Flags{false, false});
  // float16 overflows: 65504 is its largest, and no bfloat16.
  const auto in_half = [](const std::vector<float>& terms) {
    return add_up(in_two_passes(DType::Float16), terms);
  };
  CHECK(std::isinf(in_half({0x1p15F, 0x1p15F}).sum));
  CHECK(in_half({0x1p15F, -0x1p15F}).sum == 0);
}

TEST_CASE("rows that wait for their all-reduce add up in the dtype of reductions") {
  Scenario scenario = test::hsdp_scenario(test::elementwise_model({{"w", {2}}}), 2, 2);
  scenario.fully_shard.mp_policy.reduce_dtype = DType::BFloat16;
  scenario.training.micro_batches = 2;
  scenario.training.all_reduces = {false, true};
  OneRank rank(scenario, Rank{0});
  const float arrived[] = {1, 0x1p-8F};
  for (std::int64_t m = 0; m < 2; ++m) {
    rank.memory.begin_gradients(rank.backward(0, 0, m));
    rank.memory.whole_gradient(0).each_block(
        [&](float* block, std::int64_t, std::int64_t) { block[0] = 1; });
    (void)rank.memory.end_gradients(rank.backward(0, 0, m));
    (void)rank.memory.begin_reduce_scatter(0);
    rank.memory.end_reduce_scatter(0);
    REQUIRE(rank.memory.arrived_row(0).size() == 1);
    rank.memory.arrived_row(0)[0] = arrived[m];
    CHECK(rank.live(MemoryKind::ReduceBuffers) == 2 * (m + 1));
    CHECK(rank.memory.add_arrived(0) == (m == 1));
    CHECK(rank.live(MemoryKind::ReduceBuffers) == 2);
  }
  CHECK(rank.memory.reduced_row(0)[0] == 1);
}

TEST_CASE("stored gradients are rounded to the dtype of the parameter, and so is their sum") {
  Scenario scenario = test::fsdp_scenario(test::elementwise_model({{"w", {2}}}), 2);
  scenario.numerics.dtype = DType::BFloat16;
  scenario.fully_shard.mp_policy.reduce_dtype = DType::Float32;
  scenario.training.micro_batches = 2;
  OneRank rank(scenario, Rank{0});
  const float arrived[] = {1 + 0x1p-8F, 0x1p-8F};
  const float stored[] = {1, 1};
  for (std::int64_t m = 0; m < 2; ++m) {
    rank.memory.begin_gradients(rank.backward(0, 0, m));
    rank.memory.whole_gradient(0).each_block(
        [&](float* block, std::int64_t, std::int64_t) { block[0] = 0; });
    (void)rank.memory.end_gradients(rank.backward(0, 0, m));
    (void)rank.memory.begin_reduce_scatter(0);
    rank.memory.end_reduce_scatter(0);
    rank.memory.arrived_row(0)[0] = arrived[m];
    CHECK_FALSE(rank.memory.add_arrived(0));
    CHECK(rank.memory.store_gradients(0));
    CHECK(rank.memory.gradient(0)[0] == stored[m]);
  }
}

TEST_CASE("compute sees a rounded copy, cut or not; shards are what they were") {
  for (const bool is_cut : {true, false}) {
    Scenario scenario = in_two_passes({}, {4});
    scenario.fully_shard.shards_parameters = is_cut;
    OneRank rank(scenario, Rank{0});
    float* const shard = rank.memory.shard(0);
    shard[0] = 1 + 0x1p-8F;
    shard[1] = 3;
    const auto ends = rank.memory.begin_unshard(0);
    CHECK((ends.input == nullptr) == !is_cut);
    if (is_cut) {
      CHECK(ends.input != shard);
      CHECK(ends.input[0] == 1);
      CHECK(ends.input[1] == 3);
      CHECK(rank.live(MemoryKind::UnshardedParameters) == (2 + 4) * 2);
      std::copy_n(ends.input, 2, ends.output);
      std::fill_n(ends.output + 2, 2, 7.0F);
    }
    rank.memory.end_unshard(0);
    CHECK(rank.live(MemoryKind::UnshardedParameters) == 4 * 2);
    CHECK(rank.memory.whole(0).data[0] == 1);
    CHECK(rank.memory.whole(0).data[1] == 3);
    CHECK(shard[0] == 1 + 0x1p-8F);
    rank.memory.reshard(0, false);
    CHECK(rank.live(MemoryKind::UnshardedParameters) == 0);
  }
}

TEST_CASE("between forward and backward a rank keeps its part of k, and sends that") {
  Scenario scenario = test::fsdp_scenario(test::elementwise_model({{"w", {8}}}), 4);
  scenario.fully_shard.post_forward_size = 2;
  for (std::int64_t r = 0; r < 4; ++r) {
    OneRank rank(scenario, Rank{r});
    const auto first = rank.memory.begin_unshard(0);
    for (std::int64_t i = 0; i < 8; ++i)
      first.output[i] = static_cast<float>(i);
    rank.memory.end_unshard(0);
    rank.memory.reshard(0, true);
    CHECK(rank.live(MemoryKind::UnshardedParameters) == 4 * 4);
    const auto again = rank.memory.begin_unshard(0);
    for (std::int64_t i = 0; i < 4; ++i)
      CHECK(again.input[i] == static_cast<float>(r % 2 * 4 + i));
    CHECK(rank.live(MemoryKind::UnshardedParameters) == (4 + 8) * 4);
    rank.memory.end_unshard(0);
    CHECK(rank.live(MemoryKind::UnshardedParameters) == 8 * 4);
    rank.memory.reshard(0, false);
    CHECK(rank.live(MemoryKind::UnshardedParameters) == 0);
  }
}

TEST_CASE("padding is poisoned, zeroed and looked at, whatever the dtypes and micro-batches") {
  Scenario scenario = in_two_passes(DType::Float32, {7, 8});
  scenario.mesh = Mesh({4}, {"fsdp"});
  test::finish_scenario(scenario);
  OneRank rank(scenario, Rank{3});
  std::int64_t poisoned = 0;
  for (std::int64_t m = 0; m < 2; ++m) {
    const Step& backward = rank.backward(0, 0, m);
    rank.memory.begin_gradients(backward);
    const RowBlocks<float> rows = rank.memory.whole_gradient(0);
    if (m == 0) {
      for (std::int64_t i = 56; i < 64; ++i)
        poisoned += std::isnan(rows.data[i]) ? 1 : 0;
    }
    rows.each_block([&](float* block, std::int64_t, std::int64_t count) {
      std::fill_n(block, count * 8, 1.0F);
    });
    (void)rank.memory.end_gradients(backward);
  }
  CHECK(poisoned == 8);
  CHECK(rank.record.padding_checked == 0);
  const auto ends = rank.memory.begin_reduce_scatter(0);
  for (std::int64_t i = 0; i < 64; ++i)
    CHECK(ends.input[i] == (i < 56 ? 2 : 0));
  CHECK(rank.record.padding_checked == 8);
  CHECK(rank.record.padding_nonzero == 0);
}

TEST_CASE("an elementwise product is rounded, its loss is not, its gradient on the way back") {
  // 1.5 (1 + 2^-7) lies between 193 and 194 times 2^-7: to even.
  const float w = 1.5F, x = 1 + 0x1p-7F, t = 194 * 0x1p-7F - 1;
  float w_copy = w, g = 0;
  const RowBlocks<float> weight{.data = &w_copy, .rows = 1, .row_elems = 1};
  const RowBlocks<float> gradient{.data = &g, .rows = 1, .row_elems = 1};
  ElementwiseDTypes dtypes{DType::BFloat16, DType::BFloat16, DType::BFloat16};
  CHECK(elementwise_loss_sum(weight, &x, &t, 1, dtypes) == 0.5F);
  elementwise_gradient(weight, &x, &t, 1, 4.0F, gradient, dtypes);
  CHECK(g == x / 4);
  // Not rounded, the error is 2^-8 less than 1.
  const float error = 1 - 0x1p-8F;
  CHECK(elementwise_loss_sum(weight, &x, &t, 1) == error * error / 2);
  elementwise_gradient(weight, &x, &t, 1, 4.0F, gradient);
  CHECK(g == x * error / 4);
  // An error of 3 + 2^-7 over 1 is no bfloat16, whose spacing there is 2^-6; rounded, it is 3.
  const float low = 194 * 0x1p-7F - 3 - 0x1p-7F;
  elementwise_gradient(weight, &x, &low, 1, 1.0F, gradient, dtypes);
  CHECK(g == x * 3);
  // Given in float32, the gradient is rounded to the product's dtype all the same.
  dtypes.given = DType::Float32;
  elementwise_gradient(weight, &x, &low, 1, 1.0F, gradient, dtypes);
  CHECK(g == x * 3);
  // Products in float32 are not.
  dtypes.product = DType::Float32;
  CHECK(elementwise_loss_sum(weight, &x, &t, 1, dtypes) == error * error / 2);
}

TEST_CASE("sums over samples of an elementwise gradient are not rounded in between") {
  // Terms 1 and 2^-8 in bfloat16: their sum is the gradient, which RankMemory rounds once.
  float w = 1, g = 0;
  const RowBlocks<float> weight{.data = &w, .rows = 1, .row_elems = 1};
  const RowBlocks<float> gradient{.data = &g, .rows = 1, .row_elems = 1};
  const std::vector<float> x = {1, 0x1p-4F}, t = {0, 0};
  const ElementwiseDTypes dtypes{DType::BFloat16, DType::BFloat16, DType::BFloat16};
  elementwise_gradient(weight, x.data(), t.data(), 2, 1.0F, gradient, dtypes);
  CHECK(g == 1 + 0x1p-8F);
}

TEST_CASE("initial parameters are numbers of their dtype") {
  Scenario scenario = test::fsdp_scenario(test::elementwise_model({{"a", {8}}, {"b", {8}}}), 1);
  scenario.numerics.parameter_dtypes = {DType::BFloat16, DType::Float32};
  OneRank rank(scenario, Rank{0});
  std::int64_t foreign = 0;
  for (std::int64_t i = 0; i < 8; ++i) {
    CHECK(is_representable(DType::BFloat16, rank.memory.shard(0)[i]));
    foreign += is_representable(DType::BFloat16, rank.memory.shard(1)[i]) ? 0 : 1;
  }
  CHECK(foreign > 0);
  CHECK(rank.live(MemoryKind::ShardedParameters) == 8 * 2 + 8 * 4);
}

}  // namespace
}  // namespace hpsim
