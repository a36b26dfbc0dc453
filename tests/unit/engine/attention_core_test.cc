#include "engine/attention_core.h"

#include "kernel_checks.h"
#include "support/catch.h"

namespace hpsim {
namespace {

struct AttentionData {
  explicit AttentionData(const AttentionShape& of, double size = 1)
      : shape(of),
        q(drawn("q", query_elems(), size)),
        k(drawn("k", key_elems())),
        v(drawn("v", key_elems())),
        dy(drawn("dy", query_elems())) {}

  [[nodiscard]] std::int64_t query_elems() const {
    return shape.samples * shape.seq * shape.heads * shape.head_dim;
  }
  [[nodiscard]] std::int64_t key_elems() const {
    return shape.samples * shape.seq * shape.kv_heads * shape.head_dim;
  }
  /// Row of a head at a position.
  [[nodiscard]] const long double* row(const Reals& x, std::int64_t heads, std::int64_t sample,
                                       std::int64_t position, std::int64_t head) const {
    return x.data() + ((sample * shape.seq + position) * heads + head) * shape.head_dim;
  }
  /// y at one position and head, added to `y`.
  void add_position(std::int64_t sample, std::int64_t i, std::int64_t head, long double* y) const {
    const std::int64_t kv_head = head * shape.kv_heads / shape.heads;
    const std::int64_t seen = shape.causal ? i + 1 : shape.seq;
    const long double* q_row = row(q, shape.heads, sample, i, head);
    Reals scores;
    for (std::int64_t j = 0; j < seen; ++j) {
      const long double* k_row = row(k, shape.kv_heads, sample, j, kv_head);
      long double sum = 0;
      for (std::int64_t d = 0; d < shape.head_dim; ++d)
        sum += q_row[d] * k_row[d];
      scores.push_back(sum / std::sqrt(static_cast<long double>(shape.head_dim)));
    }
    const long double max = *std::max_element(scores.begin(), scores.end());
    long double total = 0;
    for (long double& score : scores)
      total += score = std::exp(score - max);
    for (std::int64_t j = 0; j < seen; ++j) {
      const long double* v_row = row(v, shape.kv_heads, sample, j, kv_head);
      for (std::int64_t d = 0; d < shape.head_dim; ++d)
        y[d] += scores[static_cast<std::size_t>(j)] / total * v_row[d];
    }
  }
  [[nodiscard]] Reals formula() const {
    Reals y(q.size(), 0);
    for (std::int64_t n = 0; n < shape.samples * shape.seq * shape.heads; ++n) {
      const std::int64_t position = n / shape.heads;
      add_position(position / shape.seq, position % shape.seq, n % shape.heads,
                   y.data() + n * shape.head_dim);
    }
    return y;
  }

  AttentionShape shape;
  Reals q, k, v, dy;
};

template <class T>
struct AttentionResults {
  std::vector<T> y, dq, dk, dv;
  bool intact = true;

