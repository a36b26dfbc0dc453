#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/interval.h"

namespace hpsim {

/// In which order a rank sends its rows to the members of its exchange group. Every row is sent
/// once per expert that it chose, so that pairs of a row and a choice are sent, numbered
/// row * top_k + choice: by member, by expert, then ascending. Pairs whose expert no member holds
/// stay out.
///
///   rows choose (2 0) (1 2), members hold [0, 2) [2, 3)    pairs 1 2 | 0 3    counts 1 1 | 2
///   the same, held are [2, 3) alone                        pairs 0 3          counts 2
struct SendOrder {
  std::vector<std::int64_t> pairs;   ///< in the order in which they are sent
  std::vector<std::int64_t> counts;  ///< per expert that is reached, members in group order
};

/// `chosen`: an expert per pair; `reached`: what every member holds.
[[nodiscard]] SendOrder send_order(std::span<const std::int64_t> chosen, std::int64_t num_experts,
                                   std::span<const Interval> reached);

/// Where in `order` a pair is sent, per pair; -1 for those that stay out.
[[nodiscard]] std::vector<std::int64_t> places_of_pairs(const SendOrder& order,
                                                        std::int64_t num_pairs);

/// How rows that arrive, by member and then by expert, are sorted by expert and then by member.
///
///   2 members, counts 1 2 | 3 1    rows 4 3    places 0 4 5 | 1 2 3 6
struct ArrivalOrder {
  std::vector<std::int64_t> rows;    ///< per own expert
  std::vector<std::int64_t> places;  ///< where a row goes, per row in the order of arrival
};

/// `counts`: per member, of every own expert; as long for every member.
[[nodiscard]] ArrivalOrder arrival_order(std::span<const std::int64_t> counts,
                                         std::int64_t num_members);

/// Sums of `num_parts` equal parts of `counts`.
///
///   1 1 0 2 in 2 parts    2 2
[[nodiscard]] std::vector<std::int64_t> sums_of_parts(std::span<const std::int64_t> counts,
                                                      std::int64_t num_parts);

/// to[i] = from[index[i]] and to[index[i]] = from[i], for rows of `row_elems` elements.
template <class T>
void gather_rows(const T* from, std::span<const std::int64_t> index, std::int64_t row_elems, T* to);
template <class T>
void scatter_rows(const T* from, std::span<const std::int64_t> index, std::int64_t row_elems,
                  T* to);

}  // namespace hpsim
