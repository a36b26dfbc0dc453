#include "plan/axis_cuts.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/units.h"

namespace hpsim {
namespace {

/// The parts of `run`, each cut once more.
void append_nested(const PartRun& run, const std::vector<ShardRun>& inner, std::int64_t slot,
                   std::vector<PartRun>& runs) {
  for (const ShardRun& shards : inner) {
    PartRun nested = run;
    nested.coordinates.push_back(shards.shards);
    nested.strides.push_back(shards.length);
    const std::int64_t begin = run.first.begin + shards.first;
    nested.first = {begin, begin + shards.length};
    nested.slot = slot;
    runs.push_back(std::move(nested));
  }
}

std::int64_t longest(const std::vector<ShardRun>& shards) {
  std::int64_t length = 0;
  for (const ShardRun& run : shards)
    length = std::max(length, run.length);
  return length;
}

}  // namespace

std::int64_t PartRun::num_parts() const {
  std::int64_t count = 1;
  for (const Interval& each : coordinates)
    count *= each.length();
  return count;
}

Interval PartRun::part(std::int64_t part) const {
  std::int64_t begin = first.begin;
  for (std::size_t i = coordinates.size(); i-- > 0;) {
    begin += part % coordinates[i].length() * strides[i];
    part /= coordinates[i].length();
  }
  return {begin, begin + length()};
}

bool PartRun::is_contiguous() const {
  return last().end - first.begin == num_parts() * length();
}

std::vector<AxisCut> axis_cuts(const Mesh& mesh, const PlannedParameter& parameter) {
  HPSIM_CHECK(parameter.shard_size() == 1 || parameter.cut.dims.size() == 1,
              "\"{}\" is cut along several dims at once", parameter.name);
  std::vector<AxisCut> cuts;
  for (int dim = 0; dim < static_cast<int>(parameter.shape.size()); ++dim) {
    const std::int64_t extent = parameter.shape[static_cast<std::size_t>(dim)];
    AxisCut cut{dim, {}, {{{}, {}, {0, extent}, extent}}};
    for (const int mesh_dim : cutting_order(parameter.unsharded, dim)) {
      if (mesh.size(mesh_dim) == 1) continue;
      std::vector<PartRun> runs;
      for (const PartRun& run : cut.runs) {
        for (const ShardRun& part : shard_runs(run.length(), mesh.size(mesh_dim)))
          append_nested(run, {part}, part.length, runs);
      }
      cut.mesh_dims.push_back(mesh_dim);
      cut.runs = std::move(runs);
    }
    if (parameter.shard_size() > 1 && parameter.cut.dims.at(0) == dim) {
      std::vector<PartRun> runs;
      for (const PartRun& run : cut.runs) {
        Shape whole = parameter.shape;
        whole[static_cast<std::size_t>(dim)] = run.length();
        const auto inner = shard_runs(parameter.cut, whole);
        append_nested(run, inner, longest(inner), runs);
      }
      cut.mesh_dims.push_back(parameter.sharded_group.dims.at(0));
      cut.runs = std::move(runs);
    }
    if (!cut.mesh_dims.empty()) cuts.push_back(std::move(cut));
  }
  return cuts;
}

std::vector<Band> bands_of(const AxisCut& cut) {
  std::vector<Band> bands;
  for (const PartRun& run : cut.runs) {
    for (std::int64_t part = 0; part < run.num_parts(); ++part) {
      Band band{run.part(part), std::vector<std::int64_t>(run.coordinates.size()), run.slot};
      std::int64_t rest = part;
      for (std::size_t i = run.coordinates.size(); i-- > 0;) {
        band.coordinates[i] = run.coordinates[i].begin + rest % run.coordinates[i].length();
        rest /= run.coordinates[i].length();
      }
      bands.push_back(std::move(band));
    }
  }
  std::stable_sort(bands.begin(), bands.end(), [](const Band& a, const Band& b) {
    return std::pair(a.indices.begin, a.indices.end) < std::pair(b.indices.begin, b.indices.end);
  });
  return bands;
}

std::string counted_indices(const Shape& shape, int tensor_dim, std::int64_t count) {
  return fmt::format("{} {}", format_count(count), noun_of_indices(shape, tensor_dim, count == 1));
}

std::string noun_of_indices(const Shape& shape, int tensor_dim, bool is_one) {
  if (shape.size() == 1) return is_one ? "element" : "elements";
  if (tensor_dim == 0) return is_one ? "row" : "rows";
  if (shape.size() == 2) return is_one ? "column" : "columns";
  return fmt::format("{} of dim {}", is_one ? "index" : "indices", tensor_dim);
}

}  // namespace hpsim
