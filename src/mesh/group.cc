#include "mesh/group.h"

namespace hpsim {
namespace {

std::vector<Rank> group_from(const Mesh& mesh, const MeshDims& dims, Coordinate coordinate) {
  for (const int dim : dims)
    coordinate[static_cast<std::size_t>(dim)] = 0;
  std::vector<Rank> group;
  group.reserve(static_cast<std::size_t>(mesh.size(dims)));
  do {
    group.push_back(mesh.rank_at(coordinate));
  } while (advance(mesh, dims, coordinate));
  return group;
}

}  // namespace

std::vector<Rank> group_of(const Mesh& mesh, const MeshDims& dims, Rank rank) {
  return group_from(mesh, dims, mesh.coordinate_of(rank));
}

std::vector<std::vector<Rank>> groups_along(const Mesh& mesh, const MeshDims& dims) {
  MeshDims others;
  for (int dim = 0; dim < mesh.num_dims(); ++dim) {
    if (!contains(dims, dim)) others.push_back(dim);
  }
  std::vector<std::vector<Rank>> groups;
  Coordinate first(static_cast<std::size_t>(mesh.num_dims()), 0);
  do {
    groups.push_back(group_from(mesh, dims, first));
  } while (advance(mesh, others, first));
  return groups;
}

}  // namespace hpsim
