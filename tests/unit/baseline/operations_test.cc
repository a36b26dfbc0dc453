// Operations of graphs in float32, on float32 numbers, against the errors that the baseline says
// they may have: every error lies within k standard deviations, some are near, and one term of any
// sum that is off by one part in 1000 passes them.

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "baseline/tracked_arithmetic.h"
#include "baseline/tracked_softmax.h"
#include "naive_ops.h"
#include "support/catch.h"

namespace hpsim {
namespace {

using test::NaiveOps;
using test::NaiveTensor;
using Tensors = std::vector<TrackedTensor>;
using Floats = std::vector<NaiveTensor<float>>;

constexpr double kUnit = 0x1p-24;
constexpr double kConfidence = 6.5;

struct Operation {
  std::string name;
  std::vector<std::pair<std::int64_t, std::int64_t>> shapes;
  std::int64_t num_tokens = 0;  ///< the last input is tokens
  std::function<Tensors(TrackedArithmetic&, const Tensors&)> claim;
  std::function<Floats(NaiveOps<float>&, const Floats&)> run;
  /// Share of its sums whose faults may stay within the bounds: of a hidden layer's, where silu or
  /// what it is multiplied by is near 0.
  double unseen_share = 0;
};

template <class Array>
Tensors listed(Array array) {
  return {std::make_move_iterator(array.begin()), std::make_move_iterator(array.end())};
}

ModuleSpec norm_spec(ModuleType type, double eps) {
  ModuleSpec spec;
  spec.type = type;
  spec.eps = eps;
  return spec;
}

ModuleSpec attention_spec(std::int64_t kv_heads, bool is_causal) {
  ModuleSpec spec;
  spec.type = ModuleType::AttentionCore;
  spec.heads = 4;
  spec.kv_heads = kv_heads;
  spec.head_dim = 8;
  spec.causal = is_causal;
  return spec;
}

void append_norms(std::vector<Operation>& all) {
  for (const ModuleSpec& spec :
       {norm_spec(ModuleType::LayerNorm, 1e-5), norm_spec(ModuleType::RmsNorm, 1e-6),
        norm_spec(ModuleType::LayerNorm, 0.5)}) {
    const std::string name(name_of(spec.type));
    const std::int64_t n = 24;
    all.push_back(
        {name,
         {{5, n}, {1, n}, {1, n}},
         0,
         [spec](auto& a, auto& t) { return Tensors{a.norm(spec, t[0], t[1], &t[2])}; },
         [spec](auto& a, auto& t) { return Floats{a.norm(spec, t[0], t[1], t[2].data.data())}; }});
    all.push_back(
        {name + " weight gradient",
         {{5, n}, {5, n}},
         0,
         [spec](auto& a, auto& t) { return Tensors{a.norm_weight_gradient(spec, t[0], t[1])}; },
         [spec](auto& a, auto& t) { return Floats{a.norm_weight_gradient(spec, t[0], t[1])}; }});
    all.push_back({name + " input gradient",
                   {{5, n}, {1, n}, {5, n}},
                   0,
                   [spec](auto& a, auto& t) {
                     return Tensors{a.norm_input_gradient(spec, t[0], t[1], t[2])};
                   },
                   [spec](auto& a, auto& t) {
                     return Floats{a.norm_input_gradient(spec, t[0], t[1], t[2])};
                   }});
  }
}

void append_attention(std::vector<Operation>& all) {
  constexpr std::int64_t kPositions = 6;
  for (const std::int64_t kv_heads : {4, 2, 1}) {
    for (const bool is_causal : {true, false}) {
      const ModuleSpec spec = attention_spec(kv_heads, is_causal);
      const std::string name = std::string(is_causal ? "causal " : "full ") + "attention over " +
                               std::to_string(kv_heads);
      const std::pair<std::int64_t, std::int64_t> q = {2 * kPositions, 32};
      const std::pair<std::int64_t, std::int64_t> k = {2 * kPositions, 8 * kv_heads};
      all.push_back({name,
                     {q, k, k},
                     0,
                     [spec](auto& a, auto& t) {
                       return Tensors{a.attention(spec, kPositions, t[0], t[1], t[2])};
                     },
                     [spec](auto& a, auto& t) {
                       return Floats{a.attention(spec, kPositions, t[0], t[1], t[2])};
                     }});
      all.push_back({name + " gradients",
                     {q, k, k, q},
                     0,
                     [spec](auto& a, auto& t) {
                       return listed(
                           a.attention_gradients(spec, kPositions, t[0], t[1], t[2], t[3]));
                     },
                     [spec](auto& a, auto& t) {
                       return a.attention_gradients(spec, kPositions, t[0], t[1], t[2], t[3]);
                     }});
    }
  }
}

/// 12 rows of 8 features by 5 experts of 6.
void append_experts(std::vector<Operation>& all) {
  for (const std::int64_t top_k : {1, 2, 5}) {
    ModuleSpec spec;
    spec.type = ModuleType::Experts;
    spec.in_features = 8;
    spec.hidden = 6;
    spec.num_experts = 5;
    spec.top_k = top_k;
    const std::string name = "top " + std::to_string(top_k) + " experts";
    all.push_back(
        {name,
         {{12, 8}, {12, 5}, {30, 8}, {40, 6}, {30, 8}},
         0,
         [spec](auto& a, auto& t) {
           return Tensors{a.experts(spec, t[0], t[1], t[2], t[3], t[4])};
         },
         [spec](auto& a, auto& t) { return Floats{a.experts(spec, t[0], t[1], t[2], t[3], t[4])}; },
         0.05});
    all.push_back({name + " gradients",
                   {{12, 8}, {12, 5}, {30, 8}, {40, 6}, {30, 8}, {12, 8}},
                   0,
                   [spec](auto& a, auto& t) {
                     return listed(a.experts_gradients(spec, t[0], t[1], t[2], t[3], t[4], t[5]));
                   },
                   [spec](auto& a, auto& t) {
                     return a.experts_gradients(spec, t[0], t[1], t[2], t[3], t[4], t[5]);
                   },
                   0.001});
  }
}

std::vector<Operation> operations() {
  std::vector<Operation> all;
  append_norms(all);
  append_attention(all);
  append_experts(all);
  all.push_back({"sum",
                 {{3, 4}, {3, 4}},
                 0,
                 [](auto& a, auto& t) { return Tensors{a.sum(t[0], t[1])}; },
                 [](auto& a, auto& t) { return Floats{a.add(t[0], t[1])}; }});
  all.push_back({"silu gate",
                 {{3, 4}, {3, 4}},
                 0,
                 [](auto& a, auto& t) { return Tensors{a.silu_gate(t[0], t[1])}; },
                 [](auto& a, auto& t) { return Floats{a.silu_gate(t[0], t[1])}; }});
  all.push_back({"silu gate gradients",
                 {{3, 4}, {3, 4}, {3, 4}},
                 0,
                 [](auto& a, auto& t) { return listed(a.silu_gate_gradients(t[0], t[1], t[2])); },
                 [](auto& a, auto& t) { return a.silu_gate_gradients(t[0], t[1], t[2]); }});
  all.push_back({"embedding gradient",
                 {{20, 4}, {20, 1}},
                 3,
                 [](auto& a, auto& t) { return Tensors{a.embedding_gradient(t[0], t[1], 3)}; },
                 [](auto& a, auto& t) { return Floats{a.embedding_gradient(t[0], t[1], 3)}; }});
  all.push_back({"cross entropy",
                 {{6, 9}, {6, 1}},
                 9,
                 [](auto& a, auto& t) { return Tensors{a.cross_entropy(t[0], t[1])}; },
                 [](auto& a, auto& t) { return Floats{a.cross_entropy(t[0], t[1])}; }});
  all.push_back({"cross entropy gradient",
                 {{6, 9}, {6, 1}},
                 9,
                 [](auto& a, auto& t) { return Tensors{a.cross_entropy_gradient(t[0], t[1])}; },
                 [](auto& a, auto& t) { return Floats{a.cross_entropy_gradient(t[0], t[1])}; }});
  return all;
}

/// Inputs of one trial: numbers of one of the sizes, around one of the offsets times it. Rows that
/// are alike but for a little take much away from a norm, or from an attention's gradients.
Floats draw_inputs(std::mt19937& random, const Operation& operation,
                   const std::vector<float>& sizes, const std::vector<float>& offsets) {
  std::uniform_real_distribution<float> value(-1, 1);
  const float size = sizes[random() % sizes.size()];
  Floats inputs;
  for (const auto& [rows, cols] : operation.shapes) {
    const float offset = size * offsets[random() % offsets.size()];
    NaiveTensor<float>& tensor = inputs.emplace_back(rows, cols);
    for (float& element : tensor.data)
      element = size * value(random) + offset;
  }
  if (operation.num_tokens > 0) {
    for (float& token : inputs.back().data)
      token = static_cast<float>(random() % static_cast<std::uint64_t>(operation.num_tokens));
  }
  return inputs;
}

Tensors claim(const Operation& operation, const Floats& inputs) {
  Tensors exact;
  for (const NaiveTensor<float>& input : inputs) {
    exact.push_back(
        {PlainTensor<double>(input.rows, input.cols, {input.data.begin(), input.data.end()}), {}});
  }
  TrackedArithmetic arithmetic(Rounding{kUnit, kConfidence, false});
  return operation.claim(arithmetic, exact);
}

/// Largest error over k standard deviations.
double worst_ratio(const Tensors& claimed, const Floats& got) {
  REQUIRE(claimed.size() == got.size());
  double worst = 0;
  for (std::size_t t = 0; t < got.size(); ++t) {
    REQUIRE(claimed[t].value.data.size() == got[t].data.size());
    for (std::size_t i = 0; i < got[t].data.size(); ++i) {
      const double error = std::abs(static_cast<double>(got[t].data[i]) - claimed[t].value.data[i]);
      if (error <= 0x1p-126) continue;  // underflow, which the baseline adds to bounds at the end
      worst = std::max(worst, error / (kConfidence * std::sqrt(claimed[t].variance[i])));
    }
  }
  return worst;
}

TEST_CASE("errors of operations in float32 lie within what is claimed, and near it") {
  for (const Operation& operation : operations()) {
    std::mt19937 random(11);
    double worst = 0;
    for (std::uint32_t trial = 0; trial < 300; ++trial) {
      const Floats inputs = draw_inputs(random, operation, {0.3F, 1, 4}, {0, 0, 1, 30});
      NaiveOps<float> naive(trial);
      const double ratio = worst_ratio(claim(operation, inputs), operation.run(naive, inputs));
      INFO(operation.name << " trial " << trial);
      CHECK(ratio <= 1);
      worst = std::max(worst, ratio);
    }
    INFO(operation.name);
    UNSCOPED_INFO("worst error " << worst << " of k standard deviations");
    CHECK(worst >= 0.02);
    CHECK(worst <= 0.5);
  }
}

// Keys and values that are alike leave gradients of queries that are small beside the sums that a
// row has in common: without what these round, errors would be 5.3 times what is claimed.
TEST_CASE("what a row of attention has in common is in the gradient of its query") {
  constexpr std::int64_t kPositions = 64;
  ModuleSpec spec = attention_spec(4, false);
  const Operation operation{
      "attention gradients",
      {},
      0,
      [spec](auto& a, auto& t) {
        return listed(a.attention_gradients(spec, kPositions, t[0], t[1], t[2], t[3]));
      },
      [spec](auto& a, auto& t) {
        return a.attention_gradients(spec, kPositions, t[0], t[1], t[2], t[3]);
      }};
  double worst = 0;
  std::mt19937 random(13);
  std::uniform_real_distribution<float> value(-1, 1);
  for (std::uint32_t trial = 0; trial < 8; ++trial) {
    Floats inputs;
    for (const auto& [size, offset] : {std::pair{0.01F, 0.0F}, {1, 30}, {1, 30}, {1, 0}}) {
      NaiveTensor<float>& tensor = inputs.emplace_back(kPositions, 32);
      for (float& element : tensor.data)
        element = size * value(random) + offset;
    }
    NaiveOps<float> naive(trial);
    worst = std::max(worst, worst_ratio(claim(operation, inputs), operation.run(naive, inputs)));
  }
  UNSCOPED_INFO("worst error " << worst << " of k standard deviations");
  CHECK(worst <= 0.5);
  CHECK(worst >= 0.02);
}

/// x and the router's rows, whose logits they make, then as of experts: the gradient of x through
/// the router alone.
Operation router_operation(const ModuleSpec& spec) {
  return {"router",
          {},
          0,
          [spec](auto& a, auto& t) {
            const auto logits = a.linear(t[0], t[1], nullptr);
            const auto ds = a.experts_gradients(spec, t[0], logits, t[2], t[3], t[4], t[5])[1];
            return Tensors{a.input_gradient(ds, t[1])};
          },
          [spec](auto& a, auto& t) {
            const auto logits = a.linear(t[0], t[1], nullptr);
            const auto ds = a.experts_gradients(spec, t[0], logits, t[2], t[3], t[4], t[5])[1];
            return Floats{a.input_gradient(ds, t[1])};
          }};
}

// Rows of a router and experts that are alike leave a gradient of x that is small beside the sums
// that a position has in common: without what these round, errors would be 5 times what is claimed,
// and 1.6 times if every logit took them as its own.
TEST_CASE("what a position's experts have in common is in the gradient by the router") {
  ModuleSpec spec;
  spec.type = ModuleType::Experts;
  spec.in_features = 4;
  spec.hidden = 2;
  spec.num_experts = 128;
  spec.top_k = 128;
  const Operation operation = router_operation(spec);
  double worst = 0;
  std::mt19937 random(15);
  std::uniform_real_distribution<float> value(-1, 1);
  for (std::uint32_t trial = 0; trial < 8; ++trial) {
    Floats inputs;
    const std::vector<std::pair<std::int64_t, std::int64_t>> shapes = {{16, 4},  {128, 4}, {256, 4},
                                                                       {512, 2}, {256, 4}, {16, 4}};
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      NaiveTensor<float>& tensor = inputs.emplace_back(shapes[i].first, shapes[i].second);
      const bool is_alike = i > 0 && i < 5;
      for (float& element : tensor.data)
        element = is_alike ? 1 + 0.001F * value(random) : value(random);
    }
    NaiveOps<float> naive(trial);
    worst = std::max(worst, worst_ratio(claim(operation, inputs), operation.run(naive, inputs)));
  }
  UNSCOPED_INFO("worst error " << worst << " of k standard deviations");
  CHECK(worst <= 0.5);
  CHECK(worst >= 0.02);
}

// 2 elements, the second up to 60 below the first: half a unit in the last place of the difference
// is 32u of exp, more than its sum and quotient round.
TEST_CASE("softmax claims what the differences to the largest element round") {
  std::mt19937 random(14);
  std::uniform_real_distribution<float> value(0, 60);
  double worst = 0;
  for (int trial = 0; trial < 1000; ++trial) {
    const float s[] = {value(random) / 8, -value(random)};
    RowMatrix<double> exact(1, 2);
    exact << static_cast<double>(s[0]), static_cast<double>(s[1]);
    const Rounding rounding{kUnit, kConfidence, false};
    const TrackedSoftmax row = softmax(rounding, exact, RowMatrix<double>::Zero(1, 2), false);
    const float power = std::exp(s[1] - s[0]);
    const double error = std::abs(static_cast<double>(power / (1 + power)) - row.p(0, 1));
    const double ratio = error / (kConfidence * std::sqrt(variance_of(rounding, row)(0, 1)));
    CHECK(ratio <= 1);
    worst = std::max(worst, ratio);
  }
  CHECK(worst >= 0.1);
  CHECK(worst <= 0.5);
}

bool are_equal(const Floats& a, const Floats& b) {
  return std::equal(a.begin(), a.end(), b.begin(),
                    [](const auto& x, const auto& y) { return x.data == y.data; });
}

TEST_CASE("one term of any sum of an operation off by one part in 1000 is seen") {
  std::int64_t num_seen = 0;
  std::int64_t num_without_effect = 0;
  for (const Operation& operation : operations()) {
    std::mt19937 random(12);
    const Floats inputs = draw_inputs(random, operation, {1}, {0});
    const Tensors claimed = claim(operation, inputs);
    NaiveOps<float> clean(1);
    const Floats right = operation.run(clean, inputs);
    std::int64_t num_unseen = 0;
    // Of many sums some, but of every kind: a step that divides no number of rows or features.
    std::int64_t stride = 1;
    if (clean.num_sums() > 150) stride = clean.num_sums() > 500 ? 7 : 3;
    for (std::int64_t sum = 0; sum < clean.num_sums(); sum += stride) {
      NaiveOps<float> faulty(1);
      faulty.plant(sum);
      const Floats wrong = operation.run(faulty, inputs);
      // The score of the only position that a row sees, or a token that no row has.
      if (are_equal(right, wrong)) {
        ++num_without_effect;
        continue;
      }
      INFO(operation.name << " sum " << sum << " of " << clean.num_sums());
      if (worst_ratio(claimed, wrong) > 1) {
        ++num_seen;
      } else if (operation.unseen_share > 0) {
        ++num_unseen;
      } else {
        CHECK(worst_ratio(claimed, wrong) > 1);
      }
    }
    INFO(operation.name);
    CHECK(static_cast<double>(num_unseen) <=
          std::max(1.0, operation.unseen_share * static_cast<double>(clean.num_sums() / stride)));
  }
  CHECK(num_seen > 1000);
  CHECK(num_without_effect < num_seen / 20);
}

}  // namespace
}  // namespace hpsim
