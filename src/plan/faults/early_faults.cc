#include <algorithm>
#include <utility>

#include "plan/faults/plan_edits.h"
#include "plan/faults/planning_tables.h"
#include "plan/rank_layout.h"
#include "scenario/gradients.h"

namespace hpsim {
namespace {

MeshDims without(const MeshDims& dims, const MeshDims& removed) {
  MeshDims rest;
  for (const int dim : dims) {
    if (!contains(removed, dim)) rest.push_back(dim);
  }
  return rest;
}

bool is_trained(const Plan& plan, int p) {
  const std::int64_t steps = plan.scenario.training.steps;
  for (std::int64_t step = 0; step < steps; ++step) {
    if (has_gradient(plan.scenario, p, step)) return true;
  }
  return false;
}

/// Replicas are forgotten: mesh (rep 2, fsdp 4) is taken for (fsdp 4), whose gradients are no terms
/// of a sum along rep.
bool drop_replicas(Plan& plan, const FaultSpec& fault) {
  bool is_changed = false;
  for (int p = 0; p < static_cast<int>(plan.parameters.size()); ++p) {
    PlannedParameter& parameter = plan.parameters[static_cast<std::size_t>(p)];
    const MeshDims copies = parameter.unsharded_group.dims;
    const bool is_reduced = std::any_of(copies.begin(), copies.end(), [&](int dim) {
      return plan.mesh().size(dim) > 1 && contains(parameter.partial_dims, dim);
    });
    if (!is_reduced || !is_aimed(plan, fault, p) || !is_trained(plan, p)) continue;
    parameter.partial_dims = without(parameter.partial_dims, copies);
    parameter.unsharded_group = {};
    is_changed = true;
  }
  if (is_changed) plan_anew(plan);
  return is_changed;
}

/// Slots are as large as the true shards, which differ from rank to rank where rows are uneven.
bool expose_padding(Plan& plan, const FaultSpec& fault) {
  const Mesh& mesh = plan.mesh();
  bool is_changed = false;
  for (int p = 0; p < static_cast<int>(plan.parameters.size()); ++p) {
    PlannedParameter& parameter = plan.parameters[static_cast<std::size_t>(p)];
    if (parameter.shard_size() == 1 || !is_aimed(plan, fault, p)) continue;
    const auto true_elems = [&](const Coordinate& at) {
      return held_shard(mesh, parameter, at).elems;
    };
    const std::vector<Coordinate> coordinates = telling_coordinates(mesh, parameter);
    const bool is_padded =
        std::any_of(coordinates.begin(), coordinates.end(), [&](const Coordinate& at) {
          return true_elems(at) != parameter.padded_elems.at(mesh, at);
        });
    if (!is_padded) continue;
    parameter.padded_elems = PerCoordinate::tabulate(mesh, parameter.cut_dims(), true_elems);
    is_changed = true;
  }
  if (is_changed) plan_anew(plan);
  return is_changed;
}

/// Plans with other flags than the training has.
bool plan_with_flags(Plan& plan, std::vector<bool> gradient_syncs, std::vector<bool> all_reduces) {
  const TrainingSpec asked = plan.scenario.training;
  const auto count_collectives = [&] {
    return std::count_if(plan.steps.begin(), plan.steps.end(), [](const Step& step) {
      return is_reduction(step) && step.collective.has_value();
    });
  };
  const auto before = count_collectives();
  Plan other = plan;
  other.scenario.training.gradient_syncs = std::move(gradient_syncs);
  other.scenario.training.all_reduces = std::move(all_reduces);
  plan_anew(other);
  other.scenario.training = asked;
  std::swap(plan, other);
  if (count_collectives() != before) return true;
  std::swap(plan, other);
  return false;
}

/// Whether gradients are reduced is not asked for: all micro-batches do.
bool ignore_sync_flag(Plan& plan, const FaultSpec& /*fault*/) {
  if (plan.scenario.training.gradient_syncs.empty()) return false;
  return plan_with_flags(plan, {}, plan.scenario.training.all_reduces);
}

/// Only the last micro-batch reduces, whatever the others are asked for.
bool sync_last_only(Plan& plan, const FaultSpec& /*fault*/) {
  std::vector<bool> last(static_cast<std::size_t>(plan.scenario.training.micro_batches), false);
  last.back() = true;
  return plan_with_flags(plan, std::move(last), plan.scenario.training.all_reduces);
}

bool all_reduce_each_micro_batch(Plan& plan, const FaultSpec& /*fault*/) {
  if (plan.scenario.training.all_reduces.empty()) return false;
  return plan_with_flags(plan, plan.scenario.training.gradient_syncs, {});
}

}  // namespace

std::vector<NamedPlanFault> early_operators() {
  return {{"plan_group_dropped_dim", drop_replicas},
          {"plan_padding_exposed", expose_padding},
          {"plan_ignore_sync_flag", ignore_sync_flag},
          {"plan_sync_last_only", sync_last_only},
          {"plan_all_reduce_each_micro_batch", all_reduce_each_micro_batch}};
}

}  // namespace hpsim
