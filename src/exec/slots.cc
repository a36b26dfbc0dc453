#include "exec/slots.h"

#include "base/check.h"

namespace hpsim {

std::vector<Interval> slots_of(std::span<const std::int64_t> counts, std::int64_t elems,
                               std::int64_t num_members) {
  const bool has_counts = !counts.empty();
  HPSIM_CHECK(has_counts ? static_cast<std::int64_t>(counts.size()) == num_members
                         : elems % num_members == 0,
              "an all_to_all of {} elements and {} counts among {}", elems, counts.size(),
              num_members);
  std::vector<Interval> slots;
  slots.reserve(static_cast<std::size_t>(num_members));
  std::int64_t begin = 0;
  for (std::int64_t member = 0; member < num_members; ++member) {
    const std::int64_t length =
        has_counts ? counts[static_cast<std::size_t>(member)] : elems / num_members;
    HPSIM_CHECK(length >= 0, "{} elements of or for member {}", length, member);
    slots.push_back({begin, begin + length});
    begin += length;
  }
  HPSIM_CHECK(begin == elems, "counts of {} elements in all, but a buffer of {}", begin, elems);
  return slots;
}

}  // namespace hpsim
