#include "verify/evidence.h"

#include <map>

namespace hpsim {
namespace {

/// Splits ranks by a number of theirs, in the order of the first of each.
RankGroups split_by(const std::vector<std::int64_t>& number_of, const std::vector<Rank>& ranks) {
  std::map<std::int64_t, std::size_t> group_of_number;
  RankGroups groups;
  for (const Rank rank : ranks) {
    const std::int64_t number = number_of[static_cast<std::size_t>(rank.value)];
    const auto [at, is_new] = group_of_number.try_emplace(number, groups.size());
    if (is_new) groups.emplace_back();
    groups[at->second].push_back(rank);
  }
  return groups;
}

}  // namespace

RankGroups holders_of(const Evidence& evidence, int p) {
  RankGroups holders(static_cast<std::size_t>(evidence.num_parts(p)));
  const auto& part = evidence.part_index(p);
  for (std::int64_t rank = 0; rank < evidence.num_ranks(); ++rank) {
    holders[static_cast<std::size_t>(part[static_cast<std::size_t>(rank)])].push_back(Rank{rank});
  }
  return holders;
}

RankGroups alike_of(const Evidence& evidence, int p, const std::vector<Rank>& holders) {
  const MeshDims& dims = evidence.plan.averaged_dims(p);
  if (dims.empty()) return {holders};
  return split_by(evidence.ranks.index_along(dims), holders);
}

RankGroups averaged_of(const Evidence& evidence, int p, const std::vector<Rank>& holders) {
  const MeshDims& dims = evidence.plan.averaged_dims(p);
  if (!dims.empty()) return split_by(evidence.ranks.group_along(dims), holders);
  RankGroups alone;
  for (const Rank rank : holders)
    alone.push_back({rank});
  return alone;
}

}  // namespace hpsim
