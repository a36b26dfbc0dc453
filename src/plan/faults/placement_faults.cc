#include <algorithm>
#include <utility>

#include "plan/faults/plan_edits.h"
#include "plan/faults/planning_tables.h"
#include "plan/rank_layout.h"
#include "plan/well_formed.h"

namespace hpsim {
namespace {

/// Calls `change(parameter)` for all at which the fault is aimed, which fully_shard cuts over
/// several ranks, and whose layout another fault has not made unreadable; whether one was changed.
template <class F>
bool change_cut(Plan& plan, const FaultSpec& fault, const F& change) {
  bool is_changed = false;
  for (int p = 0; p < static_cast<int>(plan.parameters.size()); ++p) {
    PlannedParameter& parameter = plan.parameters[static_cast<std::size_t>(p)];
    if (parameter.shard_size() == 1 || !is_aimed(plan, fault, p)) continue;
    if (!malformed_layout(plan.mesh(), parameter) && change(parameter)) is_changed = true;
  }
  return is_changed;
}

int shard_dim(const PlannedParameter& parameter) {
  return parameter.sharded_group.dims.at(0);
}

Placement& shard_placement(PlannedParameter& parameter) {
  return parameter.sharded.at(static_cast<std::size_t>(shard_dim(parameter)));
}

/// What TP and EP leave of a parameter, in every shape that it has.
std::vector<Shape> wholes_of(const Mesh& mesh, const PlannedParameter& parameter) {
  std::vector<Shape> wholes;
  for (const Coordinate& at : telling_wholes(mesh, parameter))
    wholes.push_back(local_box({parameter.shape, parameter.unsharded}, mesh, at).shape);
  return wholes;
}

void place_by_cut(const Plan& plan, PlannedParameter& parameter) {
  shard_placement(parameter) =
      fully_shard_placement(parameter.cut, {parameter.shape, parameter.unsharded}, plan.mesh(),
                            plan.scenario.fully_shard.vocabulary);
}

/// A slot begins one element too late.
bool shift_offset(Plan& plan, const FaultSpec& fault) {
  bool is_changed = false;
  for (int p = 0; p < static_cast<int>(plan.parameters.size()); ++p) {
    if (!is_aimed(plan, fault, p)) continue;
    PlannedParameter& parameter = plan.parameters[static_cast<std::size_t>(p)];
    parameter.offset_elems = parameter.offset_elems.plus(plan.mesh(), 1);
    is_changed = true;
  }
  return is_changed;
}

/// The slot of a shard without elements begins at 0, and lies over the first one of the row.
bool zero_empty_offset(Plan& plan, const FaultSpec& fault) {
  const Mesh& mesh = plan.mesh();
  return change_cut(plan, fault, [&](PlannedParameter& parameter) {
    const PerCoordinate offset = parameter.offset_elems;
    const auto wrong_offset = [&](const Coordinate& at) {
      return held_shard(mesh, parameter, at).elems == 0 ? 0 : offset.at(mesh, at);
    };
    const std::vector<Coordinate> coordinates = telling_coordinates(mesh, parameter);
    const bool has_place =
        std::any_of(coordinates.begin(), coordinates.end(),
                    [&](const Coordinate& at) { return wrong_offset(at) != offset.at(mesh, at); });
    if (!has_place) return false;
    const MeshDims dims = union_of(parameter.cut_dims(), offset.dims());
    parameter.offset_elems = PerCoordinate::tabulate(mesh, dims, wrong_offset);
    return true;
  });
}

/// Every shard has floor(n / p) of n cells, and the rest is nowhere.
bool floor_chunks(Plan& plan, const FaultSpec& fault) {
  return change_cut(plan, fault, [&](PlannedParameter& parameter) {
    if (parameter.cut.is_ragged()) return false;
    const std::int64_t shards = parameter.shard_size();
    for (const Shape& whole : wholes_of(plan.mesh(), parameter)) {
      const std::int64_t cells = num_cells(parameter.cut, whole);
      if (cells % shards == 0) continue;
      LocalUnits units;
      units.append(shards, cells / shards);
      parameter.cut.local_units = std::move(units);
      place_by_cut(plan, parameter);
      return true;
    }
    return false;
  });
}

/// Balanced chunks for those of the ceil rule, or the other way round.
bool exchange_chunk_rule(Plan& plan, const FaultSpec& fault) {
  return change_cut(plan, fault, [&](PlannedParameter& parameter) {
    if (parameter.cut.is_ragged()) return false;
    ShardCut other = parameter.cut;
    other.chunking = other.chunking == Chunking::Ceil ? Chunking::Balanced : Chunking::Ceil;
    const std::vector<Shape> wholes = wholes_of(plan.mesh(), parameter);
    const bool differs = std::any_of(wholes.begin(), wholes.end(), [&](const Shape& whole) {
      return shard_runs(parameter.cut, whole) != shard_runs(other, whole);
    });
    if (!differs) return false;
    parameter.cut = std::move(other);
    place_by_cut(plan, parameter);
    return true;
  });
}

/// Local units that are one more than there are cells, in the first shard.
bool add_a_unit(Plan& plan, const FaultSpec& fault) {
  return change_cut(plan, fault, [&](PlannedParameter& parameter) {
    const Shape whole = wholes_of(plan.mesh(), parameter).at(0);
    if (num_cells(parameter.cut, whole) == 0) return false;
    const LocalUnits right(shard_runs(parameter.cut, whole));
    LocalUnits units;
    bool is_first = true;
    for (const LocalUnits::Run& run : right.runs()) {
      if (is_first) units.append(1, run.value + 1);
      if (run.count > (is_first ? 1 : 0)) units.append(run.count - (is_first ? 1 : 0), run.value);
      is_first = false;
    }
    parameter.cut.local_units = std::move(units);
    place_by_cut(plan, parameter);
    return true;
  });
}

/// A strided placement says that twice as many parts lie outside its cut.
bool double_split_factor(Plan& plan, const FaultSpec& fault) {
  return change_cut(plan, fault, [&](PlannedParameter& parameter) {
    Placement& placement = shard_placement(parameter);
    if (auto* plain = std::get_if<StridedShard>(&placement)) {
      plain->split_factor *= 2;
      return true;
    }
    if (auto* ragged = std::get_if<RaggedStridedShard>(&placement)) {
      ragged->split_factor *= 2;
      return true;
    }
    return false;
  });
}

/// Placements of a parameter that fully_shard cuts first, and TP what that leaves.
std::vector<Placement> cut_first(const Plan& plan, const PlannedParameter& parameter) {
  std::vector<Placement> others = parameter.unsharded;
  std::vector<Placement> placements = parameter.unsharded;
  const int first = shard_dim(parameter);
  for (std::size_t dim = 0; dim < others.size(); ++dim) {
    for (const int each : parameter.cut.dims) {
      if (!cuts(others[dim], each)) continue;
      others[dim] = Replicate{};
      const std::int64_t factor =
          split_factor_of(parameter.unsharded[dim]) * plan.mesh().size(first);
      const bool is_left_to_right = first < static_cast<int>(dim);
      if (!is_left_to_right) placements[dim] = StridedShard{each, factor};
    }
  }
  placements.at(static_cast<std::size_t>(first)) = fully_shard_placement(
      parameter.cut, {parameter.shape, others}, plan.mesh(), plan.scenario.fully_shard.vocabulary);
  return placements;
}

/// Left to right: fully_shard cuts first, TP what that leaves.
bool exchange_cut_order(Plan& plan, const FaultSpec& fault) {
  const Mesh& mesh = plan.mesh();
  return change_cut(plan, fault, [&](PlannedParameter& parameter) {
    if (parameter.cut.is_ragged() || split_factor_of(shard_placement(parameter)) == 1) return false;
    std::vector<Placement> wrong = cut_first(plan, parameter);
    const std::vector<Coordinate> coordinates = telling_coordinates(mesh, parameter);
    const bool differs =
        std::any_of(coordinates.begin(), coordinates.end(), [&](const Coordinate& at) {
          return local_boxes({parameter.shape, wrong}, mesh, at) !=
                 held_shard(mesh, parameter, at).boxes;
        });
    if (!differs) return false;
    parameter.sharded = std::move(wrong);
    return true;
  });
}

/// One placement fewer than the mesh has dims: that of a dim along which all hold the same, if
/// there is one.
bool drop_placement(Plan& plan, const FaultSpec& fault) {
  if (plan.mesh().num_dims() < 2) return false;
  bool is_changed = false;
  for (int p = 0; p < static_cast<int>(plan.parameters.size()); ++p) {
    if (!is_aimed(plan, fault, p)) continue;
    std::vector<Placement>& placements = plan.parameters[static_cast<std::size_t>(p)].sharded;
    if (placements.empty()) continue;
    const auto same = std::find_if(placements.begin(), placements.end(),
                                   [](const Placement& each) { return !is_cut(each); });
    placements.erase(same == placements.end() ? placements.begin() : same);
    is_changed = true;
  }
  return is_changed;
}

/// Replicate, though fully_shard cuts it.
bool replicate_for_shard(Plan& plan, const FaultSpec& fault) {
  return change_cut(plan, fault, [](PlannedParameter& parameter) {
    shard_placement(parameter) = Replicate{};
    return true;
  });
}

}  // namespace

std::vector<NamedPlanFault> placement_operators() {
  return {
      {"plan_offset_shifted", shift_offset},     {"plan_empty_offset_zero", zero_empty_offset},
      {"plan_chunk_rule", exchange_chunk_rule},  {"plan_split_factor", double_split_factor},
      {"plan_cut_order", exchange_cut_order},    {"plan_replicate_for_shard", replicate_for_shard},
      {"plan_floor_chunk", floor_chunks},        {"plan_units_do_not_fit", add_a_unit},
      {"plan_placement_dropped", drop_placement}};
}

}  // namespace hpsim
