#include "baseline/gradient_stages.h"

#include <algorithm>
#include <map>

#include "scenario/precision.h"

namespace hpsim {
namespace {

/// Coordinates of a data rank along the data dims that `counts` says to count.
template <class Counts>
std::vector<std::int64_t> coordinates(const Scenario& scenario, std::int64_t rank,
                                      const Counts& counts) {
  std::vector<std::int64_t> result;
  const MeshDims& dims = scenario.data.data_dims;
  for (auto dim = dims.rbegin(); dim != dims.rend(); ++dim) {
    const std::int64_t size = scenario.mesh.size(*dim);
    if (counts(*dim)) result.push_back(rank % size);
    rank /= size;
  }
  return result;
}

}  // namespace

GradientStages gradient_stages(const Scenario& scenario, int p, const MeshDims& partial_dims) {
  GradientStages stages;
  stages.carrier = carrier_dtype(scenario);
  stages.compute = compute_dtype(scenario, p);
  stages.reduce = reduce_dtype(scenario, p);
  stages.parameter = parameter_dtype(scenario, p);
  const double divisor = gradient_divisor(scenario);
  const double predivided = predivision(stages.reduce, divisor);
  stages.prescale = gradient_factor(scenario, p) * predivided;
  stages.scale = 1 / (divisor * predivided);
  for (const int dim : partial_dims) {
    const bool splits = !contains(scenario.data.data_dims, dim) && scenario.mesh.size(dim) > 1;
    stages.splits_samples = stages.splits_samples || splits;
  }

  const auto is_added = [&](int dim) { return contains(partial_dims, dim); };
  const auto is_replica = [&](int dim) {
    return is_added(dim) && dim != scenario.roles.fsdp_shard_dim.value_or(-1);
  };
  using Key = std::vector<std::int64_t>;
  std::map<Key, std::map<Key, GradientStages::Source>> by_replica;
  for (std::int64_t rank = 0; rank < scenario.num_data_ranks(); ++rank) {
    by_replica[coordinates(scenario, rank, is_replica)][coordinates(scenario, rank, is_added)]
        .push_back(rank);
  }
  for (const auto& [replica, sources] : by_replica) {
    stages.replicas.emplace_back();
    for (const auto& [key, source] : sources)
      stages.replicas.back().push_back(source);
  }

  const bool has_replicas = std::any_of(partial_dims.begin(), partial_dims.end(), [&](int dim) {
    return is_replica(dim) && scenario.mesh.size(dim) > 1;
  });
  std::int64_t first = 0;
  for (std::int64_t m = 0; m < scenario.training.micro_batches; ++m) {
    if (!scenario.training.syncs_gradients(m)) continue;
    const bool all_reduces = scenario.training.does_all_reduce(m);
    stages.segments.push_back({first, m + 1, all_reduces || !has_replicas});
    stages.may_wait = stages.may_wait || (!all_reduces && !has_replicas);
    first = m + 1;
  }
  return stages;
}

}  // namespace hpsim
