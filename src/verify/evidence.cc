#include "verify/evidence.h"

namespace hpsim {

std::vector<std::vector<Rank>> holders_of(const Evidence& evidence, int p) {
  std::vector<std::vector<Rank>> holders(static_cast<std::size_t>(evidence.num_parts(p)));
  const auto& part = evidence.part_index(p);
  for (std::int64_t rank = 0; rank < evidence.num_ranks(); ++rank) {
    holders[static_cast<std::size_t>(part[static_cast<std::size_t>(rank)])].push_back(Rank{rank});
  }
  return holders;
}

}  // namespace hpsim
