#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "engine/row_blocks.h"
#include "tensor/buffer.h"
#include "tensor/fill.h"

namespace hpsim {

/// What a kernel is judged by: values of its plain formula.
using Reals = std::vector<long double>;

/// Kernels are run with their buffers at these many places relative to aligned memory.
inline constexpr std::int64_t kOffsets = 16;

/// Multiples of 2^-23 in [-scale, scale), exact in float for scales that are powers of two.
inline Reals drawn(const std::string& name, std::int64_t elems, double scale = 1) {
  Reals values;
  for (std::int64_t i = 0; i < elems; ++i)
    values.push_back(value_at(fill_key(name, 7), i, {.bound = scale}));
  return values;
}

/// Memory for `elems` elements, `offset` elements behind an aligned address; NaN inside and around.
template <class T>
class Placed {
 public:
  Placed(std::int64_t elems, std::int64_t offset)
      : elems_(elems), begin_(kMargin + offset), memory_(elems + begin_ + kMargin) {
    std::fill_n(memory_.data(), memory_.elems(), std::numeric_limits<T>::quiet_NaN());
  }
  Placed(const Reals& values, std::int64_t offset)
      : Placed(static_cast<std::int64_t>(values.size()), offset) {
    std::transform(values.begin(), values.end(), data(),
                   [](long double value) { return static_cast<T>(value); });
  }
  [[nodiscard]] T* data() { return memory_.data() + begin_; }
  [[nodiscard]] std::vector<T> values() { return {data(), data() + elems_}; }
  [[nodiscard]] bool is_intact_around() const {
    const auto is_nan = [](T value) { return std::isnan(value); };
    const T* const all = memory_.data();
    return std::all_of(all, all + begin_, is_nan) &&
           std::all_of(all + begin_ + elems_, all + memory_.elems(), is_nan);
  }

 private:
  static constexpr std::int64_t kMargin = 16;
  std::int64_t elems_;
  std::int64_t begin_;
  Buffer<T> memory_;
};

/// How fully_shard cuts the rows of a parameter.
struct Split {
  enum class Kind { None, Ceil, Balanced, Ragged };
  Kind kind = Kind::None;
  std::int64_t shards = 1;
};

inline std::vector<Split> all_splits() {
  using enum Split::Kind;
  return {{None, 1}, {Ceil, 1},     {Ceil, 2},     {Ceil, 3},   {Ceil, 4},
          {Ceil, 9}, {Balanced, 2}, {Balanced, 4}, {Ragged, 2}, {Ragged, 4}};
}

/// A parameter in row blocks as an all-gather leaves it, NaN in padding and around.
template <class T>
class Blocked {
 public:
  Blocked(std::int64_t rows, std::int64_t row_elems, const Split& split, std::int64_t offset)
      : cut_(cut_of(split, rows)),
        has_cut_(split.kind != Split::Kind::None),
        memory_(cut_.num_shards * stride(rows, row_elems), offset),
        blocks_{.data = memory_.data(),
                .rows = rows,
                .row_elems = row_elems,
                .block_stride = stride(rows, row_elems),
                .num_blocks = cut_.num_shards} {}
  Blocked(const Reals& values, std::int64_t row_elems, const Split& split, std::int64_t offset)
      : Blocked(static_cast<std::int64_t>(values.size()) / row_elems, row_elems, split, offset) {
    for (std::size_t i = 0; i < values.size(); ++i)
      at(i) = static_cast<T>(values[i]);
  }
  [[nodiscard]] RowBlocks<T> blocks() {
    RowBlocks<T> blocks = blocks_;
    if (has_cut_) blocks.cut = &cut_;
    return blocks;
  }
  [[nodiscard]] std::vector<T> values() {
    std::vector<T> values(static_cast<std::size_t>(blocks_.rows * blocks_.row_elems));
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = at(i);
    return values;
  }
  /// No element but those of rows was written.
  [[nodiscard]] bool is_padding_intact() {
    const std::vector<T> all = memory_.values();
    const auto nans = std::count_if(all.begin(), all.end(), [](T v) { return std::isnan(v); });
    return memory_.is_intact_around() &&
           nans == static_cast<std::ptrdiff_t>(all.size()) - blocks_.rows * blocks_.row_elems;
  }

 private:
  static std::int64_t stride(std::int64_t rows, std::int64_t row_elems) {
    return rows * row_elems + 3;
  }
  static ShardCut cut_of(const Split& split, std::int64_t rows) {
    ShardCut cut{.num_shards = split.shards};
    if (split.kind == Split::Kind::Balanced) cut.chunking = Chunking::Balanced;
    if (split.kind == Split::Kind::Ragged && rows > 1) {
      std::vector<std::int64_t> units(static_cast<std::size_t>(split.shards), 0);
      units.front() = 1;
      units.back() = rows - 1;
      cut.local_units = LocalUnits(units);
    }
    return cut;
  }
  T& at(std::size_t element) {
    const std::int64_t row = static_cast<std::int64_t>(element) / blocks_.row_elems;
    const std::int64_t col = static_cast<std::int64_t>(element) % blocks_.row_elems;
    const RowBlocks<T> blocks = this->blocks();
    std::int64_t block = 0;
    while (blocks.block_rows(block).end <= row)
      ++block;
    const std::int64_t inside = row - blocks.block_rows(block).begin;
    return blocks_.data[block * blocks_.block_stride + inside * blocks_.row_elems + col];
  }

  ShardCut cut_;
  bool has_cut_;
  Placed<T> memory_;
  RowBlocks<T> blocks_;
};

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

/// Infinite where a number is no number, or lengths differ.
template <class T>
long double largest_difference(const std::vector<T>& got, const Reals& expected) {
  if (got.size() != expected.size()) return std::numeric_limits<long double>::infinity();
  long double largest = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const long double difference = std::abs(static_cast<long double>(got[i]) - expected[i]);
    if (!(difference <= largest)) largest = difference;
    if (std::isnan(difference)) return std::numeric_limits<long double>::infinity();
  }
  return largest;
}

inline constexpr long double kStep = 0x1p-14L;

/// Derivative of f() by x, which f reads, to O(kStep⁴ f⁽⁵⁾ / 30).
template <class Function>
long double derivative(const Function& f, long double& x) {
  const long double at = x;
  const auto difference = [&](long double step) {
    x = at + step;
    const long double above = f();
    x = at - step;
    const long double below = f();
    x = at;
    return above - below;
  };
  return (8 * difference(kStep) - difference(2 * kStep)) / (12 * kStep);
}

/// Derivatives of f() by every element of x.
template <class Function>
Reals gradient(const Function& f, Reals& x) {
  Reals result;
  for (long double& element : x)
    result.push_back(derivative(f, element));
  return result;
}

inline long double dot(const Reals& a, const Reals& b) {
  long double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    sum += a[i] * b[i];
  return sum;
}

}  // namespace hpsim
