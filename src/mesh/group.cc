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

/// The mesh dims that are not among `dims`.
MeshDims others_of(const Mesh& mesh, const MeshDims& dims) {
  MeshDims others;
  for (int dim = 0; dim < mesh.num_dims(); ++dim) {
    if (!contains(dims, dim)) others.push_back(dim);
  }
  return others;
}

}  // namespace

std::vector<Rank> group_of(const Mesh& mesh, const MeshDims& dims, Rank rank, std::int64_t limit) {
  return group_from(mesh, dims, mesh.coordinate_of(rank), limit);
}

std::vector<std::vector<Rank>> groups_along(const Mesh& mesh, const MeshDims& dims) {
  const MeshDims others = others_of(mesh, dims);
  std::vector<std::vector<Rank>> groups;
  Coordinate first(static_cast<std::size_t>(mesh.num_dims()), 0);
  do {
    groups.push_back(group_from(mesh, dims, first, mesh.size(dims)));
  } while (advance(mesh, others, first));
  return groups;
}

std::vector<std::vector<Rank>> groups_along(const Mesh& mesh, const MeshDims& dims,
                                            std::int64_t consecutive) {
  std::vector<std::vector<Rank>> whole = groups_along(mesh, dims);
  if (consecutive == 0) return whole;
  std::vector<std::vector<Rank>> runs;
  for (const std::vector<Rank>& group : whole) {
    for (auto first = group.begin(); first != group.end(); first += consecutive)
      runs.emplace_back(first, first + consecutive);
  }
  return runs;
}

GroupOfRank group_along(const Mesh& mesh, const MeshDims& dims, std::int64_t consecutive,
                        Rank rank) {
  const Coordinate coordinate = mesh.coordinate_of(rank);
  GroupOfRank group{group_of(mesh, dims, rank),
                    mesh.index_along(others_of(mesh, dims), coordinate)};
  if (consecutive == 0) return group;
  const std::int64_t run = mesh.index_along(dims, coordinate) / consecutive;
  group.index = group.index * (mesh.size(dims) / consecutive) + run;
  const auto first = group.members.begin() + run * consecutive;
  group.members = std::vector<Rank>(first, first + consecutive);
  return group;
}

}  // namespace hpsim
