#include "layout/tensor_layout.h"

#include <numeric>

#include "base/check.h"

namespace hpsim {

std::string to_string(const std::vector<Placement>& placements) {
  std::string text = "[";
  for (const Placement& placement : placements) {
    if (text.size() > 1) text += ", ";
    text += to_string(placement);
  }
  return text + "]";
}

Placement fsdp_placement(std::int64_t rows, std::int64_t num_shards) {
  if (rows % num_shards == 0) return Shard{0};
  RaggedShard ragged{.dims = {0}, .local_units = {}};
  ragged.local_units.reserve(static_cast<std::size_t>(num_shards));
  for (std::int64_t index = 0; index < num_shards; ++index) {
    ragged.local_units.push_back(shard_interval(rows, {index, num_shards}).length());
  }
  return ragged;
}

std::vector<Interval> rows_along(const Placement& placement, std::int64_t rows,
                                 std::int64_t num_ranks) {
  std::vector<Interval> parts(static_cast<std::size_t>(num_ranks), Interval{0, rows});
  if (const auto* shard = std::get_if<Shard>(&placement); shard != nullptr && shard->dim == 0) {
    for (std::int64_t i = 0; i < num_ranks; ++i) {
      parts[static_cast<std::size_t>(i)] = shard_interval(rows, {i, num_ranks});
    }
  } else if (const auto* ragged = std::get_if<RaggedShard>(&placement)) {
    HPSIM_CHECK(ragged->local_units.size() == parts.size(), "{} units for {} ranks",
                ragged->local_units.size(), num_ranks);
    std::int64_t begin = 0;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      parts[i] = {begin, begin + ragged->local_units[i]};
      begin = parts[i].end;
    }
  }
  return parts;
}

Box local_box(const TensorLayout& layout, const Mesh& mesh, const Coordinate& coordinate) {
  HPSIM_CHECK(static_cast<int>(layout.placements.size()) == mesh.num_dims(),
              "{} placements for a mesh of {} dims", layout.placements.size(), mesh.num_dims());
  Box box{std::vector<std::int64_t>(layout.global_shape.size(), 0), layout.global_shape};
  std::vector<char> is_cut(layout.global_shape.size(), 0);
  const auto cut = [&](int tensor_dim, Interval part) {
    const auto dim = static_cast<std::size_t>(tensor_dim);
    HPSIM_CHECK(dim < box.shape.size() && !is_cut[dim], "tensor dim {} of {} cut twice or absent",
                dim, box.shape.size());
    is_cut[dim] = 1;
    box.offset[dim] = part.begin;
    box.shape[dim] = part.length();
  };
  for (int mesh_dim = 0; mesh_dim < mesh.num_dims(); ++mesh_dim) {
    const Placement& placement = layout.placements[static_cast<std::size_t>(mesh_dim)];
    const std::int64_t index = coordinate.at(static_cast<std::size_t>(mesh_dim));
    if (const auto* shard = std::get_if<Shard>(&placement)) {
      const std::int64_t extent = layout.global_shape.at(static_cast<std::size_t>(shard->dim));
      cut(shard->dim, shard_interval(extent, {index, mesh.size(mesh_dim)}));
    } else if (const auto* ragged = std::get_if<RaggedShard>(&placement)) {
      const auto& units = ragged->local_units;
      HPSIM_CHECK(ragged->dims == std::vector<int>{0}, "ragged over {} dims", ragged->dims.size());
      HPSIM_CHECK(static_cast<std::int64_t>(units.size()) == mesh.size(mesh_dim),
                  "{} units for {} ranks", units.size(), mesh.size(mesh_dim));
      const auto end_of = [&](std::int64_t count) {
        return std::accumulate(units.begin(), units.begin() + count, std::int64_t{0});
      };
      HPSIM_CHECK(end_of(static_cast<std::int64_t>(units.size())) == layout.global_shape.at(0),
                  "units do not sum to {} rows", layout.global_shape.at(0));
      cut(0, {end_of(index), end_of(index + 1)});
    }
  }
  return box;
}

}  // namespace hpsim
