#include "engine/experts.h"

#include <numeric>

#include "kernel_checks.h"
#include "support/catch.h"

namespace hpsim {
namespace {

using Rows = std::vector<std::int64_t>;

struct ExpertsData {
  ExpertsData(std::int64_t of_dim, std::int64_t of_hidden, Rows of_rows)
      : dim(of_dim),
        hidden(of_hidden),
        rows(std::move(of_rows)),
        x(drawn("x", num_rows() * dim)),
        w1(drawn("w1", weight_elems())),
        w2(drawn("w2", weight_elems())),
        w3(drawn("w3", weight_elems())),
        dy(drawn("dy", num_rows() * dim)) {}

  [[nodiscard]] std::int64_t num_rows() const {
    return std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
  }
  [[nodiscard]] std::int64_t num_experts() const { return static_cast<std::int64_t>(rows.size()); }
  [[nodiscard]] std::int64_t weight_elems() const { return num_experts() * hidden * dim; }
  [[nodiscard]] ExpertsShape shape() const { return {dim, hidden, rows}; }

  static long double product(const Reals& w, std::int64_t first, const long double* x,
                             std::int64_t elems) {
    long double sum = 0;
    for (std::int64_t i = 0; i < elems; ++i)
      sum += w[static_cast<std::size_t>(first + i)] * x[i];
    return sum;
  }
  /// y of all rows.
  [[nodiscard]] Reals formula() const {
    Reals y;
    std::int64_t row = 0;
    for (std::int64_t e = 0; e < num_experts(); ++e) {
      for (std::int64_t i = 0; i < rows[static_cast<std::size_t>(e)]; ++i, ++row) {
        Reals gate;
        for (std::int64_t h = 0; h < hidden; ++h) {
          const std::int64_t first = (e * hidden + h) * dim;
          const long double a = product(w1, first, x.data() + row * dim, dim);
          gate.push_back(a / (1 + std::exp(-a)) * product(w3, first, x.data() + row * dim, dim));
        }
        for (std::int64_t d = 0; d < dim; ++d)
          y.push_back(product(w2, (e * dim + d) * hidden, gate.data(), hidden));
      }
    }
    return y;
  }

  std::int64_t dim, hidden;
  Rows rows;
  Reals x, w1, w2, w3, dy;
};

template <class T>
struct ExpertsResults {
  std::vector<T> y, dw1, dw2, dw3, dx;
  bool intact = true;

