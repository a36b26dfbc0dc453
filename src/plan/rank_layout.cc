#include "plan/rank_layout.h"

#include <algorithm>
#include <set>

namespace hpsim {
namespace {

/// Where runs of coordinates with equal lengths begin, along one mesh dim.
using Starts = std::set<std::int64_t>;

void add_starts(const std::vector<ShardRun>& runs, Starts& starts) {
  for (const ShardRun& run : runs)
    starts.insert(run.shards.begin);
}

/// Per mesh dim: where the length of the parameter's shards changes.
std::vector<Starts> starts_of(const Mesh& mesh, const PlannedParameter& parameter) {
  std::vector<Starts> starts(static_cast<std::size_t>(mesh.num_dims()), Starts{0});
  std::vector<Shape> wholes = {parameter.shape};  // what the cuts so far leave, each once
  for (int dim = 0; dim < static_cast<int>(parameter.shape.size()); ++dim) {
    for (const int mesh_dim : cutting_order(parameter.unsharded, dim)) {
      std::set<Shape> parts;
      for (const Shape& whole : wholes) {
        const auto runs = shard_runs(whole[static_cast<std::size_t>(dim)], mesh.size(mesh_dim));
        add_starts(runs, starts[static_cast<std::size_t>(mesh_dim)]);
        for (const ShardRun& run : runs) {
          Shape part = whole;
          part[static_cast<std::size_t>(dim)] = run.length;
          parts.insert(std::move(part));
        }
      }
      wholes.assign(parts.begin(), parts.end());
    }
  }
  for (const int mesh_dim : parameter.sharded_group.dims) {
    for (const Shape& whole : wholes)
      add_starts(shard_runs(parameter.cut, whole), starts[static_cast<std::size_t>(mesh_dim)]);
  }
  return starts;
}

/// First and last of every run along each of `dims`, in all combinations.
std::vector<Coordinate> boundaries(const Mesh& mesh, const std::vector<Starts>& starts,
                                   const MeshDims& dims) {
  std::vector<Coordinate> coordinates = {Coordinate(static_cast<std::size_t>(mesh.num_dims()), 0)};
  for (const int mesh_dim : dims) {
    const auto at = static_cast<std::size_t>(mesh_dim);
    Starts entries = starts[at];
    for (const std::int64_t start : starts[at]) {
      if (start > 0) entries.insert(start - 1);
    }
    entries.insert(mesh.size(mesh_dim) - 1);
    std::vector<Coordinate> more;
    for (const Coordinate& coordinate : coordinates) {
      for (const std::int64_t entry : entries) {
        more.push_back(coordinate);
        more.back()[at] = entry;
      }
    }
    coordinates = std::move(more);
  }
  return coordinates;
}

/// The same for all parameters together.
std::vector<Starts> starts_of(const Plan& plan) {
  std::vector<Starts> starts(static_cast<std::size_t>(plan.mesh().num_dims()), Starts{0});
  for (const PlannedParameter& parameter : plan.parameters) {
    const std::vector<Starts> of_parameter = starts_of(plan.mesh(), parameter);
    for (std::size_t dim = 0; dim < starts.size(); ++dim)
      starts[dim].insert(of_parameter[dim].begin(), of_parameter[dim].end());
  }
  return starts;
}

}  // namespace

HeldShard held_shard(const Mesh& mesh, const PlannedParameter& parameter,
                     const Coordinate& coordinate) {
  HeldShard held;
  held.whole = local_box({parameter.shape, parameter.unsharded}, mesh, coordinate);
  held.index = mesh.index_along(parameter.sharded_group.dims, coordinate);
  held.boxes = shard_boxes(parameter.cut, held.whole.shape, held.index);
  held.elems = shard_elems(parameter.cut, held.whole.shape, held.index);
  for (Box& box : held.boxes) {
    for (std::size_t dim = 0; dim < box.offset.size(); ++dim)
      box.offset[dim] += held.whole.offset[dim];
  }
  return held;
}

bool needs_whole_copy(const PlannedParameter& parameter) {
  return parameter.shard_size() > 1 && !parameter.cut.is_by_rows();
}

Shape padded_shape_at(const Mesh& mesh, const PlannedParameter& parameter,
                      const Coordinate& coordinate) {
  const Box whole = local_box({parameter.shape, parameter.unsharded}, mesh, coordinate);
  return padded_shape(parameter.cut, whole.shape);
}

std::vector<Coordinate> telling_coordinates(const Mesh& mesh, const PlannedParameter& parameter) {
  return boundaries(mesh, starts_of(mesh, parameter), parameter.cut_dims());
}

std::vector<Coordinate> telling_wholes(const Mesh& mesh, const PlannedParameter& parameter) {
  return boundaries(mesh, starts_of(mesh, parameter), cutting_dims(parameter.unsharded));
}

double num_rank_classes(const Plan& plan) {
  double product = 1;
  for (const Starts& starts : starts_of(plan))
    product *= static_cast<double>(starts.size());
  return product;
}

std::vector<RankClass> rank_classes(const Plan& plan) {
  const Mesh& mesh = plan.mesh();
  const std::vector<Starts> starts = starts_of(plan);
  std::vector<RankClass> classes = {{Coordinate(starts.size(), 0), 1}};
  for (std::size_t dim = 0; dim < starts.size(); ++dim) {
    std::vector<RankClass> more;
    for (const RankClass& each : classes) {
      for (auto it = starts[dim].begin(); it != starts[dim].end(); ++it) {
        const auto next = std::next(it);
        const std::int64_t end =
            next == starts[dim].end() ? mesh.size(static_cast<int>(dim)) : *next;
        more.push_back({each.first, each.num_ranks * (end - *it)});
        more.back().first[dim] = *it;
      }
    }
    classes = std::move(more);
  }
  return classes;
}

}  // namespace hpsim
