#include <algorithm>

#include "plan/passes/passes.h"
#include "plan/rank_layout.h"
#include "scenario/module_layouts.h"
#include "scenario/precision.h"

namespace hpsim {
namespace {

GroupInfo group_along(const Mesh& mesh, MeshDims dims) {
  const std::int64_t size = mesh.size(dims);
  return {std::move(dims), size};
}

MeshDims without(const MeshDims& dims, const MeshDims& removed) {
  MeshDims rest;
  for (const int dim : dims) {
    if (!contains(removed, dim)) rest.push_back(dim);
  }
  return rest;
}

/// Elements of a slot, wherever TP leaves a rank.
PerCoordinate slot_elems(const Plan& plan, const PlannedParameter& parameter) {
  const Mesh& mesh = plan.mesh();
  const auto elems_at = [&](const Coordinate& coordinate) {
    return num_elems(padded_shape_at(mesh, parameter, coordinate));
  };
  // The ceil rule leaves the longest piece at the first coordinate, the shortest at the last.
  const TensorLayout layout{parameter.shape, parameter.unsharded};
  const MeshDims dims = cutting_dims(parameter.unsharded);
  Coordinate first(static_cast<std::size_t>(mesh.num_dims()), 0);
  Coordinate last = first;
  for (const int dim : dims)
    last[static_cast<std::size_t>(dim)] = mesh.size(dim) - 1;
  if (local_box(layout, mesh, first).shape == local_box(layout, mesh, last).shape) {
    return elems_at(first);
  }
  return PerCoordinate::tabulate(mesh, dims, elems_at);
}

}  // namespace

Plan lay_out_parameters(Plan plan) {
  const Scenario& scenario = plan.scenario;
  const Mesh& mesh = scenario.mesh;
  const std::vector<MeshDims> partial = partial_dims(scenario);
  for (int p = 0; p < static_cast<int>(scenario.parameters.size()); ++p) {
    const ParameterSpec& spec = scenario.parameters[static_cast<std::size_t>(p)];
    PlannedParameter parameter;
    parameter.name = spec.name;
    parameter.shape = spec.shape;
    parameter.dtype = parameter_dtype(scenario, p);
    parameter.compute_dtype = compute_dtype(scenario, p);
    parameter.unsharded = placements_of(scenario, p);
    parameter.sharded = parameter.unsharded;
    const MeshDims placed = cutting_dims(parameter.unsharded);

    MeshDims shard_dims;
    if (is_sharded(scenario, p)) {
      const int dim = *scenario.roles.fsdp_shard_dim;
      shard_dims = {dim};
      parameter.cut = shard_cut_of(scenario, p, mesh.size(dim));
      parameter.sharded[static_cast<std::size_t>(dim)] = fully_shard_placement(
          parameter.cut, {spec.shape, parameter.unsharded}, mesh, scenario.fully_shard.vocabulary);
    }
    const MeshDims domain = is_ignored(scenario, p) ? MeshDims{} : fully_shard_domain(scenario);
    const MeshDims copies = without(without(domain, placed), shard_dims);
    parameter.partial_dims = partial[static_cast<std::size_t>(p)];
    const MeshDims others = without(parameter.partial_dims, domain);
    parameter.sharded_group = group_along(mesh, std::move(shard_dims));
    parameter.unsharded_group = group_along(mesh, copies);
    parameter.partial_group = group_along(mesh, others);
    parameter.padded_elems = slot_elems(plan, parameter);
    plan.parameters.push_back(std::move(parameter));
  }
  return plan;
}

bool has_parameters(const Plan& plan) {
  return plan.parameters.size() == plan.scenario.parameters.size() &&
         std::all_of(plan.parameters.begin(), plan.parameters.end(), [&](const auto& parameter) {
           return static_cast<int>(parameter.sharded.size()) == plan.mesh().num_dims();
         });
}

}  // namespace hpsim
