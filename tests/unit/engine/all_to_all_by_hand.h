#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "engine/local_model.h"
#include "support/catch.h"

namespace hpsim {

/// Carries out an all_to_all among the members whose ends these are, in group order.
inline void all_to_all_by_hand(const std::vector<TokenEnds>& members, std::size_t elem_bytes) {
  const auto run = [&](std::span<const std::int64_t> counts, std::int64_t elems, std::size_t at) {
    return counts.empty() ? elems / static_cast<std::int64_t>(members.size()) : counts[at];
  };
  std::vector<std::int64_t> filled(members.size(), 0);
  for (std::size_t from = 0; from < members.size(); ++from) {
    std::int64_t sent = 0;
    for (std::size_t to = 0; to < members.size(); ++to) {
      const std::int64_t count = run(members[from].counts_in, members[from].elems_in, to);
      REQUIRE(count == run(members[to].counts_out, members[to].elems_out, from));
      if (count > 0) {
        std::memcpy(static_cast<std::byte*>(members[to].output) +
                        static_cast<std::size_t>(filled[to]) * elem_bytes,
                    static_cast<const std::byte*>(members[from].input) +
                        static_cast<std::size_t>(sent) * elem_bytes,
                    static_cast<std::size_t>(count) * elem_bytes);
      }
      sent += count;
      filled[to] += count;
    }
    REQUIRE(sent == members[from].elems_in);
  }
  for (std::size_t to = 0; to < members.size(); ++to)
    REQUIRE(filled[to] == members[to].elems_out);
}

}  // namespace hpsim
