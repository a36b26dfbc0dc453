#include "layout/tensor_layout.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/interval.h"

namespace hpsim {
namespace {

const Placement& placement_on(const std::vector<Placement>& placements, int mesh_dim) {
  return placements.at(static_cast<std::size_t>(mesh_dim));
}

std::int64_t entry(const Coordinate& coordinate, int mesh_dim) {
  return coordinate.at(static_cast<std::size_t>(mesh_dim));
}

bool is_ragged(const Placement& placement) {
  return std::holds_alternative<RaggedShard>(placement) ||
         std::holds_alternative<RaggedStridedShard>(placement);
}

/// The units that hold at `coordinate`.
const LocalUnits& units_at(const TensorLayout& layout, const Mesh& mesh, int mesh_dim,
                           const Coordinate& coordinate) {
  const Placement& placement = placement_on(layout.placements, mesh_dim);
  if (const auto* plain = std::get_if<RaggedShard>(&placement)) return plain->local_units;
  const auto& strided = std::get<RaggedStridedShard>(placement);
  if (strided.local_units.size() == 1) return strided.local_units[0];
  MeshDims others;
  for (const int tensor_dim : strided.dims) {
    for (const int other : cutting_order(layout.placements, tensor_dim)) {
      if (other != mesh_dim) others = union_of(others, {other});
    }
  }
  return strided.local_units.at(static_cast<std::size_t>(mesh.index_along(others, coordinate)));
}

/// The cells, of `num_cells` in all, that a ragged placement gives to a rank.
Interval ragged_cells(const LocalUnits& units, std::int64_t num_ranks, std::int64_t index,
                      std::int64_t num_cells) {
  HPSIM_CHECK(units.size() == num_ranks, "{} units for {} ranks", units.size(), num_ranks);
  if (num_cells == 0) return {0, 0};
  HPSIM_CHECK(units.sum() > 0 && num_cells % units.sum() == 0, "{} units do not divide {} cells",
              units.sum(), num_cells);
  const Interval part = units.interval(index);
  const std::int64_t cells_per_unit = num_cells / units.sum();
  return {part.begin * cells_per_unit, part.end * cells_per_unit};
}

}  // namespace

MeshDims cutting_order(const std::vector<Placement>& placements, int tensor_dim) {
  MeshDims order;
  for (int mesh_dim = 0; mesh_dim < static_cast<int>(placements.size()); ++mesh_dim) {
    if (cuts(placement_on(placements, mesh_dim), tensor_dim)) order.push_back(mesh_dim);
  }
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    return split_factor_of(placement_on(placements, a)) <
           split_factor_of(placement_on(placements, b));
  });
  return order;
}

MeshDims cutting_dims(const std::vector<Placement>& placements) {
  MeshDims dims;
  for (int mesh_dim = 0; mesh_dim < static_cast<int>(placements.size()); ++mesh_dim) {
    if (is_cut(placement_on(placements, mesh_dim))) dims.push_back(mesh_dim);
  }
  return dims;
}

std::int64_t split_factor_at(const Mesh& mesh, const std::vector<Placement>& placements,
                             int mesh_dim, const std::vector<int>& tensor_dims) {
  MeshDims others;
  for (const int tensor_dim : tensor_dims) {
    for (const int other : cutting_order(placements, tensor_dim)) {
      if (other != mesh_dim) others = union_of(others, {other});
    }
  }
  return mesh.size(others);
}

std::vector<Box> local_boxes(const TensorLayout& layout, const Mesh& mesh,
                             const Coordinate& coordinate) {
  HPSIM_CHECK(static_cast<int>(layout.placements.size()) == mesh.num_dims(),
              "{} placements for a mesh of {} dims", layout.placements.size(), mesh.num_dims());
  Box box{std::vector<std::int64_t>(layout.global_shape.size(), 0), layout.global_shape};
  int flat_dim = -1;  // the mesh dim with a ragged shard over several tensor dims
  for (std::size_t tensor_dim = 0; tensor_dim < box.shape.size(); ++tensor_dim) {
    for (const int mesh_dim : cutting_order(layout.placements, static_cast<int>(tensor_dim))) {
      const Placement& placement = placement_on(layout.placements, mesh_dim);
      const std::int64_t index = entry(coordinate, mesh_dim);
      Interval part;
      if (!is_ragged(placement)) {
        part = shard_interval(box.shape[tensor_dim], {index, mesh.size(mesh_dim)});
      } else if (cut_dims(placement).size() == 1) {
        part = ragged_cells(units_at(layout, mesh, mesh_dim, coordinate), mesh.size(mesh_dim),
                            index, box.shape[tensor_dim]);
      } else {
        flat_dim = mesh_dim;
        continue;
      }
      box.offset[tensor_dim] += part.begin;
      box.shape[tensor_dim] = part.length();
    }
  }
  for (int mesh_dim = 0; mesh_dim < mesh.num_dims(); ++mesh_dim) {
    for (const int tensor_dim : cut_dims(placement_on(layout.placements, mesh_dim))) {
      HPSIM_CHECK(tensor_dim < static_cast<int>(box.shape.size()), "tensor dim {} of {} cut",
                  tensor_dim, box.shape.size());
    }
  }
  if (flat_dim < 0) return {std::move(box)};

  const std::size_t num_ragged = cut_dims(placement_on(layout.placements, flat_dim)).size();
  const auto split = box.shape.begin() + static_cast<std::ptrdiff_t>(num_ragged);
  const Interval cells =
      ragged_cells(units_at(layout, mesh, flat_dim, coordinate), mesh.size(flat_dim),
                   entry(coordinate, flat_dim), num_elems(Shape(box.shape.begin(), split)));
  return boxes_of_cells(box, static_cast<int>(num_ragged), cells);
}

Box local_box(const TensorLayout& layout, const Mesh& mesh, const Coordinate& coordinate) {
  std::vector<Box> boxes = local_boxes(layout, mesh, coordinate);
  HPSIM_CHECK(boxes.size() == 1, "{} boxes where there should be one", boxes.size());
  return std::move(boxes[0]);
}

std::vector<Box> boxes_of_cells(const Box& whole, int num_dims, Interval cells) {
  const auto split = whole.shape.begin() + num_dims;
  const std::int64_t per_cell = num_elems(Shape(split, whole.shape.end()));
  std::vector<Box> boxes = boxes_of(whole.shape, {cells.begin * per_cell, cells.end * per_cell});
  if (boxes.empty()) {
    Box none{std::vector<std::int64_t>(whole.shape.size(), 0), whole.shape};
    const Shape leading(whole.shape.begin(), split);
    const bool is_at_end = cells.begin == num_elems(leading);
    const auto index = is_at_end ? Shape{whole.shape[0]} : index_at(leading, cells.begin);
    std::copy(index.begin(), index.end(), none.offset.begin());
    none.shape[0] = 0;
    boxes.push_back(std::move(none));
  }
  for (Box& box : boxes) {
    for (std::size_t dim = 0; dim < box.offset.size(); ++dim)
      box.offset[dim] += whole.offset[dim];
  }
  return boxes;
}

}  // namespace hpsim
