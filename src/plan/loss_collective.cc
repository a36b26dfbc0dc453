#include "plan/loss_collective.h"

#include "plan/activation_part.h"
#include "scenario/precision.h"

namespace hpsim {
namespace {

bool is_cross_entropy(const Scenario& scenario) {
  return scenario.training.loss == LossKind::CrossEntropy && !scenario.model.is_elementwise();
}

}  // namespace

std::int64_t num_loss_terms(const Scenario& scenario) {
  const std::int64_t rows = scenario.micro_batch_size() * num_positions(scenario.model);
  return is_cross_entropy(scenario) ? rows : rows * output_features(scenario.model);
}

MeshDims loss_group(const Plan& plan) {
  if (!is_cross_entropy(plan.scenario)) return {};
  MeshDims dims;
  for (const int dim : cutting_order(plan.output, feature_dim(plan.scenario.model)))
    dims = union_of(dims, {dim});
  return dims;
}

std::optional<CollectiveSpec> loss_collective(const Plan& plan) {
  const MeshDims dims = loss_group(plan);
  const Mesh& mesh = plan.mesh();
  if (mesh.size(dims) == 1) return std::nullopt;
  const auto elems_at = [&](const Coordinate& coordinate) {
    const ActivationPart part = activation_part(plan.scenario, plan.output,
                                                output_features(plan.scenario.model), coordinate);
    return kLossStatistics * num_rows(plan.scenario, part);
  };
  // Positions may be cut unevenly.
  MeshDims uneven;
  if (!plan.scenario.model.positions.empty()) {
    for (const int dim : cutting_order(plan.output, kSequenceDim))
      uneven = union_of(uneven, {dim});
  }
  const PerCoordinate elems = PerCoordinate::tabulate(mesh, uneven, elems_at);
  return CollectiveSpec{.op = CollectiveOp::AllGather,
                        .dims = dims,
                        .group_size = mesh.size(dims),
                        .dtype = loss_dtype(plan.scenario),
                        .elems_in = elems,
                        .elems_out = elems.times(mesh.size(dims))};
}

MeshDims loss_part_dims(const Plan& plan) {
  MeshDims parts;
  for (const int dim : cutting_dims(plan.output)) {
    if (!contains(loss_group(plan), dim)) parts.push_back(dim);
  }
  return parts;
}

}  // namespace hpsim
