#include "layout/shard_cut.h"

#include <algorithm>

#include "base/check.h"

namespace hpsim {
namespace {

std::size_t dim_of(const ShardCut& cut) {
  return static_cast<std::size_t>(cut.dims.at(0));
}

std::int64_t cells_per_unit(const ShardCut& cut, std::int64_t cells) {
  HPSIM_CHECK(cut.local_units.size() == cut.num_shards && cut.local_units.sum() > 0 &&
                  cells % cut.local_units.sum() == 0,
              "{} units in {} shards of {} cells", cut.local_units.sum(), cut.num_shards, cells);
  return cells / cut.local_units.sum();
}

/// Elements of one cell.
std::int64_t cell_elems(const ShardCut& cut, const Shape& whole) {
  const std::int64_t cells = num_cells(cut, whole);
  if (cells > 0) return num_elems(whole) / cells;
  Shape one = whole;
  for (const int dim : cut.dims)
    one.at(static_cast<std::size_t>(dim)) = 1;
  return num_elems(one);
}

}  // namespace

std::int64_t num_cells(const ShardCut& cut, const Shape& whole) {
  std::int64_t cells = 1;
  for (const int dim : cut.dims)
    cells *= whole.at(static_cast<std::size_t>(dim));
  return cells;
}

std::vector<ShardRun> shard_runs(const ShardCut& cut, const Shape& whole) {
  const std::int64_t cells = num_cells(cut, whole);
  if (!cut.is_ragged()) return shard_runs(cells, cut.num_shards, cut.chunking);
  const std::int64_t per_unit = cells_per_unit(cut, cells);
  std::vector<ShardRun> runs;
  std::int64_t shard = 0;
  std::int64_t first = 0;
  for (const LocalUnits::Run& run : cut.local_units.runs()) {
    const std::int64_t length = run.value * per_unit;
    runs.push_back({{shard, shard + run.count}, first, length});
    shard += run.count;
    first += run.count * length;
  }
  return runs;
}

Interval shard_cells(const ShardCut& cut, const Shape& whole, std::int64_t index) {
  const std::int64_t cells = num_cells(cut, whole);
  if (!cut.is_ragged()) return shard_interval(cells, {index, cut.num_shards}, cut.chunking);
  const std::int64_t per_unit = cells_per_unit(cut, cells);
  const Interval units = cut.local_units.interval(index);
  return {units.begin * per_unit, units.end * per_unit};
}

std::vector<Box> shard_boxes(const ShardCut& cut, const Shape& whole, std::int64_t index) {
  const Interval cells = shard_cells(cut, whole, index);
  Box box{std::vector<std::int64_t>(whole.size(), 0), whole};
  if (cut.dims.size() > 1) return boxes_of_cells(box, static_cast<int>(cut.dims.size()), cells);
  box.offset.at(dim_of(cut)) = cells.begin;
  box.shape.at(dim_of(cut)) = cells.length();
  return {std::move(box)};
}

std::int64_t shard_elems(const ShardCut& cut, const Shape& whole, std::int64_t index) {
  return shard_cells(cut, whole, index).length() * cell_elems(cut, whole);
}

Shape padded_shape(const ShardCut& cut, const Shape& whole) {
  std::int64_t cells = 0;
  if (cut.is_ragged()) {
    cells = cut.local_units.largest() * cells_per_unit(cut, num_cells(cut, whole));
  } else {
    cells = padded_shard_length(num_cells(cut, whole), cut.num_shards);
  }
  if (cut.dims.size() > 1) return {cells * cell_elems(cut, whole)};
  Shape padded = whole;
  padded.at(dim_of(cut)) = cells;
  return padded;
}

bool is_even(const ShardCut& cut, const Shape& whole) {
  return whole.at(dim_of(cut)) % cut.num_shards == 0;
}

Placement fully_shard_placement(const ShardCut& cut, const TensorLayout& unsharded,
                                const Mesh& mesh, Vocabulary vocabulary) {
  const int dim = cut.dims.at(0);
  MeshDims others;
  for (const int each : cut.dims) {
    for (const int other : cutting_order(unsharded.placements, each))
      others = union_of(others, {other});
  }
  const std::int64_t factor = mesh.size(others);
  if (cut.is_ragged()) {
    if (factor == 1) return RaggedShard{cut.dims, cut.local_units};
    return RaggedStridedShard{cut.dims, {cut.local_units}, factor};
  }
  // The first coordinate along the other dims has the longest piece, the last one the shortest.
  Coordinate last(static_cast<std::size_t>(mesh.num_dims()), 0);
  const auto whole_at = [&](const Coordinate& coordinate) {
    return local_box(unsharded, mesh, coordinate).shape;
  };
  const Shape longest = whole_at(last);
  for (const int other : others)
    last[static_cast<std::size_t>(other)] = mesh.size(other) - 1;
  const bool is_same_everywhere = whole_at(last) == longest;
  std::vector<LocalUnits> units;
  bool divides = is_even(cut, longest);
  if (is_same_everywhere) {
    units.emplace_back(shard_runs(cut, longest));
  } else {
    Coordinate coordinate(static_cast<std::size_t>(mesh.num_dims()), 0);
    do {
      const Shape whole = whole_at(coordinate);
      divides = divides && is_even(cut, whole);
      units.emplace_back(shard_runs(cut, whole));
    } while (advance(mesh, others, coordinate));
  }
  const bool is_marked = !divides && vocabulary == Vocabulary::UnevenFlag;
  if (divides || vocabulary != Vocabulary::Ragged) {
    if (factor == 1) return Shard{dim, is_marked};
    return StridedShard{dim, factor, is_marked};
  }
  if (factor == 1) return RaggedShard{cut.dims, units.at(0)};
  return RaggedStridedShard{cut.dims, std::move(units), factor};
}

}  // namespace hpsim
