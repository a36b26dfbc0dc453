#include "engine/token_order.h"

#include <algorithm>

#include "support/catch.h"

namespace hpsim {
namespace {

using Numbers = std::vector<std::int64_t>;
using Members = std::vector<Interval>;

TEST_CASE("pairs are sent by member, by expert, then ascending") {
  const Numbers chosen = {2, 0, 1, 2};
  const SendOrder both = send_order(chosen, 3, Members{{0, 2}, {2, 3}});
  CHECK(both.pairs == Numbers{1, 2, 0, 3});
  CHECK(both.counts == Numbers{1, 1, 2});
  CHECK(places_of_pairs(both, 4) == Numbers{2, 0, 1, 3});

  const SendOrder alone = send_order(chosen, 3, Members{{2, 3}});
  CHECK(alone.pairs == Numbers{0, 3});
  CHECK(alone.counts == Numbers{2});
  CHECK(places_of_pairs(alone, 4) == Numbers{0, -1, -1, 1});

  // Members in group order, which need not be that of their experts.
  const SendOrder turned = send_order(chosen, 3, Members{{2, 3}, {0, 2}});
  CHECK(turned.pairs == Numbers{0, 3, 1, 2});
  CHECK(turned.counts == Numbers{2, 1, 1});
}

TEST_CASE("nothing is sent where there are no rows, no experts, or none in reach") {
  CHECK(send_order({}, 3, Members{{0, 3}}).pairs.empty());
  CHECK(send_order({}, 3, Members{{0, 3}}).counts == Numbers{0, 0, 0});
  CHECK(send_order(Numbers{0, 1}, 4, Members{{2, 4}}).pairs.empty());
  CHECK(send_order(Numbers{0, 1}, 2, Members{{0, 0}}).counts.empty());
}

TEST_CASE("rows that arrive are sorted by expert, then by member") {
  const ArrivalOrder order = arrival_order(Numbers{1, 2, 3, 1}, 2);
  CHECK(order.rows == Numbers{4, 3});
  CHECK(order.places == Numbers{0, 4, 5, 1, 2, 3, 6});
  CHECK(arrival_order(Numbers{2, 0, 1}, 1).places == Numbers{0, 1, 2});
  CHECK(arrival_order(Numbers{0, 0, 0, 0}, 2).places.empty());
  CHECK(arrival_order(Numbers{}, 3).rows.empty());
}

TEST_CASE("sums of parts") {
  CHECK(sums_of_parts(Numbers{1, 1, 0, 2}, 2) == Numbers{2, 2});
  CHECK(sums_of_parts(Numbers{1, 1, 0, 2}, 1) == Numbers{4});
  CHECK(sums_of_parts(Numbers{}, 3) == Numbers{0, 0, 0});
}

TEST_CASE("scattering undoes gathering") {
  const Numbers index = {2, 0, 1};
  const std::vector<double> rows = {1, 2, 3, 4, 5, 6};
  std::vector<double> gathered(6), back(6);
  gather_rows<double>(rows.data(), index, 2, gathered.data());
  CHECK(gathered == std::vector<double>{5, 6, 1, 2, 3, 4});
  scatter_rows<double>(gathered.data(), index, 2, back.data());
  CHECK(back == rows);
}

/// What arrives where, as (row, expert) of every rank, sent by memory alone.
TEST_CASE("every pair arrives once, at its expert, on 3 ranks") {
  const Members held = {{0, 2}, {2, 3}, {3, 5}};
  // Uneven; the last rank has no rows.
  const std::vector<Numbers> chosen = {{4, 0, 3, 0, 2, 1, 0, 4}, {2, 2, 2, 3}, {}};
  std::vector<SendOrder> orders;
  for (const Numbers& of_rank : chosen)
    orders.push_back(send_order(of_rank, 5, held));
  std::int64_t arrived = 0;
  for (std::size_t to = 0; to < held.size(); ++to) {
    Numbers counts, experts;
    for (std::size_t from = 0; from < held.size(); ++from) {
      std::size_t next = 0;
      for (std::int64_t expert = 0; expert < 5; ++expert) {
        const std::int64_t count = orders[from].counts[static_cast<std::size_t>(expert)];
        const bool is_here = expert >= held[to].begin && expert < held[to].end;
        if (is_here) counts.push_back(count);
        for (std::int64_t i = 0; i < count; ++i, ++next) {
          const auto pair = static_cast<std::size_t>(orders[from].pairs[next]);
          CHECK(chosen[from][pair] == expert);
          if (is_here) experts.push_back(chosen[from][pair]);
        }
      }
    }
    const ArrivalOrder order = arrival_order(counts, 3);
    Numbers sorted(experts.size());
    for (std::size_t i = 0; i < experts.size(); ++i)
      sorted[static_cast<std::size_t>(order.places[i])] = experts[i];
    CHECK(std::is_sorted(sorted.begin(), sorted.end()));
    arrived += static_cast<std::int64_t>(sorted.size());
  }
  CHECK(arrived == 12);
}

}  // namespace
}  // namespace hpsim