  bool operator==(const ExpertsResults& other) const {
    return same_bits(y, other.y) && same_bits(dw1, other.dw1) && same_bits(dw2, other.dw2) &&
           same_bits(dw3, other.dw3) && same_bits(dx, other.dx);
  }
};

template <class T>
ExpertsResults<T> run(const ExpertsData& data, const Split& split = {}, std::int64_t offset = 0) {
  const auto place = [&](std::int64_t factor) { return offset * factor % kOffsets; };
  const std::int64_t experts = data.num_experts(), matrix = data.hidden * data.dim;
  const std::int64_t outer = data.num_rows() * data.dim, inner = data.num_rows() * data.hidden;
  const auto weight = [&](const Reals& values, std::int64_t at) {
    return values.empty() ? Blocked<T>(experts, matrix, split, at)
                          : Blocked<T>(values, matrix, split, at);
  };
  Blocked<T> w1 = weight(data.w1, place(1)), w2 = weight(data.w2, place(3));
  Blocked<T> w3 = weight(data.w3, place(5));
  Blocked<T> dw1(experts, matrix, split, place(7)), dw2(experts, matrix, split, place(9));
  Blocked<T> dw3(experts, matrix, split, place(11));
  Placed<T> x(data.x, place(13)), dy(data.dy, place(15)), y(outer, place(3)), dx(outer, place(5));
  Placed<T> h1(inner, place(7)), h3(inner, place(9)), gate(inner, place(11));
  Placed<T> scratch(2 * inner, place(13));
  const ExpertWeights<T> weights{w1.blocks(), w2.blocks(), w3.blocks()};
  const ExpertWeights<T> gradients{dw1.blocks(), dw2.blocks(), dw3.blocks()};
  experts_forward<T>(data.shape(), weights, x.data(), h1.data(), h3.data(), gate.data(), y.data());
  experts_backward<T>(data.shape(), weights, {x.data(), h1.data(), h3.data(), dy.data()}, gradients,
                      dx.data(), scratch.data());
  return {y.values(),
          dw1.values(),
          dw2.values(),
          dw3.values(),
          dx.values(),
          dw1.is_padding_intact() && dw2.is_padding_intact() && dw3.is_padding_intact() &&
              y.is_intact_around() && dx.is_intact_around() && h1.is_intact_around() &&
              h3.is_intact_around() && gate.is_intact_around() && scratch.is_intact_around()};
}

/// All numbers are under 2 dim² max(hidden, rows) and sums of at most dim, hidden or rows terms of
/// factors that are sums themselves; fifth derivatives are under 100 times that.
template <class T>
long double tolerance(const ExpertsData& data) {
  const auto largest =
      static_cast<long double>(2 * data.dim * data.dim * std::max(data.hidden, data.num_rows()));
  const auto terms = static_cast<long double>(data.dim + data.hidden + data.num_rows() + 8);
  return largest * (16 * terms * std::numeric_limits<T>::epsilon() + 100 * std::pow(kStep, 4) / 30);
}

/// The largest difference of any result from the formula, in tolerances.
template <class T>
long double difference(const ExpertsResults<T>& got, ExpertsData data) {
  const auto loss = [&] { return dot(data.formula(), data.dy); };
  const long double differences[] = {largest_difference(got.y, data.formula()),
                                     largest_difference(got.dw1, gradient(loss, data.w1)),
                                     largest_difference(got.dw2, gradient(loss, data.w2)),
                                     largest_difference(got.dw3, gradient(loss, data.w3)),
                                     largest_difference(got.dx, gradient(loss, data.x))};
  return *std::max_element(std::begin(differences), std::end(differences)) / tolerance<T>(data);
}

TEMPLATE_TEST_CASE("experts: values and gradients of their formula", "", float, double) {
  for (const ExpertsData& data :
       {ExpertsData(1, 1, {1}), ExpertsData(3, 4, {2, 5, 1}), ExpertsData(5, 3, {0, 6, 0, 3}),
        ExpertsData(4, 2, {0, 0, 9}), ExpertsData(2, 7, {4, 4}), ExpertsData(3, 2, {7, 0, 1, 2})}) {
    CAPTURE(data.dim, data.hidden, data.rows);
    const auto got = run<TestType>(data);
    CHECK(difference(got, data) <= 1);
    CHECK(got.intact);
  }
}

TEMPLATE_TEST_CASE("experts: the same bits however weights are cut and wherever buffers begin", "",
                   float, double) {
  const ExpertsData data(9, 17, {3, 0, 6, 1});
  const auto expected = run<TestType>(data);
  for (const Split& split : all_splits()) {
    const auto got = run<TestType>(data, split);
    CHECK(got == expected);
    CHECK(got.intact);
  }
  for (std::int64_t offset = 1; offset < kOffsets; ++offset)
    CHECK(run<TestType>(data, {}, offset) == expected);
}

TEMPLATE_TEST_CASE("experts: gradients of those without rows are zero", "", float, double) {
  const auto none = run<TestType>(ExpertsData(3, 4, {0, 0}));
  for (const std::vector<TestType>& zero : {none.dw1, none.dw2, none.dw3})
    CHECK(zero == std::vector<TestType>(24, TestType(0)));
  CHECK(none.intact);
  CHECK(run<TestType>(ExpertsData(3, 4, {})).intact);

  // Cut inside over more ranks than it has columns: some hold nothing of it.
  const auto empty = run<TestType>(ExpertsData(3, 0, {2, 1}));
  CHECK(empty.y == std::vector<TestType>(9, TestType(0)));
  CHECK(empty.dx == std::vector<TestType>(9, TestType(0)));
  CHECK(empty.intact);
}

TEST_CASE("experts: dx is not written where it is not needed") {
  const ExpertsData data(3, 2, {2, 1});
  Blocked<double> w(data.w1, 6, {}, 0), dw1(2, 6, {}, 0), dw2(2, 6, {}, 0), dw3(2, 6, {}, 0);
  Placed<double> x(data.x, 0), dy(data.dy, 0), y(9, 0), h1(6, 0), h3(6, 0), scratch(12, 0);
  const ExpertWeights<double> weights{w.blocks(), w.blocks(), w.blocks()};
  experts_forward<double>(data.shape(), weights, x.data(), h1.data(), h3.data(), scratch.data(),
                          y.data());
  experts_backward<double>(data.shape(), weights, {x.data(), h1.data(), h3.data(), dy.data()},
                           {dw1.blocks(), dw2.blocks(), dw3.blocks()}, nullptr, scratch.data());
  CHECK(dw1.is_padding_intact());
}

TEST_CASE("experts: the check sees a wrong expert's weight, a lost row and one given to another") {
  const ExpertsData data(3, 4, {2, 5, 1});
  const auto got = run<double>(data);
  CHECK(difference(got, data) <= 1);

  ExpertsData wrong = data;
  std::copy_n(data.w2.begin() + 12, 12, wrong.w2.begin());
  CHECK(difference(run<double>(wrong), data) > 1000);

  ExpertsData lost = data;
  std::fill_n(lost.x.begin() + 9, 3, 0.0L);
  CHECK(difference(run<double>(lost), data) > 1000);

  ExpertsData moved = data;
  moved.rows = {3, 4, 1};
  CHECK(difference(run<double>(moved), data) > 1000);

  auto swapped = got;
  std::swap(swapped.dw1, swapped.dw3);
  CHECK(difference(swapped, data) > 1000);
}

}  // namespace
}  // namespace hpsim
