#include <cmath>
#include <limits>
#include <vector>

#include "support/catch.h"
#include "verify/compare_shard.h"
#include "verify/error_bound.h"

namespace hpsim {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

TensorView view_of(const std::vector<double>& values) {
  return {DType::Float64, reinterpret_cast<const std::byte*>(values.data()),
          static_cast<std::int64_t>(values.size())};
}

TEST_CASE("a bound is spread + 4u|value|, and nothing in exact mode") {
  CHECK(ErrorBound{true, 0x1p-24}.at(8, 1) == 0);
  CHECK(ErrorBound{false, 0x1p-24}.at(0, 0) == 0);
  CHECK(ErrorBound{false, 0x1p-24}.at(-1, 0x1p-30) == 0x1p-30 + 0x1p-22);
}

TEST_CASE("medians skip zeros where most values are zero") {
  struct Row {
    std::vector<double> values, bounds;
    double expected, bound;
  };
  const std::vector<Row> rows = {
      {{3, 1, 2}, {.3, .1, .2}, 2, .2},
      {{0, 0, 0, 8}, {9, 9, 9, 1}, 8, 1},
      {{0, 0}, {.1, .1}, 0, .1},
      {{-3, -1, 2}, {.3, .1, .2}, 2, .2},
  };
  for (const Row& row : rows) {
    const Medians medians = medians_of({row.values, row.bounds}, ErrorBound{});
    CHECK(medians.expected == row.expected);
    CHECK(medians.bound == row.bound);
  }
}

TEST_CASE("medians of a large tensor are those of an even sample") {
  // Every fourth row of 257 columns is large: a sample that falls on one column or on every fourth
  // row would see only one kind.
  ReferenceTensor tensor;
  for (int row = 0; row < 400; ++row) {
    for (int column = 0; column < 257; ++column) {
      tensor.value.push_back(row % 4 == 0 ? 100 : 1);
      tensor.spread.push_back(column % 4 == 0 ? 50 : 0.01);
    }
  }
  const Medians medians = medians_of(tensor, ErrorBound{});
  CHECK(medians.expected == 1);
  CHECK(medians.bound == 0.01);
}

TEST_CASE("a bound above an eighth of the value says nothing") {
  CHECK_FALSE(is_vacuous({8, 1}, 8));
  CHECK(is_vacuous({8, 1.001}, 8));
  CHECK_FALSE(is_vacuous({0, 1e-9}, 2));
  CHECK(is_vacuous({0, 1}, 2));
  CHECK_FALSE(is_vacuous({0, 1}, 0));
  CHECK(is_vacuous({0, kNan}, 0));
  CHECK(is_vacuous({8, kInf}, 8));
}

TEST_CASE("an element fails outside its bound, and always if it is not finite") {
  struct Row {
    double got, expected, bound;
    std::int64_t failed;
    double ratio;
  };
  const std::vector<Row> rows = {
      {1.5, 1, 0.5, 0, 1},
      {1.5, 1, 0, 1, kInf},
      {-0.0, +0.0, 0, 0, 0},
      {kNan, 1, 1e300, 1, kInf},
      {kInf, kInf, kInf, 1, kInf},
      {kInf, 1, kInf, 1, kInf},
      {1, kNan, 1, 1, kInf},
      {1, 1, kNan, 1, 0},
      {std::nextafter(1.5, 2), 1, 0.5, 1, 1},
      {-2, 1, 1, 1, 3},
  };
  for (const Row& row : rows) {
    CAPTURE(row.got, row.expected, row.bound);
    const std::vector<double> got = {row.got};
    const std::vector<double> value = {row.expected};
    const std::vector<double> spread = {row.bound};
    const ShardComparison comparison = compare_shard(view_of(got), {value, spread, ErrorBound{}});
    CHECK(comparison.compared == 1);
    CHECK(comparison.failed == row.failed);
    CHECK(comparison.worst_ratio == Approx(row.ratio));
  }
}

TEST_CASE("the worst element is found in float32 and float64, exact and derived") {
  const std::vector<float> got = {1, 2.25F, 3, 5};
  const std::vector<double> value = {1, 2, 3, 4};
  const std::vector<double> spread = {1, 0.125, 1, 1};
  const TensorView view{DType::Float32, reinterpret_cast<const std::byte*>(got.data()), 4};
  const ShardComparison derived = compare_shard(view, {value, spread, ErrorBound{}});
  CHECK(derived.failed == 1);
  CHECK(derived.worst_index == 1);
  CHECK(derived.worst_ratio == 2);
  const ShardComparison exact = compare_shard(view, {value, spread, ErrorBound{.exact = true}});
  CHECK(exact.failed == 2);
  CHECK(exact.worst_index == 1);
  const ShardComparison relative = compare_shard(view, {value, {}, ErrorBound{false, 0x1p-5}});
  CHECK(relative.failed == 1);  // bounds 1/8, 1/4, 3/8, 1/2
  CHECK(relative.worst_index == 3);
  CHECK(relative.worst_ratio == 2);
}

TEST_CASE("a ratio is one number for all elements or none") {
  struct Row {
    std::vector<double> got, expected;
    double bound;
    std::vector<double> candidates;
    double ratio;  // 1: none
  };
  const std::vector<Row> rows = {
      {{2, 4}, {1, 2}, 0, {2, 0.5}, 2},
      {{3, 6}, {1, 2}, 0, {2, 0.5}, 3},
      {{3}, {1}, 0, {2, 0.5}, 1},
      {{2}, {1}, 0, {2, 0.5}, 2},
      {{2, 5}, {1, 2}, 0, {2, 0.5}, 1},
      {{0, 0}, {1, 2}, 0, {}, 1},
      {{2.01, 3.99}, {1, 2}, 0.01, {2}, 2},
      {{2, 1}, {1, 0}, 0, {2}, 1},
      {{kInf, kInf}, {1, 2}, 0, {2}, 1},
      {{kNan, 4}, {1, 2}, 0, {2}, 1},
      {{}, {}, 0, {2}, 1},
  };
  for (const Row& row : rows) {
    CAPTURE(row.got, row.expected);
    const std::vector<double> spread(row.got.size(), row.bound);
    const auto ratio =
        constant_ratio(view_of(row.got), {row.expected, spread, ErrorBound{}}, row.candidates);
    CHECK(ratio.has_value() == (row.ratio != 1));
    if (ratio) CHECK(ratio->value == row.ratio);
  }
}

TEST_CASE("the first different bits are found, signed zeros and NaN included") {
  CHECK(first_difference(view_of({1, 2, 3}), view_of({1, 2, 3})) == std::nullopt);
  CHECK(first_difference(view_of({1, 2, 3}), view_of({1, 5, 4})) == 1);
  CHECK(first_difference(view_of({0.0}), view_of({-0.0})) == 0);
  CHECK(first_difference(view_of({kNan}), view_of({kNan})) == std::nullopt);
}

}  // namespace
}  // namespace hpsim
