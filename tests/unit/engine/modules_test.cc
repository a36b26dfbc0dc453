#include <cmath>
#include <limits>
#include <vector>

#include "base/interval.h"
#include "engine/activations.h"
#include "engine/elementwise.h"
#include "engine/exactness.h"
#include "engine/linear.h"
#include "engine/optimizers.h"
#include "engine/row_blocks.h"
#include "support/catch.h"
#include "tensor/fill.h"

namespace hpsim {
namespace {

/// A parameter of `rows` x `cols` inside a bucket of `shards` rows, with room before and behind.
struct Gathered {
  Gathered(std::int64_t rows, std::int64_t cols, std::int64_t shards,
           Chunking chunking = Chunking::Ceil)
      : cut{.num_shards = shards, .chunking = chunking},
        blocks{.data = nullptr,
               .rows = rows,
               .row_elems = cols,
               .block_stride = padded_shard_length(rows, shards) * cols + 5,
               .num_blocks = shards,
               .cut = &cut},
        memory(static_cast<std::size_t>(blocks.block_stride * shards + 3), kCanary) {
    blocks.data = memory.data() + 3;
  }
  double& at(std::int64_t row, std::int64_t col) {
    std::int64_t block = 0;
    while (blocks.block_rows(block).end <= row)
      ++block;
    const std::int64_t inside = row - blocks.block_rows(block).begin;
    return blocks.data[block * blocks.block_stride + inside * blocks.row_elems + col];
  }
  /// Elements that still hold the canary.
  [[nodiscard]] std::int64_t untouched() const {
    std::int64_t count = 0;
    for (const double value : memory)
      count += value == kCanary ? 1 : 0;
    return count;
  }
  static constexpr double kCanary = 12345.678;
  ShardCut cut;
  RowBlocks<double> blocks;
  std::vector<double> memory;
};

double drawn(const char* name, std::int64_t i) {
  return value_at(fill_key(name, 7), i, {.kind = FillSpec::Kind::Integer, .max = 3, .scale = 1});
}

struct LinearCase {
  std::int64_t batch, in, out, shards;
};

TEST_CASE(
    "linear on row blocks equals plain loops, exactly on integers, and leaves padding alone") {
  for (const LinearCase c : {LinearCase{2, 3, 7, 4},
                             {1, 1, 1, 3},
                             {5, 4, 6, 4},
                             {3, 8, 2, 4},
                             {2, 5, 9, 1},
                             {16, 33, 31, 8}}) {
    Gathered w(c.out, c.in, c.shards), b(c.out, 1, c.shards);
    Gathered dw(c.out, c.in, c.shards), db(c.out, 1, c.shards);
    std::vector<double> x(static_cast<std::size_t>(c.batch * c.in));
    std::vector<double> dy(static_cast<std::size_t>(c.batch * c.out));
    std::vector<double> y(dy.size()), dx(x.size());
    for (std::int64_t o = 0; o < c.out; ++o) {
      for (std::int64_t i = 0; i < c.in; ++i)
        w.at(o, i) = drawn("w", o * c.in + i);
      b.at(o, 0) = drawn("b", o);
    }
    for (std::size_t i = 0; i < x.size(); ++i)
      x[i] = drawn("x", static_cast<std::int64_t>(i));
    for (std::size_t i = 0; i < dy.size(); ++i)
      dy[i] = drawn("dy", static_cast<std::int64_t>(i));

    linear_forward(x.data(), c.batch, w.blocks, b.blocks, y.data());
    linear_input_gradient(dy.data(), c.batch, w.blocks, dx.data());
    linear_parameter_gradients(x.data(), dy.data(), c.batch, dw.blocks, db.blocks);
    for (std::int64_t n = 0; n < c.batch; ++n) {
      for (std::int64_t o = 0; o < c.out; ++o) {
        double sum = b.at(o, 0);
        for (std::int64_t i = 0; i < c.in; ++i) {
          sum += x[static_cast<std::size_t>(n * c.in + i)] * w.at(o, i);
        }
        CHECK(y[static_cast<std::size_t>(n * c.out + o)] == sum);
      }
      for (std::int64_t i = 0; i < c.in; ++i) {
        double sum = 0;
        for (std::int64_t o = 0; o < c.out; ++o) {
          sum += dy[static_cast<std::size_t>(n * c.out + o)] * w.at(o, i);
        }
        CHECK(dx[static_cast<std::size_t>(n * c.in + i)] == sum);
      }
    }
    for (std::int64_t o = 0; o < c.out; ++o) {
      double bias_sum = 0;
      for (std::int64_t i = 0; i < c.in; ++i) {
        double sum = 0;
        for (std::int64_t n = 0; n < c.batch; ++n) {
          sum += dy[static_cast<std::size_t>(n * c.out + o)] *
                 x[static_cast<std::size_t>(n * c.in + i)];
        }
        CHECK(dw.at(o, i) == sum);
      }
      for (std::int64_t n = 0; n < c.batch; ++n)
        bias_sum += dy[static_cast<std::size_t>(n * c.out + o)];
      CHECK(db.at(o, 0) == bias_sum);
    }
    CHECK(dw.untouched() == static_cast<std::int64_t>(dw.memory.size()) - c.out * c.in);
    CHECK(db.untouched() == static_cast<std::int64_t>(db.memory.size()) - c.out);
  }
}

TEST_CASE("row blocks: every row once, in blocks that the cut says") {
  for (std::int64_t rows = 1; rows < 12; ++rows) {
    for (std::int64_t shards = 1; shards < 9; ++shards) {
      const Gathered p(rows, 3, shards, rows % 2 == 0 ? Chunking::Ceil : Chunking::Balanced);
      std::int64_t next = 0;
      p.blocks.each_block([&](const double*, std::int64_t first, std::int64_t count) {
        CHECK(first == next);
        next += count;
      });
      CHECK(next == rows);
    }
  }
}

TEST_CASE("activations: values of PyTorch's definitions, derivatives by central differences") {
  const ModuleSpec relu{.name = "", .type = ModuleType::Relu};
  const ModuleSpec tanh{.name = "", .type = ModuleType::Tanh};
  const ModuleSpec silu{.name = "", .type = ModuleType::Silu};
  const ModuleSpec gelu{.name = "", .type = ModuleType::Gelu};
  const ModuleSpec gelu_tanh{.name = "", .type = ModuleType::Gelu, .tanh_approximation = true};
  const auto value = [](const ModuleSpec& spec, double x) {
    double y = 0;
    activation_forward(spec, &x, 1, &y);
    return y;
  };
  // Within a few roundings of the closed forms.
  const double tolerance = 8 * std::numeric_limits<double>::epsilon();
  for (const double x : {-2.5, -0.3, 0.0, 0.7, 3.0}) {
    CHECK(value(relu, x) == std::max(x, 0.0));
    CHECK(std::abs(value(tanh, x) - std::tanh(x)) <= tolerance);
    CHECK(std::abs(value(silu, x) - x / (1 + std::exp(-x))) <= tolerance * 3);
    CHECK(std::abs(value(gelu, x) - x / 2 * std::erfc(-x / std::sqrt(2.0))) <= tolerance * 3);
    const double u = std::sqrt(2 / std::acos(-1.0)) * (x + 0.044715 * x * x * x);
    CHECK(std::abs(value(gelu_tanh, x) - x / 2 * (1 + std::tanh(u))) <= tolerance * 3);
  }
  // Truncation h²/6 |f'''|, |f'''| < 4 for all of these, plus rounding 4 eps / h.
  const double h = 1e-5;
  const double bound = h * h / 6 * 4 + 4 * std::numeric_limits<double>::epsilon() / h * 3;
  for (const ModuleSpec& spec : {tanh, silu, gelu, gelu_tanh}) {
    for (const double x : {-2.5, -0.3, 0.0, 0.7, 3.0}) {
      double dx = 0;
      const double dy = 1;
      activation_backward(spec, &x, &dy, 1, &dx);
      CHECK(std::abs(dx - (value(spec, x + h) - value(spec, x - h)) / (2 * h)) <= bound);
    }
  }
  const double zero = 0, dy = 5;
  double dx = -1;
  activation_backward(relu, &zero, &dy, 1, &dx);
  CHECK(dx == 0);
}

TEST_CASE("elementwise: loss and gradient by hand") {
  // One parameter of two rows over two shards, two samples.
  Gathered w(2, 1, 2), g(2, 1, 2);
  w.at(0, 0) = 2;
  w.at(1, 0) = -1;
  const std::vector<double> x = {1, 2, 3, 0}, t = {0, 1, 2, 4};
  // w x - t: (2, -3), (4, -4); halves of squares 2 + 4.5 + 8 + 8.
  CHECK(elementwise_loss_sum(w.blocks, x.data(), t.data(), 2) == 22.5);
  elementwise_gradient(w.blocks, x.data(), t.data(), 2, 4.0, g.blocks);
  CHECK(g.at(0, 0) == (1 * 2 + 3 * 4) / 4.0);
  CHECK(g.at(1, 0) == (2 * -3 + 0 * -4) / 4.0);
}

TEST_CASE("elementwise: the gradient does not depend on how it, or the weight, lies in blocks") {
  // 7 rows of 2: over 4 shards, over 2, over none; blocks of each lie elsewhere.
  std::vector<double> x, t;
  for (std::int64_t i = 0; i < 3 * 14; ++i) {
    x.push_back(drawn("x", i));
    t.push_back(drawn("t", i));
  }
  std::vector<double> expected;
  for (std::int64_t i = 0; i < 14; ++i) {
    double sum = 0;
    for (std::int64_t b = 0; b < 3; ++b) {
      const auto at = static_cast<std::size_t>(b * 14 + i);
      sum += x[at] * (drawn("w", i) * x[at] - t[at]);
    }
    expected.push_back(sum / 4);
  }
  const ElementwiseDTypes wide{DType::Float64, DType::Float64, DType::Float64};
  for (const std::int64_t shards_of_w : {1, 2, 4}) {
    for (const std::int64_t shards_of_g : {1, 2, 4}) {
      for (const std::int64_t more : {0, 6}) {  // other parameters in the row of the gradient
        Gathered w(7, 2, shards_of_w), g(7, 2, shards_of_g);
        Gathered room(7 + more, 2, shards_of_g);
        g.blocks.block_stride = room.blocks.block_stride;
        g.memory = room.memory;
        g.blocks.data = g.memory.data() + 3;
        for (std::int64_t i = 0; i < 14; ++i)
          w.at(i / 2, i % 2) = drawn("w", i);
        for (const bool is_rounded : {false, true}) {
          if (is_rounded) {
            elementwise_gradient(w.blocks, x.data(), t.data(), 3, 4.0, g.blocks, wide);
          } else {
            elementwise_gradient(w.blocks, x.data(), t.data(), 3, 4.0, g.blocks);
          }
          CAPTURE(shards_of_w, shards_of_g, more, is_rounded);
          for (std::int64_t i = 0; i < 14; ++i)
            CHECK(g.at(i / 2, i % 2) == expected[static_cast<std::size_t>(i)]);
          CHECK(g.untouched() == static_cast<std::int64_t>(g.memory.size()) - 14);
        }
      }
    }
  }
}

TEST_CASE("sgd by hand: decay, first buffer, momentum, nesterov") {
  double w = 4, buffer = 0, g = 2;
  OptimizerSpec spec{.kind = OptimizerSpec::Kind::Sgd, .lr = 0.5};
  optimizer_update<double>(spec, 0, {.weight = &w, .gradient = &g, .elems = 1});
  CHECK(w == 3);
  spec.weight_decay = 1;
  optimizer_update<double>(spec, 0, {.weight = &w, .gradient = &g, .elems = 1});
  CHECK(w == 3 - 0.5 * (2 + 3));
  w = 4;
  spec = {.kind = OptimizerSpec::Kind::Sgd, .lr = 0.5, .momentum = 0.5};
  buffer = 100;  // of no effect on the first step
  const OptimizedShard<double> shard{
      .weight = &w, .gradient = &g, .state = {&buffer, nullptr}, .elems = 1};
  optimizer_update(spec, 0, shard);
  CHECK(buffer == 2);
  CHECK(w == 3);
  optimizer_update(spec, 1, shard);
  CHECK(buffer == 3);
  CHECK(w == 1.5);
  spec.nesterov = true;
  optimizer_update(spec, 2, shard);
  CHECK(buffer == 3.5);
  CHECK(w == 1.5 - 0.5 * (2 + 0.5 * 3.5));
}

TEST_CASE("adam's first step moves by lr, whatever the gradient's scale; adamw decays first") {
  for (const double scale : {1e-3, 1.0, 1e3}) {
    double w = 1, m = 0, v = 0, g = scale;
    OptimizerSpec spec{.kind = OptimizerSpec::Kind::Adam, .lr = 0.25, .eps = 0};
    optimizer_update<double>(spec, 0,
                             {.weight = &w, .gradient = &g, .state = {&m, &v}, .elems = 1});
    CHECK(w == Approx(0.75).epsilon(1e-14));
    CHECK(m == Approx(0.1 * scale).epsilon(1e-14));
    CHECK(v == Approx(0.001 * scale * scale).epsilon(1e-14));
    spec.kind = OptimizerSpec::Kind::AdamW;
    spec.weight_decay = 0.5;
    w = 1, m = 0, v = 0;
    optimizer_update<double>(spec, 0,
                             {.weight = &w, .gradient = &g, .state = {&m, &v}, .elems = 1});
    CHECK(w == Approx(1 - 0.25 * 0.5 - 0.25).epsilon(1e-14));
  }
}

TEST_CASE("exact mode rounds weights to multiples, ties to even, then clamps") {
  OptimizerSpec spec;
  spec.round_to = 0.5;
  spec.clamp = 1;
  std::vector<double> w = {0.25, 0.75, 0.3, -0.25, 5, -7, 1.0};
  round_weights(spec, w.data(), static_cast<std::int64_t>(w.size()));
  CHECK(w == std::vector<double>{0, 1, 0.5, -0.0, 1, -1, 1});
}

TEST_CASE("the watch sees rounding, in scalar and in vector code, and nothing else") {
  std::vector<float> a(64, 3.0F), b(64, 0.0F);
  {
    const InexactWatch watch;
    for (std::size_t i = 0; i < a.size(); ++i)
      b[i] = a[i] * 5 + 1;
    CHECK_FALSE(watch.was_inexact());
  }
  a[63] = 1.0F + 0x1p-23F;
  {
    const InexactWatch watch;
    for (std::size_t i = 0; i < a.size(); ++i)
      b[i] = a[i] * a[i];
    CHECK(watch.was_inexact());
  }
  CHECK(b[63] > 1);
}

}  // namespace
}  // namespace hpsim
