#include "verify/identical_data.h"

#include <fmt/format.h>

#include <algorithm>

#include "verify/diagnose.h"

namespace hpsim {
namespace {

/// Replicate dims along which samples are split.
MeshDims replicate_data_dims(const Scenario& scenario) {
  MeshDims dims;
  for (const int dim : scenario.data.data_dims) {
    const bool is_replicate =
        scenario.roles.dp_replicate_dim == dim || scenario.roles.shard_replicate_dim == dim;
    if (is_replicate && scenario.mesh.size(dim) > 1) dims.push_back(dim);
  }
  return dims;
}

bool has_losses_of(const Evidence& evidence, Rank rank, Rank other) {
  const std::int64_t terms = evidence.run.layout().num_loss_terms();
  for (std::int64_t step = 0; step < evidence.num_steps(); ++step) {
    const double* const losses = evidence.run.losses(rank, step);
    if (!std::equal(losses, losses + terms, evidence.run.losses(other, step))) return false;
  }
  return true;
}

bool has_any_loss(const Evidence& evidence, Rank rank) {
  const std::int64_t terms = evidence.run.layout().num_loss_terms();
  for (std::int64_t step = 0; step < evidence.num_steps(); ++step) {
    const double* const losses = evidence.run.losses(rank, step);
    if (std::any_of(losses, losses + terms, [](double loss) { return loss != 0; })) return true;
  }
  return false;
}

}  // namespace

void warn_of_identical_data(const Evidence& evidence, Verdict& verdict) {
  const Mesh& mesh = evidence.plan.mesh();
  const MeshDims dims = replicate_data_dims(evidence.plan.scenario);
  if (dims.empty()) return;
  for (std::int64_t rank = 0; rank < evidence.num_ranks(); ++rank) {
    Coordinate coordinate = mesh.coordinate_of(Rank{rank});
    for (const int dim : dims)
      coordinate[static_cast<std::size_t>(dim)] = 0;
    const Rank first = mesh.rank_at(coordinate);
    if (!has_any_loss(evidence, first) || !has_losses_of(evidence, Rank{rank}, first)) return;
  }
  const double loss = evidence.run.losses(Rank{0}, 0)[0];
  verdict.findings.push_back(
      {.code = FindingCode::LossValue,
       .severity = Severity::Warning,
       .check = CheckId::LossParity,
       .step = 0,
       .expected = loss,
       .got = loss,
       .message = fmt::format(
           "replicas fed identical data: all ranks along {} computed the same losses in all {} "
           "steps, bit for bit, where each should have samples of its own; local loss of step 0 on "
           "rank 0: {:.9g}",
           mesh.names(dims), evidence.num_steps(), loss)});
}

}  // namespace hpsim
