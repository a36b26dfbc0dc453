#include "verify/rank_table.h"

#include <fmt/format.h>

#include <algorithm>

namespace hpsim {

const std::vector<std::int64_t>& RankTable::index_along(const MeshDims& dims) {
  const auto [it, is_new] = indices_.try_emplace(dims);
  if (is_new) {
    it->second.reserve(static_cast<std::size_t>(mesh_.num_ranks()));
    for (std::int64_t rank = 0; rank < mesh_.num_ranks(); ++rank) {
      it->second.push_back(mesh_.index_along(dims, mesh_.coordinate_of(Rank{rank})));
    }
  }
  return it->second;
}

const std::vector<std::int64_t>& RankTable::group_along(const MeshDims& dims) {
  MeshDims other_dims;
  for (int dim = 0; dim < mesh_.num_dims(); ++dim) {
    if (std::find(dims.begin(), dims.end(), dim) == dims.end()) other_dims.push_back(dim);
  }
  return index_along(other_dims);
}

std::vector<std::int64_t> RankTable::group_along(const MeshDims& dims, std::int64_t consecutive) {
  std::vector<std::int64_t> groups = group_along(dims);
  if (consecutive == 0) return groups;
  const std::vector<std::int64_t>& index = index_along(dims);
  const std::int64_t num_runs = mesh_.size(dims) / consecutive;
  for (std::size_t rank = 0; rank < groups.size(); ++rank)
    groups[rank] = groups[rank] * num_runs + index[rank] / consecutive;
  return groups;
}

std::string describe_rank(const Mesh& mesh, Rank rank) {
  const Coordinate coordinate = mesh.coordinate_of(rank);
  std::string text;
  for (int dim = 0; dim < mesh.num_dims(); ++dim) {
    text += fmt::format("{}{}={}", dim == 0 ? "" : ", ", mesh.name(dim),
                        coordinate[static_cast<std::size_t>(dim)]);
  }
  return fmt::format("rank {} ({})", rank.value, text);
}

}  // namespace hpsim
