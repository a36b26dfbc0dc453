#include "engine/add.h"
#include "engine/lanes.h"
#include "engine/silu_gate.h"
#include "kernel_checks.h"
#include "support/catch.h"

namespace hpsim {
namespace {

TEST_CASE("lanes: sums and maxima of every length, exact on integers") {
  for (std::int64_t elems = 0; elems <= 50; ++elems) {
    Placed<float> x(elems, 1), y(elems, 2);
    float sum = 0, products = 0, max = -std::numeric_limits<float>::infinity();
    for (std::int64_t i = 0; i < elems; ++i) {
      x.data()[i] = static_cast<float>(i * 7 % 13 - 20);
      y.data()[i] = static_cast<float>(i * 5 % 11 - 4);
      sum += x.data()[i];
      products += x.data()[i] * (y.data()[i] + 1);
      max = std::max(max, x.data()[i]);
    }
    // Where there is no element, the term would be 1 * 1.
    const auto term = [](const Lanes<float>& a, const Lanes<float>& b) -> Lanes<float> {
      return a * (b + 1);
    };
    const auto affine = [](const Lanes<float>& a) -> Lanes<float> { return a + 1; };
    CAPTURE(elems);
    CHECK(lane_sum(elems, x.data()) == sum);
    CHECK(lane_sum(elems, term, x.data(), y.data()) == products);
    CHECK(lane_sum(elems, affine, x.data()) == sum + static_cast<float>(elems));
    CHECK(lane_max(elems, x.data()) == max);
    lane_map(elems, affine, y.data(), x.data());
    lane_map(elems, affine, x.data(), x.data());
    CHECK(same_bits(x.values(), y.values()));
    CHECK(lane_sum(elems, y.data()) == sum + static_cast<float>(elems));
    CHECK(x.is_intact_around());
    CHECK(y.is_intact_around());
  }
}

TEMPLATE_TEST_CASE("lanes: exponentials are within two units in the last place", "", float,
                   double) {
  using Limits = std::numeric_limits<TestType>;
  const TestType lowest = std::log(Limits::min()), highest = std::log(Limits::max());
  long double worst = 0;
  constexpr int kCount = 20000;
  for (int n = 0; n <= kCount; ++n) {
    const TestType x = lowest + (highest - lowest) * (static_cast<TestType>(n) / kCount);
    const long double exact = std::exp(static_cast<long double>(x));
    if (exact < Limits::min() || exact > Limits::max()) continue;
    const TestType got = lane_exp<TestType>(Lanes<TestType>::Constant(x))[5];
    const long double unit = std::ldexp(1.0L, std::ilogb(exact) + 1 - Limits::digits);
    worst = std::max(worst, std::abs(got - exact) / unit);
  }
  CHECK(worst <= 2);
  CHECK(worst > 0);
  for (const TestType x : {lowest - 1, 2 * lowest, 100 * lowest, -Limits::infinity()}) {
    const TestType got = lane_exp<TestType>(Lanes<TestType>::Constant(x))[3];
    CHECK(got >= 0);
    CHECK(got <= Limits::min());
  }
  CHECK(lane_exp<TestType>(Lanes<TestType>::Zero())[0] == 1);
}

template <class T>
std::vector<std::vector<T>> run_silu_gate(const Reals& a, const Reals& b, const Reals& dy,
                                          std::int64_t offset) {
  const auto elems = static_cast<std::int64_t>(a.size());
  const auto place = [&](std::int64_t factor) { return offset * factor % kOffsets; };
  Placed<T> a_in(a, place(1)), b_in(b, place(3)), dy_in(dy, place(5));
  Placed<T> y(elems, place(7)), da(elems, place(9)), db(elems, place(11));
  silu_gate_forward(a_in.data(), b_in.data(), elems, y.data());
  silu_gate_backward(a_in.data(), b_in.data(), dy_in.data(), elems, da.data(), db.data());
  CHECK((y.is_intact_around() && da.is_intact_around() && db.is_intact_around()));
  return {y.values(), da.values(), db.values()};
}

TEMPLATE_TEST_CASE("silu_gate: values and gradients of its formula", "", float, double) {
  for (const std::int64_t elems : {0, 1, 5, 16, 39}) {
    Reals a = drawn("a", elems, 8), b = drawn("b", elems), dy = drawn("dy", elems);
    const auto formula = [&] {
      Reals y;
      for (std::size_t i = 0; i < a.size(); ++i)
        y.push_back(a[i] / (1 + std::exp(-a[i])) * b[i]);
      return y;
    };
    const auto loss = [&] { return dot(formula(), dy); };
    const auto got = run_silu_gate<TestType>(a, b, dy, 0);
    // Results under 9, within 16 roundings; fifth derivatives of silu are under 4.
    const long double tolerance =
        9 * 16 * std::numeric_limits<TestType>::epsilon() + 4 * std::pow(kStep, 4);
    CHECK(largest_difference(got[0], formula()) <= tolerance);
    CHECK(largest_difference(got[1], gradient(loss, a)) <= tolerance);
    CHECK(largest_difference(got[2], gradient(loss, b)) <= tolerance);
  }
}

TEMPLATE_TEST_CASE("silu_gate: a gradient that nothing needs is left out", "", float, double) {
  const std::int64_t elems = 5;
  const Reals a = drawn("a", elems, 8), b = drawn("b", elems), dy = drawn("dy", elems);
  const auto both = run_silu_gate<TestType>(a, b, dy, 0);
  Placed<TestType> a_in(a, 0), b_in(b, 0), dy_in(dy, 0), da(elems, 0), db(elems, 0);
  silu_gate_backward<TestType>(a_in.data(), b_in.data(), dy_in.data(), elems, da.data(), nullptr);
  silu_gate_backward<TestType>(a_in.data(), b_in.data(), dy_in.data(), elems, nullptr, db.data());
  CHECK(same_bits(da.values(), both[1]));
  CHECK(same_bits(db.values(), both[2]));
}

TEMPLATE_TEST_CASE("silu_gate: far from 0 it is a b, or nothing", "", float, double) {
  const auto got = run_silu_gate<TestType>({2000, -2000}, {3, 3}, {5, 5}, 0);
  CHECK(got[0][0] == 6000);
  CHECK(got[1][0] == 15);
  CHECK(got[2][0] == 10000);
  for (const auto& results : got)
    CHECK(std::abs(results[1]) <= 60000 * std::numeric_limits<TestType>::min());
}

TEMPLATE_TEST_CASE("silu_gate: the same bits wherever buffers lie", "", float, double) {
  const Reals a = drawn("a", 101, 8), b = drawn("b", 101), dy = drawn("dy", 101);
  const auto expected = run_silu_gate<TestType>(a, b, dy, 0);
  for (std::int64_t offset = 1; offset < kOffsets; ++offset) {
    const auto got = run_silu_gate<TestType>(a, b, dy, offset);
    for (std::size_t i = 0; i < got.size(); ++i)
      CHECK(same_bits(got[i], expected[i]));
  }
}

TEST_CASE("add and accumulate") {
  const double a[] = {1, 2, 3}, b[] = {10, 20, 30};
  double y[] = {0, 0, 0, 7};
  add_forward(a, b, 3, y);
  CHECK(std::vector<double>(y, y + 4) == std::vector<double>{11, 22, 33, 7});
  accumulate(a, 3, y);
  CHECK(std::vector<double>(y, y + 4) == std::vector<double>{12, 24, 36, 7});
  add_forward(a, b, 0, y);
  accumulate(a, 0, y);
  CHECK(y[0] == 12);
}

}  // namespace
}  // namespace hpsim
