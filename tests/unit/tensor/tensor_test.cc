#include <algorithm>
#include <cmath>
#include <vector>

#include "support/catch.h"
#include "tensor/buffer.h"
#include "tensor/fill.h"
#include "tensor/shape.h"

namespace hpsim {
namespace {

TEST_CASE("a flat interval is at most 2n - 1 boxes, which hold its elements in order") {
  using Boxes = std::vector<Box>;
  CHECK(boxes_of({2, 64}, {42, 84}) == Boxes{{{0, 42}, {1, 22}}, {{1, 0}, {1, 20}}});
  CHECK(boxes_of({7, 8}, {48, 56}) == Boxes{{{6, 0}, {1, 8}}});
  CHECK(boxes_of({5, 3, 6, 7}, {126, 420}) ==
        Boxes{{{1, 0, 0, 0}, {2, 3, 6, 7}}, {{3, 0, 0, 0}, {1, 1, 6, 7}}});
  CHECK(boxes_of({6, 4, 8}, {0, 64}) == Boxes{{{0, 0, 0}, {2, 4, 8}}});
  CHECK(boxes_of({4}, {2, 2}).empty());
  for (const Shape& shape : std::vector<Shape>{{7}, {3, 4}, {2, 3, 4}, {2, 1, 3, 2}, {1, 1, 5}}) {
    const std::int64_t elems = num_elems(shape);
    for (std::int64_t begin = 0; begin <= elems; ++begin) {
      for (std::int64_t end = begin; end <= elems; ++end) {
        const Boxes boxes = boxes_of(shape, {begin, end});
        CHECK(boxes.size() <= 2 * shape.size() - 1);
        std::int64_t next = begin;
        for (const Box& box : boxes) {
          CHECK(index_in(boxes, next - begin) == box.offset);
          each_run(shape, box, [&](std::int64_t first, std::int64_t count) {
            CHECK(first == next);
            next += count;
          });
        }
        CHECK(next == end);
      }
    }
  }
}

TEST_CASE("the runs of a box are its elements, as few as possible") {
  using Runs = std::vector<Interval>;
  const auto runs = [](const Shape& shape, const Box& box) {
    Runs result;
    each_run(shape, box, [&](std::int64_t first, std::int64_t count) {
      result.push_back({first, first + count});
    });
    return result;
  };
  CHECK(runs({4, 8}, {{0, 4}, {2, 4}}) == Runs{{4, 8}, {12, 16}});
  CHECK(runs({4, 8}, {{1, 0}, {2, 8}}) == Runs{{8, 24}});
  CHECK(runs({4, 8}, {{0, 0}, {4, 8}}) == Runs{{0, 32}});
  CHECK(runs({4, 8}, {{2, 0}, {0, 8}}).empty());
  CHECK(runs({2, 2, 3}, {{0, 1, 0}, {2, 1, 3}}) == Runs{{3, 6}, {9, 12}});
  CHECK(runs({2, 2, 3}, {{0, 0, 1}, {2, 2, 1}}) == Runs{{1, 2}, {4, 5}, {7, 8}, {10, 11}});
  CHECK(to_string(Box{{0, 4}, {2, 4}}) == "(0, 4) + (2, 4)");
  CHECK(index_in({{{0, 4}, {2, 4}}, {{3, 0}, {1, 2}}}, 9) == Shape{3, 1});
}

TEST_CASE("shapes count and print like tuples") {
  CHECK(num_elems({}) == 1);
  CHECK(num_elems({7, 8}) == 56);
  CHECK(num_elems({0, 8}) == 0);
  CHECK(row_elems({7, 8, 2}) == 16);
  CHECK(row_elems({7}) == 1);
  CHECK(index_at({2, 3}, 4) == std::vector<std::int64_t>{1, 1});
  CHECK(to_string(Shape{}) == "()");
  CHECK(to_string(Shape{5}) == "(5,)");
  CHECK(to_string(Shape{7, 8}) == "(7, 8)");
  CHECK(checked_num_elems({1 << 30, 1 << 30}).has_value());
  CHECK_FALSE(checked_num_elems({INT64_MAX, 2}).has_value());
}

TEST_CASE("what is drawn is rounded once") {
  FillSpec spec;
  spec.kind = FillSpec::Kind::Integer;
  spec.max = 0;
  // In bfloat16 just below the middle between 159 and 160 times 2^-10, in float32 the middle.
  spec.offset = 159.5 * 0x1p-10 - 0x1p-30;
  float once = 0;
  fill(&once, 1, 0, 0, spec, DType::BFloat16);
  CHECK(once == 159 * 0x1p-10F);
  float twice = 0;
  fill(&twice, 1, 0, 0, spec);
  round_to(DType::BFloat16, &twice, 1);
  CHECK(twice == 160 * 0x1p-10F);
  spec = {};
  std::vector<double> wide(1500);
  std::vector<float> narrow(wide.size());
  fill(wide.data(), 1500, 3, 7, spec);
  round_to(DType::Float16, wide.data(), 1500);
  fill(narrow.data(), 1500, 3, 7, spec, DType::Float16);
  CHECK(std::equal(wide.begin(), wide.end(), narrow.begin()));
}

TEST_CASE("hashes are the published FNV-1a and splitmix64") {
  // Test vectors of the FNV authors.
  CHECK(fnv1a64("") == 0xcbf29ce484222325U);
  CHECK(fnv1a64("a") == 0xaf63dc4c8601ec8cU);
  CHECK(fnv1a64("foobar") == 0x85944171f73967e8U);
  // splitmix64 from state 0 gives 0xe220a8397b1dcdaf first: value_at hashes key + index.
  const FillSpec uniform{.kind = FillSpec::Kind::Uniform, .bound = 1};
  const double expected = 2.0 * static_cast<double>(0xe220a8397b1dcdafU >> 40) / 0x1p24 - 1.0;
  CHECK(value_at(0, 0, uniform) == expected);
  const FillSpec integer{.kind = FillSpec::Kind::Integer, .max = 2, .scale = 0.5};
  const auto drawn = static_cast<double>((0xe220a8397b1dcdafU >> 33) % 5) - 2;
  CHECK(value_at(0, 0, integer) == drawn * 0.5);
}

TEST_CASE(
    "a value depends on name, index and seed only: a shard made alone is a cut of the whole") {
  const FillSpec spec{.kind = FillSpec::Kind::Uniform, .bound = 0.5};
  std::vector<float> whole(100);
  std::vector<float> part(20);
  fill(whole.data(), 100, fill_key("w", 3), 0, spec);
  fill(part.data(), 20, fill_key("w", 3), 40, spec);
  for (std::size_t i = 0; i < part.size(); ++i)
    CHECK(part[i] == whole[40 + i]);
  CHECK(fill_key("w", 3) != fill_key("w", 4));
  CHECK(fill_key("w", 3) != fill_key("v", 3));
}

TEST_CASE("drawn values stay in range and reach its ends") {
  const FillSpec integer{.kind = FillSpec::Kind::Integer, .max = 3, .scale = 2};
  std::vector<int> seen(7, 0);
  for (int i = 0; i < 1000; ++i) {
    const double value = value_at(fill_key("x", 0), i, integer) / 2;
    REQUIRE(std::abs(value) <= 3);
    ++seen[static_cast<std::size_t>(value + 3)];
  }
  for (const int count : seen)
    CHECK(count > 0);
  const FillSpec uniform{.kind = FillSpec::Kind::Uniform, .bound = 0.25};
  for (int i = 0; i < 1000; ++i)
    CHECK(std::abs(value_at(fill_key("x", 0), i, uniform)) <= 0.25);
}

TEST_CASE("a pool hands out what was given back, the smallest that fits") {
  BufferPool<float> pool;
  Buffer<float> small = pool.take(10);
  Buffer<float> large = pool.take(1000);
  float* const small_data = small.data();
  float* const large_data = large.data();
  pool.give_back(std::move(large));
  pool.give_back(std::move(small));
  CHECK(pool.take(5).data() == small_data);
  CHECK(pool.take(11).data() == large_data);
  CHECK(pool.take(0).data() != nullptr);
}

}  // namespace
}  // namespace hpsim
