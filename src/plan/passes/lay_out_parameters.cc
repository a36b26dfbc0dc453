#include <algorithm>

#include "plan/passes/passes.h"

namespace hpsim {
namespace {

GroupInfo group_along(const Mesh& mesh, MeshDims dims) {
  const std::int64_t size = mesh.size(dims);
  return {std::move(dims), size};
}

/// Mesh dims of the fully_shard domain: those with a data-parallel role; where there is none, every
/// dim (the compatibility path of a mesh without data-parallel dims).
MeshDims fully_shard_domain(const Scenario& scenario) {
  MeshDims domain;
  for (int dim = 0; dim < scenario.mesh.num_dims(); ++dim) {
    if (scenario.roles.fsdp_shard_dim == dim || scenario.roles.dp_replicate_dim == dim) {
      domain.push_back(dim);
    }
  }
  if (!domain.empty()) return domain;
  for (int dim = 0; dim < scenario.mesh.num_dims(); ++dim)
    domain.push_back(dim);
  return domain;
}

}  // namespace

Plan lay_out_parameters(Plan plan) {
  const Scenario& scenario = plan.scenario;
  const Mesh& mesh = scenario.mesh;
  const MeshDims domain = fully_shard_domain(scenario);
  const auto& replicated = scenario.fully_shard.replicate_params;
  for (int p = 0; p < static_cast<int>(scenario.parameters.size()); ++p) {
    const ParameterSpec& spec = scenario.parameters[static_cast<std::size_t>(p)];
    PlannedParameter parameter;
    parameter.name = spec.name;
    parameter.shape = spec.shape;
    parameter.unsharded.assign(static_cast<std::size_t>(mesh.num_dims()), Replicate{});
    parameter.sharded = parameter.unsharded;

    const bool is_cut = scenario.fully_shard.shards_parameters &&
                        std::find(replicated.begin(), replicated.end(), p) == replicated.end();
    MeshDims cut_dims;
    if (is_cut) {
      cut_dims = {*scenario.roles.fsdp_shard_dim};
      parameter.sharded[static_cast<std::size_t>(cut_dims[0])] =
          fsdp_placement(spec.shape.at(0), mesh.size(cut_dims[0]));
    }
    MeshDims copy_dims;
    MeshDims partial_dims;
    for (int dim = 0; dim < mesh.num_dims(); ++dim) {
      if (contains(cut_dims, dim)) continue;
      if (contains(domain, dim)) {
        copy_dims.push_back(dim);
      } else if (contains(scenario.data.data_dims, dim)) {
        partial_dims.push_back(dim);
      }
    }
    parameter.sharded_group = group_along(mesh, std::move(cut_dims));
    parameter.unsharded_group = group_along(mesh, std::move(copy_dims));
    parameter.partial_group = group_along(mesh, std::move(partial_dims));
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
