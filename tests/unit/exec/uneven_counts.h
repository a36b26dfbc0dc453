#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace hpsim {

/// Elements from each member of a group to each.
struct CountMatrix {
  std::string name;
  std::vector<std::vector<std::int64_t>> counts;  ///< [from][to]

  [[nodiscard]] std::vector<std::int64_t> sent_by(std::size_t from) const { return counts[from]; }
  [[nodiscard]] std::vector<std::int64_t> sent_to(std::size_t to) const {
    std::vector<std::int64_t> column;
    for (const auto& row : counts)
      column.push_back(row[to]);
    return column;
  }
  [[nodiscard]] std::int64_t total() const {
    std::int64_t sum = 0;
    for (const auto& row : counts) {
      for (const std::int64_t count : row)
        sum += count;
    }
    return sum;
  }
};

/// counts[from][to] = count_of(from, to)
template <class CountOf>
CountMatrix make_counts(std::string name, std::size_t size, CountOf count_of) {
  CountMatrix matrix{std::move(name), {}};
  for (std::size_t from = 0; from < size; ++from) {
    auto& row = matrix.counts.emplace_back();
    for (std::size_t to = 0; to < size; ++to)
      row.push_back(count_of(from, to));
  }
  return matrix;
}

/// What routing may come to among `size` members; the same wherever it is asked for.
inline std::vector<CountMatrix> uneven_counts(std::size_t size) {
  std::mt19937 random(static_cast<std::uint32_t>(size));
  const auto below = [&random](std::uint32_t end) {
    return static_cast<std::int64_t>(random() % end);
  };
  const auto few = [&](std::size_t, std::size_t) { return below(3) * below(20); };
  const std::size_t one = size / 2;
  const auto only = [&](auto is_meant) {
    return [=](std::size_t from, std::size_t to) {
      return is_meant(from, to) ? std::int64_t{1 + 3 * static_cast<std::int64_t>(from) +
                                               static_cast<std::int64_t>(to)}
                                : std::int64_t{0};
    };
  };
  return {
      make_counts("few, a third of them zero", size, few),
      make_counts("many", size,
                  [&](std::size_t, std::size_t) { return below(2) * (9'000 + below(30'000)); }),
      make_counts("one sends nothing", size,
                  only([=](std::size_t from, std::size_t) { return from != one; })),
      make_counts("one gets nothing", size,
                  only([=](std::size_t, std::size_t to) { return to != one; })),
      make_counts("one sends everything", size,
                  only([=](std::size_t from, std::size_t) { return from == one; })),
      make_counts("one gets everything", size,
                  only([=](std::size_t, std::size_t to) { return to == one; })),
      make_counts("one has nothing to do", size,
                  only([=](std::size_t from, std::size_t to) { return from != one && to != one; })),
      make_counts("each keeps its own", size,
                  only([](std::size_t from, std::size_t to) { return from == to; })),
      make_counts("a ring", size,
                  only([=](std::size_t from, std::size_t to) { return to == (from + 1) % size; })),
      make_counts("nothing", size, only([](std::size_t, std::size_t) { return false; })),
  };
}

}  // namespace hpsim