  bool operator==(const AttentionResults& other) const {
    return same_bits(y, other.y) && same_bits(dq, other.dq) && same_bits(dk, other.dk) &&
           same_bits(dv, other.dv);
  }
};

template <class T>
AttentionResults<T> run(const AttentionData& data, std::int64_t offset) {
  const AttentionShape& shape = data.shape;
  const auto place = [&](std::int64_t factor) { return offset * factor % kOffsets; };
  Placed<T> q(data.q, place(1)), k(data.k, place(3)), v(data.v, place(5)), dy(data.dy, place(7));
  Placed<T> y(data.query_elems(), place(9)), dq(data.query_elems(), place(11));
  Placed<T> dk(data.key_elems(), place(13)), dv(data.key_elems(), place(15));
  Placed<T> scratch(attention_forward_scratch(shape), place(5));
  Placed<T> backward_scratch(attention_backward_scratch(shape), place(9));
  attention_core_forward(shape, q.data(), k.data(), v.data(), y.data(), scratch.data());
  attention_core_backward(shape, q.data(), k.data(), v.data(), dy.data(), dq.data(), dk.data(),
                          dv.data(), backward_scratch.data());
  return {y.values(), dq.values(), dk.values(), dv.values(),
          y.is_intact_around() && dq.is_intact_around() && dk.is_intact_around() &&
              dv.is_intact_around() && scratch.is_intact_around() &&
              backward_scratch.is_intact_around()};
}

/// Sums have at most group seq + head_dim terms under 2; fifth derivatives of a loss by one element
/// are under 100 times the number of the positions that it reaches.
template <class T>
long double tolerance(const AttentionShape& shape) {
  const std::int64_t group = shape.heads == 0 ? 0 : shape.heads / shape.kv_heads;
  const auto terms = static_cast<long double>(group * shape.seq + shape.head_dim + 8);
  return 16 * terms * std::numeric_limits<T>::epsilon() + 100 * terms * std::pow(kStep, 4) / 30;
}

template <class T>
void check_against_formula(const AttentionShape& shape) {
  AttentionData data(shape);
  const AttentionResults<T> got = run<T>(data, 0);
  const auto loss = [&] { return dot(data.formula(), data.dy); };
  CAPTURE(shape.samples, shape.seq, shape.heads, shape.kv_heads, shape.head_dim, shape.causal);
  CHECK(largest_difference(got.y, data.formula()) <= tolerance<T>(shape));
  CHECK(largest_difference(got.dq, gradient(loss, data.q)) <= tolerance<T>(shape));
  CHECK(largest_difference(got.dk, gradient(loss, data.k)) <= tolerance<T>(shape));
  CHECK(largest_difference(got.dv, gradient(loss, data.v)) <= tolerance<T>(shape));
  CHECK(got.intact);
}

TEMPLATE_TEST_CASE("attention: gradients that nothing needs are left out", "", float, double) {
  const AttentionShape shape{2, 5, 4, 2, 3};
  const AttentionData data(shape);
  const AttentionResults<TestType> all = run<TestType>(data, 0);
  Placed<TestType> q(data.q, 0), k(data.k, 0), v(data.v, 0), dy(data.dy, 0);
  Placed<TestType> scratch(attention_backward_scratch(shape), 0);
  for (int needed = 0; needed < 8; ++needed) {
    Placed<TestType> dq(data.query_elems(), 0), dk(data.key_elems(), 0), dv(data.key_elems(), 0);
    const bool needs_q = (needed & 1) != 0, needs_k = (needed & 2) != 0, needs_v = needed > 3;
    CAPTURE(needs_q, needs_k, needs_v);
    attention_core_backward<TestType>(shape, q.data(), k.data(), v.data(), dy.data(),
                                      needs_q ? dq.data() : nullptr, needs_k ? dk.data() : nullptr,
                                      needs_v ? dv.data() : nullptr, scratch.data());
    if (needs_q) CHECK(same_bits(dq.values(), all.dq));
    if (needs_k) CHECK(same_bits(dk.values(), all.dk));
    if (needs_v) CHECK(same_bits(dv.values(), all.dv));
  }
}

TEMPLATE_TEST_CASE("attention: values and gradients of its formula", "", float, double) {
  for (const bool causal : {true, false}) {
    for (const AttentionShape& shape : {AttentionShape{1, 1, 1, 1, 1},
                                        {1, 1, 2, 1, 3},
                                        {2, 5, 1, 1, 1},
                                        {1, 7, 2, 2, 5},
                                        {2, 3, 4, 2, 2},
                                        {1, 4, 6, 2, 3},
                                        {2, 6, 3, 1, 4}}) {
      AttentionShape tried = shape;
      tried.causal = causal;
      check_against_formula<TestType>(tried);
    }
  }
}

TEST_CASE("attention: nothing to do without samples or heads") {
  for (const AttentionShape& shape : {AttentionShape{2, 5, 0, 0, 4}, {0, 5, 2, 1, 4}}) {
    const auto got = run<float>(AttentionData(shape), 0);
    CHECK(got.y.empty());
    CHECK(got.dk.empty());
    CHECK(got.intact);
  }
  CHECK(attention_forward_scratch({2, 5, 0, 0, 4}) == 0);
  CHECK(attention_backward_scratch({2, 5, 0, 0, 4}) == 0);
}

TEST_CASE("attention: sequences of several tiles") {
  // 64 positions are worked on at once: the tiles have 64, 64 and 2.
  for (const bool causal : {true, false}) {
    const AttentionShape shape{1, 130, 2, 1, 2, causal};
    CHECK(attention_forward_scratch(shape) == 64 * 130);
    CHECK(attention_backward_scratch(shape) == 2 * 64 * 130);
    AttentionData data(shape);
    const auto got = run<double>(data, 0);
    CHECK(got.intact);
    CHECK(largest_difference(got.y, data.formula()) <= tolerance<double>(shape));
    const auto loss = [&] { return dot(data.formula(), data.dy); };
    const auto check = [&](const std::vector<double>& derivatives, Reals& x) {
      for (std::size_t i = 0; i < x.size(); i += x.size() / 7) {
        CHECK(std::abs(derivatives[i] - derivative(loss, x[i])) <= tolerance<double>(shape));
      }
    };
    check(got.dq, data.q);
    check(got.dk, data.k);
    check(got.dv, data.v);
  }
}

TEST_CASE("attention: large scores neither overflow nor vanish") {
  // Scores up to 2^14: exp of these is no float.
  const AttentionData data({1, 9, 1, 1, 4, true}, 0x1p13);
  const auto got = run<float>(data, 0);
  // Scores are off by up to 4 roundings of 2^15 / 2, probabilities by as much times 1.
  const long double off = 4 * std::numeric_limits<float>::epsilon() * 0x1p14L;
  CHECK(largest_difference(got.y, data.formula()) <= 2 * off);
  CHECK(std::all_of(got.dq.begin(), got.dq.end(), [](float x) { return std::isfinite(x); }));
}

TEST_CASE("attention by hand: the second of two causal positions") {
  // Scores of position 1: (0, ln 3) after the scale 1 / sqrt(4), so p = (1/4, 3/4).
  const double ln3 = std::log(3.0);
  const double q[] = {9, 9, 9, 9, 1, 0, 0, 0}, k[] = {0, 1, 1, 1, 2 * ln3, 5, 5, 5};
  const double v[] = {4, 0, 0, 8, 8, 0, 4, 0};
  double y[8], scratch[4];
  attention_core_forward({1, 2, 1, 1, 4, true}, q, k, v, y, scratch);
  const std::vector<double> expected = {4, 0, 0, 8, 7, 0, 3, 2};
  for (std::size_t i = 0; i < expected.size(); ++i)
    CHECK(y[i] == Approx(expected[i]).epsilon(1e-14));
}

TEST_CASE("attention: ranks with some of the heads have the bits of all heads") {
  // Six query heads and two key heads on two ranks.
  const AttentionShape shape{2, 9, 6, 2, 5, true};
  AttentionData whole(shape);
  const auto all = run<float>(whole, 0);
  for (const std::int64_t rank : {0, 1}) {
    AttentionData part({2, 9, 3, 1, 5, true});
    const auto cut = [&](const auto& x, std::int64_t local_width) {
      std::remove_cvref_t<decltype(x)> columns;
      for (std::int64_t n = 0; n < shape.samples * shape.seq; ++n) {
        const auto begin = x.begin() + (n * 2 + rank) * local_width;
        columns.insert(columns.end(), begin, begin + local_width);
      }
      return columns;
    };
    part.q = cut(whole.q, 15);
    part.k = cut(whole.k, 5);
    part.v = cut(whole.v, 5);
    part.dy = cut(whole.dy, 15);
    const auto got = run<float>(part, 0);
    CHECK(same_bits(got.y, cut(all.y, 15)));
    CHECK(same_bits(got.dq, cut(all.dq, 15)));
    CHECK(same_bits(got.dk, cut(all.dk, 5)));
    CHECK(same_bits(got.dv, cut(all.dv, 5)));
  }
}

TEMPLATE_TEST_CASE("attention: the same bits wherever buffers lie", "", float, double) {
  for (const AttentionShape& shape : {AttentionShape{1, 67, 2, 1, 19, true},
                                      {2, 23, 4, 2, 8, false},
                                      {2, 1, 3, 3, 37, true},
                                      {1, 70, 2, 2, 1, false},
                                      {1, 65, 1, 1, 33, true}}) {
    const AttentionData data(shape);
    const auto expected = run<TestType>(data, 0);
    for (std::int64_t offset = 1; offset < kOffsets; ++offset) {
      CAPTURE(shape.seq, shape.heads, shape.head_dim, offset);
      CHECK(run<TestType>(data, offset) == expected);
    }
  }
}

}  // namespace
}  // namespace hpsim
