#include "mesh/group.h"

#include <algorithm>

namespace hpsim {
namespace {

std::vector<Rank> group_from(const Mesh& mesh, const MeshDims& dims, Coordinate coordinate,
                             std::int64_t limit) {
  for (const int dim : dims)
    coordinate[static_cast<std::size_t>(dim)] = 0;
  std::vector<Rank> group;
  const std::int64_t count = std::min(mesh.size(dims), limit);
  group.reserve(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) {
    group.push_back(mesh.rank_at(coordinate));
    advance(mesh, dims, coordinate);
  }
  return group;
}

}  // namespace

std::vector<Rank> group_of(const Mesh& mesh, const MeshDims& dims, Rank rank, std::int64_t limit) {
  return group_from(mesh, dims, mesh.coordinate_of(rank), limit);
}

std::vector<std::vector<Rank>> groups_along(const Mesh& mesh, const MeshDims& dims) {
  MeshDims others;
  for (int dim = 0; dim < mesh.num_dims(); ++dim) {
    if (!contains(dims, dim)) others.push_back(dim);
  }
  std::vector<std::vector<Rank>> groups;
  Coordinate first(static_cast<std::size_t>(mesh.num_dims()), 0);
  do {
    groups.push_back(group_from(mesh, dims, first, mesh.size(dims)));
  } while (advance(mesh, others, first));
  return groups;
}

}  // namespace hpsim
