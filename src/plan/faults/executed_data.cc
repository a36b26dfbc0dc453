// Samples that ranks read, and terms that they count, instead of the scenario's.

#include <algorithm>

#include "plan/faults/executed_faults.h"

namespace hpsim {
namespace {

/// Multiplies what every gradient is scaled by.
void scale_gradients(Plan& plan, double factor) {
  for (Step& step : plan.steps) {
    if (step.kind == StepKind::ScaleGradient) step.local_scale *= factor;
    if (step.kind != StepKind::ReduceScatter && step.kind != StepKind::AllReduce) continue;
    const Bucket& bucket = plan.bucket(step.bucket);
    const bool ends_reduction = step.kind == StepKind::ReduceScatter
                                    ? bucket.all_reduce_dims.empty()
                                    : step.partial < 0 || bucket.is_ignored;
    if (ends_reduction) step.collective->scale *= factor;
  }
}

}  // namespace

bool execute_mean_of_means(Plan& plan, const FaultSpec& /*fault*/) {
  Scenario& scenario = plan.scenario;
  if (scenario.training.loss_normalization != LossNormalization::GlobalTokens) return false;
  const auto& tokens = scenario.data.tokens;
  const bool has_unequal = std::any_of(tokens.begin(), tokens.end(), [&](const auto& of_rank) {
    return std::any_of(of_rank.begin(), of_rank.end(),
                       [&](std::int64_t count) { return count != tokens[0].at(0); });
  });
  if (!has_unequal) return false;
  scenario.training.loss_normalization = LossNormalization::LocalMean;
  scale_gradients(plan, 1 / mean_divisor(scenario, scenario.num_data_ranks()));
  return true;
}

bool execute_same_data_on_replicas(Plan& plan, const FaultSpec& /*fault*/) {
  Scenario& scenario = plan.scenario;
  const Mesh& mesh = plan.mesh();
  if (!scenario.data.inactive.empty()) return false;
  MeshDims kept;
  for (const int dim : scenario.data.data_dims) {
    const bool is_replicate =
        scenario.roles.dp_replicate_dim == dim || scenario.roles.shard_replicate_dim == dim;
    if (!is_replicate) kept.push_back(dim);
  }
  const std::int64_t num_data_ranks = mesh.size(kept);
  const std::int64_t num_alike = scenario.num_data_ranks() / num_data_ranks;
  if (num_alike == 1) return false;
  if (!scenario.data.tokens.empty()) {
    std::vector<std::vector<std::int64_t>> tokens;
    for (std::int64_t data_rank = 0; data_rank < num_data_ranks; ++data_rank) {
      const Coordinate coordinate = mesh.coordinate_along(kept, data_rank);
      tokens.push_back(scenario.data.tokens.at(
          static_cast<std::size_t>(mesh.index_along(scenario.data.data_dims, coordinate))));
    }
    scenario.data.tokens = std::move(tokens);
  }
  scenario.data.data_dims = kept;
  scenario.training.global_batch /= num_alike;
  return true;
}

}  // namespace hpsim
