#include "plan/well_formed.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>

#include "plan/rank_layout.h"

namespace hpsim {
namespace {

std::optional<Finding> wrong_number_of_placements(const Mesh& mesh,
                                                  const PlannedParameter& parameter) {
  const auto num_dims = static_cast<std::size_t>(mesh.num_dims());
  for (const auto* placements : {&parameter.sharded, &parameter.unsharded}) {
    if (placements->size() == num_dims) continue;
    return Finding{.code = FindingCode::SpecDisagrees,
                   .check = CheckId::Placements,
                   .param = parameter.name,
                   .expected = static_cast<double>(num_dims),
                   .got = static_cast<double>(placements->size()),
                   .message = fmt::format("\"{}\" has {} placement{}, {}, for a mesh of {} dims",
                                          parameter.name, placements->size(),
                                          placements->size() == 1 ? "" : "s",
                                          to_string(*placements), num_dims)};
  }
  return std::nullopt;
}

/// Of the cut of what is left at some place in the mesh.
std::optional<Finding> units_that_do_not_fit(const PlannedParameter& parameter,
                                             const Shape& whole) {
  const ShardCut& cut = parameter.cut;
  const std::int64_t cells = num_cells(cut, whole);
  const LocalUnits& units = cut.local_units;
  const auto finding = [&](FindingCode code, std::int64_t expected, std::int64_t got,
                           std::string message) {
    return Finding{.code = code,
                   .check = CheckId::Coverage,
                   .param = parameter.name,
                   .expected = static_cast<double>(expected),
                   .got = static_cast<double>(got),
                   .message = std::move(message)};
  };
  if (units.size() != cut.num_shards) {
    return finding(FindingCode::LayoutGap, cut.num_shards, units.size(),
                   fmt::format("\"{}\" is cut in {} shards by local units {}, of {}",
                               parameter.name, cut.num_shards, to_string(units), units.size()));
  }
  if (cells == 0 || (units.sum() > 0 && cells % units.sum() == 0)) return std::nullopt;
  const char* const rows = cut.is_by_rows() ? "rows" : "cells";
  if (units.sum() > cells) {
    return finding(
        FindingCode::LayoutOverlap, cells, units.sum(),
        fmt::format("shards of \"{}\" have {} = {} {}, there are {}: {} would be in two of them",
                    parameter.name, to_string(units), units.sum(), rows, cells,
                    units.sum() - cells));
  }
  const std::int64_t held = units.sum() == 0 ? 0 : cells / units.sum() * units.sum();
  return finding(
      FindingCode::LayoutGap, cells, held,
      fmt::format("shards of \"{}\" have {}, together {} of {} {}: {} [{}, {}) are held "
                  "by no shard",
                  parameter.name, to_string(units), held, cells, rows, rows, held, cells));
}

}  // namespace

std::optional<Finding> malformed_layout(const Mesh& mesh, const PlannedParameter& parameter) {
  if (auto finding = wrong_number_of_placements(mesh, parameter)) return finding;
  if (!parameter.cut.is_ragged()) return std::nullopt;
  PlannedParameter uncut = parameter;
  uncut.cut = {};
  uncut.sharded_group = {};
  for (const Coordinate& at : telling_wholes(mesh, uncut)) {
    const Box whole = local_box({uncut.shape, uncut.unsharded}, mesh, at);
    if (auto finding = units_that_do_not_fit(parameter, whole.shape)) return finding;
  }
  return std::nullopt;
}

bool has_boxes(const TensorLayout& layout, const Mesh& mesh, const Coordinate& coordinate) {
  if (layout.placements.size() != static_cast<std::size_t>(mesh.num_dims())) return false;
  for (std::size_t dim = 0; dim < layout.placements.size(); ++dim) {
    const auto* plain = std::get_if<RaggedShard>(&layout.placements[dim]);
    const auto* strided = std::get_if<RaggedStridedShard>(&layout.placements[dim]);
    if (plain == nullptr && strided == nullptr) continue;
    const std::vector<int>& dims = plain != nullptr ? plain->dims : strided->dims;
    // What is left where those have cut that cut before it; other mesh dims that are in its way.
    TensorLayout before = layout;
    before.placements[dim] = Replicate{};
    MeshDims others;
    for (const int tensor_dim : dims) {
      bool is_before = true;
      for (const int other : cutting_order(layout.placements, tensor_dim)) {
        const auto at = static_cast<std::size_t>(other);
        if (at == dim) {
          is_before = false;
          continue;
        }
        others = union_of(others, {other});
        if (!is_before && dims.size() == 1) before.placements[at] = Replicate{};
      }
    }
    std::int64_t cells = 1;
    for (const int tensor_dim : dims)
      cells *= local_box(before, mesh, coordinate).shape.at(static_cast<std::size_t>(tensor_dim));
    const auto index = static_cast<std::size_t>(mesh.index_along(others, coordinate));
    if (strided != nullptr && strided->local_units.size() != 1 &&
        strided->local_units.size() <= index) {
      return false;
    }
    const LocalUnits& units = plain != nullptr                   ? plain->local_units
                              : strided->local_units.size() == 1 ? strided->local_units[0]
                                                                 : strided->local_units[index];
    if (units.size() != mesh.size(static_cast<int>(dim))) return false;
    if (cells > 0 && (units.sum() == 0 || cells % units.sum() != 0)) return false;
  }
  return true;
}

}  // namespace hpsim
