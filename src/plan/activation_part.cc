#include "plan/activation_part.h"

#include <algorithm>
#include <iterator>

#include "base/check.h"

namespace hpsim {
namespace {

CollectiveOp collective_op(RedistributeOp op) {
  switch (op) {
    case RedistributeOp::AllGather:
      return CollectiveOp::AllGather;
    case RedistributeOp::AllToAll:
      return CollectiveOp::AllToAll;
    case RedistributeOp::AllReduce:
      return CollectiveOp::AllReduce;
    case RedistributeOp::ReduceScatter:
      return CollectiveOp::ReduceScatter;
    case RedistributeOp::Keep:
    case RedistributeOp::Slice:
    case RedistributeOp::KeepFirst:
    case RedistributeOp::Embed:
      break;
  }
  HPSIM_CHECK(false, "{} sends nothing", name_of(op));
  return CollectiveOp::AllReduce;
}

/// Whether the parts of `layout` that the group holds, one behind the other, are the whole in the
/// order in which it is stored: no padding, and cut along the first dim that the whole is larger
/// than 1 along, or along none.
bool is_stored_in_order(const Plan& plan, const Redistribution& redistribution,
                        const std::vector<Placement>& parts, const std::vector<Placement>& whole,
                        const Coordinate& coordinate, std::int64_t slot_elems) {
  const Scenario& scenario = plan.scenario;
  const std::int64_t features = redistribution.features;
  const ActivationPart all = activation_part(scenario, whole, features, coordinate);
  const bool is_one_sample = num_samples(scenario, all) == 1;
  const bool is_one_row = num_rows(scenario, all) == 1;
  std::vector<std::int64_t> data_ranks;
  for (const Coordinate& member :
       group_coordinates(plan.mesh(), redistribution.transition.mesh_dims, coordinate)) {
    const ActivationPart part = activation_part(scenario, parts, features, member);
    if (num_elems(scenario, part) != slot_elems) return false;
    if (part.positions != all.positions && !is_one_sample) return false;
    if (part.features != all.features && !is_one_row) return false;
    data_ranks.insert(data_ranks.end(), part.data_ranks.begin(), part.data_ranks.end());
  }
  return is_one_sample || data_ranks == all.data_ranks;
}

}  // namespace

ActivationPart activation_part(const Scenario& scenario, const std::vector<Placement>& layout,
                               std::int64_t features, const Coordinate& coordinate) {
  const Mesh& mesh = scenario.mesh;
  const MeshDims cut = cutting_order(layout, 0);
  MeshDims gathered;
  Coordinate own = coordinate;
  for (const int dim : scenario.data.data_dims) {
    if (contains(cut, dim)) continue;
    gathered.push_back(dim);
    own[static_cast<std::size_t>(dim)] = 0;
  }
  ActivationPart part;
  do {
    part.data_ranks.push_back(mesh.index_along(scenario.data.data_dims, own));
  } while (advance(mesh, gathered, own));
  std::sort(part.data_ranks.begin(), part.data_ranks.end());
  const auto cut_of = [&](std::int64_t extent, int tensor_dim) {
    Interval kept = {0, extent};
    for (const int dim : cutting_order(layout, tensor_dim)) {
      const Interval part_of = shard_interval(
          kept.length(), {coordinate.at(static_cast<std::size_t>(dim)), mesh.size(dim)});
      kept = {kept.begin + part_of.begin, kept.begin + part_of.end};
    }
    return kept;
  };
  const ModelSpec& model = scenario.model;
  part.positions = {0, num_positions(model)};
  if (!model.positions.empty()) part.positions = cut_of(model.positions[0], kSequenceDim);
  part.features = cut_of(features, feature_dim(model));
  return part;
}

ActivationPart intersection(const ActivationPart& a, const ActivationPart& b) {
  ActivationPart both;
  std::set_intersection(a.data_ranks.begin(), a.data_ranks.end(), b.data_ranks.begin(),
                        b.data_ranks.end(), std::back_inserter(both.data_ranks));
  both.positions = intersect(a.positions, b.positions);
  both.features = intersect(a.features, b.features);
  return both;
}

std::int64_t num_samples(const Scenario& scenario, const ActivationPart& part) {
  return static_cast<std::int64_t>(part.data_ranks.size()) * scenario.micro_batch_size();
}

std::int64_t num_rows(const Scenario& scenario, const ActivationPart& part) {
  return num_samples(scenario, part) * part.positions.length();
}

std::int64_t num_elems(const Scenario& scenario, const ActivationPart& part) {
  return num_rows(scenario, part) * part.features.length();
}

std::int64_t RedistributionSizes::wire_in_elems(RedistributeOp op) const {
  if (!communicates(op)) return 0;
  if (op == RedistributeOp::AllReduce) return before_elems;
  return op == RedistributeOp::AllGather ? slot_elems : group_size * slot_elems;
}

std::int64_t RedistributionSizes::wire_out_elems(RedistributeOp op) const {
  if (!communicates(op)) return 0;
  if (op == RedistributeOp::AllReduce) return after_elems;
  return op == RedistributeOp::ReduceScatter ? slot_elems : group_size * slot_elems;
}

std::int64_t attention_scratch_elems(std::int64_t seq, bool is_backward) {
  return std::min(seq, kQueryTile) * seq * (is_backward ? 2 : 1);
}

std::vector<Coordinate> group_coordinates(const Mesh& mesh, const MeshDims& dims,
                                          const Coordinate& coordinate) {
  Coordinate member = coordinate;
  for (const int dim : dims)
    member[static_cast<std::size_t>(dim)] = 0;
  std::vector<Coordinate> members;
  do {
    members.push_back(member);
  } while (advance(mesh, dims, member));
  return members;
}

namespace {

/// Sizes but for `packs` and `unpacks`, which the collective does not depend on.
RedistributionSizes slot_sizes(const Plan& plan, const Redistribution& redistribution,
                               const Coordinate& coordinate) {
  const Scenario& scenario = plan.scenario;
  const auto& [op, mesh_dims, before, after] = redistribution.transition;
  const std::int64_t features = redistribution.features;
  RedistributionSizes sizes;
  sizes.before_elems = num_elems(scenario, activation_part(scenario, before, features, coordinate));
  sizes.after_elems = num_elems(scenario, activation_part(scenario, after, features, coordinate));
  sizes.group_size = plan.mesh().size(mesh_dims);
  if (!communicates(op) || op == RedistributeOp::AllReduce) return sizes;
  // The ceil rule gives the first member the longest part, before and after.
  Coordinate first = coordinate;
  for (const int dim : mesh_dims)
    first[static_cast<std::size_t>(dim)] = 0;
  sizes.slot_elems =
      num_elems(scenario, intersection(activation_part(scenario, before, features, first),
                                       activation_part(scenario, after, features, first)));
  return sizes;
}

}  // namespace

RedistributionSizes redistribution_sizes(const Plan& plan, const Redistribution& redistribution,
                                         const Coordinate& coordinate) {
  const auto& [op, mesh_dims, before, after] = redistribution.transition;
  RedistributionSizes sizes = slot_sizes(plan, redistribution, coordinate);
  if (!communicates(op) || op == RedistributeOp::AllReduce) return sizes;
  switch (op) {
    case RedistributeOp::AllGather:
      sizes.packs = sizes.before_elems != sizes.slot_elems;
      sizes.unpacks =
          !is_stored_in_order(plan, redistribution, before, after, coordinate, sizes.slot_elems);
      break;
    case RedistributeOp::ReduceScatter:
      sizes.packs =
          !is_stored_in_order(plan, redistribution, after, before, coordinate, sizes.slot_elems);
      sizes.unpacks = sizes.after_elems != sizes.slot_elems;
      break;
    default:
      sizes.packs = sizes.unpacks = true;
      break;
  }
  return sizes;
}

std::optional<CollectiveSpec> redistribution_collective(const Plan& plan,
                                                        const Redistribution& redistribution) {
  const Transition& transition = redistribution.transition;
  if (!communicates(transition.op)) return std::nullopt;
  const Mesh& mesh = plan.mesh();
  MeshDims uneven;  // that cut features: ranks along them may hold different sizes
  for (const std::vector<Placement>* layout : {&transition.before, &transition.after}) {
    for (int tensor_dim = 1; tensor_dim <= feature_dim(plan.scenario.model); ++tensor_dim) {
      for (const int dim : cutting_order(*layout, tensor_dim)) {
        if (!contains(transition.mesh_dims, dim)) uneven = union_of(uneven, {dim});
      }
    }
  }
  const auto tabulate = [&](std::int64_t (RedistributionSizes::*elems)(RedistributeOp) const) {
    const auto elems_at = [&](const Coordinate& coordinate) {
      return (slot_sizes(plan, redistribution, coordinate).*elems)(transition.op);
    };
    Coordinate first(static_cast<std::size_t>(mesh.num_dims()), 0);
    Coordinate last = first;
    for (const int dim : uneven)
      last[static_cast<std::size_t>(dim)] = mesh.size(dim) - 1;
    // The longest piece is at the first coordinate, the shortest at the last.
    if (elems_at(first) == elems_at(last)) return PerCoordinate(elems_at(first));
    return PerCoordinate::tabulate(mesh, uneven, elems_at);
  };
  return CollectiveSpec{
      .op = collective_op(transition.op),
      .dims = transition.mesh_dims,
      .group_size = mesh.size(transition.mesh_dims),
      .dtype = plan.values.at(static_cast<std::size_t>(redistribution.from)).dtype,
      .elems_in = tabulate(&RedistributionSizes::wire_in_elems),
      .elems_out = tabulate(&RedistributionSizes::wire_out_elems)};
}

}  // namespace hpsim
