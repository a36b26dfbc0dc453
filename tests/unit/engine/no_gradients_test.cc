// Kernels where some parameters have no gradient: what is left has the same bits.

#include "engine/embedding.h"
#include "engine/experts.h"
#include "engine/layer_norm.h"
#include "engine/linear.h"
#include "engine/rms_norm.h"
#include "kernel_checks.h"
#include "one_rank.h"
#include "support/catch.h"
#include "support/scenarios.h"

namespace hpsim {
namespace {

constexpr std::int64_t kRows = 6;
constexpr std::int64_t kIn = 5;
constexpr std::int64_t kOut = 7;

TEMPLATE_TEST_CASE("linear: the weight alone, the bias alone, none", "", float, double) {
  for (const Split& split : all_splits()) {
    Placed<TestType> x(drawn("x", kRows * kIn), 1), dy(drawn("dy", kRows * kOut), 2);
    Blocked<TestType> dw(kOut, kIn, split, 3), db(kOut, 1, split, 4);
    linear_parameter_gradients<TestType>(x.data(), dy.data(), kRows, dw.blocks(), db.blocks());
    Blocked<TestType> weight(kOut, kIn, split, 3), bias(kOut, 1, split, 4);
    linear_parameter_gradients<TestType>(x.data(), dy.data(), kRows, weight.blocks(), {});
    CHECK(same_bits(weight.values(), dw.values()));
    linear_parameter_gradients<TestType>(x.data(), dy.data(), kRows, {}, bias.blocks());
    CHECK(same_bits(bias.values(), db.values()));
    CHECK(weight.is_padding_intact());
    CHECK(bias.is_padding_intact());
    CHECK_NOTHROW(linear_parameter_gradients<TestType>(x.data(), dy.data(), kRows, {}, {}));
  }
}

TEMPLATE_TEST_CASE("norms: weight or bias alone, dx alone", "", float, double) {
  for (const Split& split : all_splits()) {
    Placed<TestType> x(drawn("x", kRows * kIn), 1), dy(drawn("dy", kRows * kIn), 2);
    Blocked<TestType> w(drawn("w", kIn), 1, split, 5);
    Placed<TestType> dx(kRows * kIn, 0), other(kRows * kIn, 0);
    Blocked<TestType> dw(kIn, 1, split, 3), db(kIn, 1, split, 4);
    layer_norm_backward<TestType>(x.data(), dy.data(), kRows, w.blocks(), 1e-5, dx.data(),
                                  dw.blocks(), db.blocks());
    Blocked<TestType> weight(kIn, 1, split, 3), bias(kIn, 1, split, 4);
    layer_norm_backward<TestType>(x.data(), dy.data(), kRows, w.blocks(), 1e-5, nullptr,
                                  weight.blocks(), {});
    CHECK(same_bits(weight.values(), dw.values()));
    layer_norm_backward<TestType>(x.data(), dy.data(), kRows, w.blocks(), 1e-5, nullptr, {},
                                  bias.blocks());
    CHECK(same_bits(bias.values(), db.values()));
    layer_norm_backward<TestType>(x.data(), dy.data(), kRows, w.blocks(), 1e-5, other.data(), {},
                                  {});
    CHECK(same_bits(other.values(), dx.values()));

    rms_norm_backward<TestType>(x.data(), dy.data(), kRows, w.blocks(), 1e-5, dx.data(),
                                dw.blocks());
    rms_norm_backward<TestType>(x.data(), dy.data(), kRows, w.blocks(), 1e-5, other.data(), {});
    CHECK(same_bits(other.values(), dx.values()));
    CHECK(weight.is_padding_intact());
    CHECK(bias.is_padding_intact());
  }
}

TEST_CASE("embedding: without a gradient nothing is written") {
  const double tokens[] = {0, 2, 1}, dy[] = {1, 2, 4};
  CHECK_NOTHROW(embedding_backward<double>(tokens, dy, 3, {}, 0));
  CHECK_NOTHROW(embedding_backward<double>(tokens, dy, 3, {}, 1));
}

TEMPLATE_TEST_CASE("experts: any of their weights alone", "", float, double) {
  const std::vector<std::int64_t> rows = {2, 0, 3};
  const ExpertsShape shape{3, 4, rows};
  Blocked<TestType> w1(drawn("w1", 36), 12, {}, 1), w2(drawn("w2", 36), 12, {}, 2);
  Blocked<TestType> w3(drawn("w3", 36), 12, {}, 3);
  Placed<TestType> x(drawn("x", 15), 0), dy(drawn("dy", 15), 0), y(15, 0);
  Placed<TestType> h1(20, 0), h3(20, 0), gate(20, 0), scratch(40, 0);
  const ExpertWeights<TestType> weights{w1.blocks(), w2.blocks(), w3.blocks()};
  experts_forward<TestType>(shape, weights, x.data(), h1.data(), h3.data(), gate.data(), y.data());
  const ExpertsInputs<TestType> inputs{x.data(), h1.data(), h3.data(), dy.data()};
  Placed<TestType> dx(15, 0);
  std::vector<Blocked<TestType>> all;
  for (int i = 0; i < 3; ++i)
    all.emplace_back(3, 12, Split{}, 0);
  experts_backward<TestType>(shape, weights, inputs,
                             {all[0].blocks(), all[1].blocks(), all[2].blocks()}, dx.data(),
                             scratch.data());
  for (unsigned wanted = 0; wanted < 8; ++wanted) {
    std::vector<Blocked<TestType>> some;
    for (int i = 0; i < 3; ++i)
      some.emplace_back(3, 12, Split{}, 0);
    const auto of = [&](unsigned i) {
      return (wanted >> i & 1) != 0 ? some[i].blocks() : RowBlocks<TestType>{};
    };
    Placed<TestType> other(15, 0);
    experts_backward<TestType>(shape, weights, inputs, {of(0), of(1), of(2)}, other.data(),
                               scratch.data());
    CAPTURE(wanted);
    CHECK(same_bits(other.values(), dx.values()));
    for (unsigned i = 0; i < 3; ++i) {
      if ((wanted >> i & 1) != 0) CHECK(same_bits(some[i].values(), all[i].values()));
    }
  }
}

TEST_CASE("memory: frozen parameters have no gradient, no slot, and nothing is poisoned for them") {
  // Weight 7 x 3 over two ranks is 4 and 3 rows of 3, bias 7 is 4 and 3.
  Scenario scenario = test::fsdp_scenario(test::modules_model({test::linear("l", 3, 7)}), 2);
  scenario.training.trained_from = {1, 0};
  OneRankOf<float> rank(scenario, Rank{1});
  rank.memory.begin_gradients(rank.backward());
  CHECK(rank.memory.whole_gradient(0).data == nullptr);
  CHECK(rank.memory.whole_gradient(0).rows == 0);
  REQUIRE(rank.memory.whole_gradient(1).data != nullptr);
  CHECK(rank.live(MemoryKind::UnshardedGradients) == 8 * 4);
  rank.memory.whole_gradient(1).each_block(
      [](float* block, std::int64_t, std::int64_t rows) { std::fill_n(block, rows, 2.0F); });
  CHECK_FALSE(rank.memory.end_gradients(rank.backward()));
  (void)rank.memory.begin_reduce_scatter(0);
  rank.memory.end_reduce_scatter(0);
  CHECK(rank.memory.row_elems(0) == 4);
  std::fill_n(rank.memory.arrived_row(0).data(), 4, 5.0F);
  rank.memory.arrived_row(0)[3] = 0;
  (void)rank.memory.add_arrived(0);
  CHECK_FALSE(rank.memory.store_gradients(0));
  CHECK(rank.memory.gradient(0) == nullptr);
  REQUIRE(rank.memory.gradient(1) != nullptr);
  CHECK(rank.memory.gradient(1)[2] == 5);
  CHECK(rank.live(MemoryKind::Gradients) == 3 * 4);
  rank.memory.drop_gradients();
  CHECK(rank.memory.gradient(1) == nullptr);
}

}  // namespace
}  // namespace hpsim
