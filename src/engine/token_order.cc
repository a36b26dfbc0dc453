#include "engine/token_order.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"

namespace hpsim {
namespace {

/// Per expert its place among those that are reached; -1 where it is none of them.
std::vector<std::int64_t> places_of_experts(std::int64_t num_experts,
                                            std::span<const Interval> reached) {
  std::vector<std::int64_t> places(static_cast<std::size_t>(num_experts), -1);
  std::int64_t next = 0;
  for (const Interval& held : reached) {
    for (std::int64_t expert = held.begin; expert < held.end; ++expert)
      places.at(static_cast<std::size_t>(expert)) = next++;
  }
  return places;
}

/// Sums of what is before: 3 1 2 -> 0 3 4.
std::vector<std::int64_t> firsts_of(std::span<const std::int64_t> counts) {
  std::vector<std::int64_t> firsts(counts.size());
  std::exclusive_scan(counts.begin(), counts.end(), firsts.begin(), std::int64_t{0});
  return firsts;
}

}  // namespace

SendOrder send_order(std::span<const std::int64_t> chosen, std::int64_t num_experts,
                     std::span<const Interval> reached) {
  const std::vector<std::int64_t> places = places_of_experts(num_experts, reached);
  const auto place = [&](std::size_t pair) {
    return places.at(static_cast<std::size_t>(chosen[pair]));
  };
  SendOrder order;
  order.counts.assign(static_cast<std::size_t>(std::count_if(
                          places.begin(), places.end(), [](std::int64_t at) { return at >= 0; })),
                      0);
  for (std::size_t pair = 0; pair < chosen.size(); ++pair) {
    if (place(pair) >= 0) ++order.counts[static_cast<std::size_t>(place(pair))];
  }
  std::vector<std::int64_t> next = firsts_of(order.counts);
  order.pairs.resize(static_cast<std::size_t>(
      std::accumulate(order.counts.begin(), order.counts.end(), std::int64_t{0})));
  for (std::size_t pair = 0; pair < chosen.size(); ++pair) {
    if (place(pair) < 0) continue;
    const std::int64_t at = next[static_cast<std::size_t>(place(pair))]++;
    order.pairs[static_cast<std::size_t>(at)] = static_cast<std::int64_t>(pair);
  }
  return order;
}

std::vector<std::int64_t> places_of_pairs(const SendOrder& order, std::int64_t num_pairs) {
  std::vector<std::int64_t> places(static_cast<std::size_t>(num_pairs), -1);
  for (std::size_t at = 0; at < order.pairs.size(); ++at)
    places.at(static_cast<std::size_t>(order.pairs[at])) = static_cast<std::int64_t>(at);
  return places;
}

ArrivalOrder arrival_order(std::span<const std::int64_t> counts, std::int64_t num_members) {
  const std::size_t num_experts = counts.size() / static_cast<std::size_t>(num_members);
  HPSIM_CHECK(num_experts * static_cast<std::size_t>(num_members) == counts.size(),
              "{} counts from {} members", counts.size(), num_members);
  ArrivalOrder order;
  order.rows.assign(num_experts, 0);
  for (std::size_t i = 0; i < counts.size(); ++i)
    order.rows[i % num_experts] += counts[i];
  std::vector<std::int64_t> next = firsts_of(order.rows);
  for (std::size_t i = 0; i < counts.size(); ++i) {
    for (std::int64_t row = 0; row < counts[i]; ++row)
      order.places.push_back(next[i % num_experts]++);
  }
  return order;
}

std::vector<std::int64_t> sums_of_parts(std::span<const std::int64_t> counts,
                                        std::int64_t num_parts) {
  std::vector<std::int64_t> sums(static_cast<std::size_t>(num_parts), 0);
  const std::size_t length = counts.size() / sums.size();
  for (std::size_t i = 0; i < counts.size(); ++i)
    sums.at(i / length) += counts[i];
  return sums;
}

template <class T>
void gather_rows(const T* from, std::span<const std::int64_t> index, std::int64_t row_elems,
                 T* to) {
  for (const std::int64_t row : index)
    to = std::copy_n(from + row * row_elems, row_elems, to);
}

template <class T>
void scatter_rows(const T* from, std::span<const std::int64_t> index, std::int64_t row_elems,
                  T* to) {
  for (const std::int64_t row : index) {
    std::copy_n(from, row_elems, to + row * row_elems);
    from += row_elems;
  }
}

#define HPSIM_INSTANTIATE(T)                                                               \
  template void gather_rows<T>(const T*, std::span<const std::int64_t>, std::int64_t, T*); \
  template void scatter_rows<T>(const T*, std::span<const std::int64_t>, std::int64_t, T*);
HPSIM_INSTANTIATE(float)
HPSIM_INSTANTIATE(double)
#undef HPSIM_INSTANTIATE

}  // namespace hpsim
