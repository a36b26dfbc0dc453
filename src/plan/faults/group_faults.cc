#include <optional>

#include "plan/faults/plan_edits.h"
#include "plan/faults/planning_tables.h"

namespace hpsim {
namespace {

/// A mesh dim of several ranks that is none of `dims`, of the same number of ranks if there is one.
std::optional<int> another_dim(const Mesh& mesh, const MeshDims& dims) {
  std::optional<int> other;
  for (int dim = 0; dim < mesh.num_dims(); ++dim) {
    if (mesh.size(dim) == 1 || contains(dims, dim)) continue;
    if (!other || (mesh.size(*other) != mesh.size(dims) && mesh.size(dim) == mesh.size(dims)))
      other = dim;
  }
  return other;
}

void set_group(CollectiveSpec& spec, const Mesh& mesh, MeshDims dims) {
  spec.group_size = mesh.size(dims);
  spec.consecutive = 0;
  spec.dims = std::move(dims);
}

/// Over another mesh dim than the one that asks for it.
bool take_another_dim(Plan& plan, const FaultSpec& fault) {
  const Mesh& mesh = plan.scenario.mesh;
  return change_steps(plan, fault, [&](Step& step) {
    if (!step.collective) return false;
    const std::optional<int> other = another_dim(mesh, step.collective->dims);
    if (!other) return false;
    set_group(*step.collective, mesh, {*other});
    return true;
  });
}

/// Over one more mesh dim.
bool take_one_more_dim(Plan& plan, const FaultSpec& fault) {
  const Mesh& mesh = plan.scenario.mesh;
  return change_steps(plan, fault, [&](Step& step) {
    if (!step.collective) return false;
    const std::optional<int> other = another_dim(mesh, step.collective->dims);
    if (!other) return false;
    set_group(*step.collective, mesh, union_of(step.collective->dims, {*other}));
    return true;
  });
}

/// Whether the ranks along `dims` are neighbours: no dim of several ranks varies faster than one of
/// them, and is none of them.
bool are_neighbours(const Mesh& mesh, const MeshDims& dims) {
  bool is_inside = false;
  for (int dim = 0; dim < mesh.num_dims(); ++dim) {
    if (mesh.size(dim) == 1) continue;
    const bool is_of_them = contains(dims, dim);
    if (is_inside && !is_of_them) return false;
    is_inside = is_inside || is_of_them;
  }
  return true;
}

/// Among as many neighbouring ranks, where members lie further apart.
bool take_neighbours(Plan& plan, const FaultSpec& fault) {
  const Mesh& mesh = plan.scenario.mesh;
  MeshDims all;
  for (int dim = 0; dim < mesh.num_dims(); ++dim) {
    if (mesh.size(dim) > 1) all.push_back(dim);
  }
  return change_steps(plan, fault, [&](Step& step) {
    if (!step.collective || step.collective->consecutive > 0) return false;
    CollectiveSpec& spec = *step.collective;
    if (are_neighbours(mesh, spec.dims)) return false;
    spec.consecutive = spec.group_size;
    spec.dims = all;
    return true;
  });
}

}  // namespace

std::vector<NamedPlanFault> group_operators() {
  return {{"plan_group_wrong_dim", take_another_dim},
          {"plan_group_extra_dim", take_one_more_dim},
          {"plan_group_consecutive", take_neighbours}};
}

}  // namespace hpsim
