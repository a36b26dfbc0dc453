// Groups that ranks take instead of the plan's.

#include <algorithm>
#include <functional>
#include <numeric>
#include <optional>
#include <tuple>
#include <utility>

#include "mesh/group.h"
#include "plan/faults/executed_faults.h"
#include "plan/faults/plan_edits.h"

namespace hpsim {
namespace {

/// Mesh dims, and the length of runs along them; 0: whole groups.
using GroupChoice = std::pair<MeshDims, std::int64_t>;
using ChooseGroup = std::function<std::optional<GroupChoice>(const Mesh&, const CollectiveSpec&)>;

bool is_regrouped(const Plan& plan, const FaultSpec& fault, const Step& step) {
  if (!step.collective || step.collective->consecutive > 0 || !fault.is_in(step.step)) return false;
  if (moves_tokens(step.kind) || step.kind == StepKind::Loss) return false;
  return is_aimed(plan, fault, step);
}

bool has_other_members(const Mesh& mesh, const CollectiveSpec& spec, const GroupChoice& choice) {
  return groups_along(mesh, choice.first, choice.second) !=
         groups_along(mesh, spec.dims, spec.consecutive);
}

/// Whether any group is another one then.
bool regroup(Plan& plan, const FaultSpec& fault, const ChooseGroup& choose) {
  bool has_changed = false;
  const Mesh mesh = plan.mesh();
  for (Step& step : plan.steps) {
    if (!is_regrouped(plan, fault, step)) continue;
    CollectiveSpec& spec = *step.collective;
    const auto choice = choose(mesh, spec);
    if (!choice || !has_other_members(mesh, spec, *choice)) continue;
    std::tie(spec.dims, spec.consecutive) = *choice;
    spec.group_size = spec.consecutive > 0 ? spec.consecutive : mesh.size(spec.dims);
    has_changed = true;
  }
  return has_changed;
}

std::optional<GroupChoice> other_dim(const Mesh& mesh, const CollectiveSpec& spec) {
  for (std::size_t i = 0; i < spec.dims.size(); ++i) {
    for (int other = 0; other < mesh.num_dims(); ++other) {
      if (contains(spec.dims, other) || mesh.size(other) != mesh.size(spec.dims[i])) continue;
      MeshDims dims = spec.dims;
      dims[i] = other;
      std::sort(dims.begin(), dims.end());
      return GroupChoice{dims, 0};
    }
  }
  return std::nullopt;
}

std::optional<GroupChoice> consecutive_ranks(const Mesh& mesh, const CollectiveSpec& spec) {
  MeshDims all(static_cast<std::size_t>(mesh.num_dims()));
  std::iota(all.begin(), all.end(), 0);
  return GroupChoice{all, spec.group_size};
}

std::optional<GroupChoice> without_last_dim(const Mesh& mesh, const CollectiveSpec& spec) {
  if (spec.op != CollectiveOp::AllReduce) return std::nullopt;
  MeshDims dims = spec.dims;
  const auto last =
      std::find_if(dims.rbegin(), dims.rend(), [&](int dim) { return mesh.size(dim) > 1; });
  if (last == dims.rend()) return std::nullopt;
  dims.erase(std::next(last).base());
  if (mesh.size(dims) == 1) return std::nullopt;
  return GroupChoice{dims, 0};
}

}  // namespace

bool execute_wrong_group_dim(Plan& plan, const FaultSpec& fault) {
  return regroup(plan, fault, other_dim);
}

bool execute_wrong_group_stride(Plan& plan, const FaultSpec& fault) {
  return regroup(plan, fault, consecutive_ranks);
}

bool execute_dropped_group_dim(Plan& plan, const FaultSpec& fault) {
  return regroup(plan, fault, without_last_dim);
}

}  // namespace hpsim
