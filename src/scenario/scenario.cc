#include "scenario/scenario.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "base/check.h"
#include "scenario/precision.h"

namespace hpsim {

FillSpec parameter_fill(const DataSpec& data, const ParameterSpec& parameter) {
  FillSpec fill = data.init;
  if (fill.kind == FillSpec::Kind::Uniform && data.init_bound_from_shape) {
    HPSIM_CHECK(!parameter.shape.empty() && parameter.shape.back() > 0, "\"{}\" has no last dim",
                parameter.name);
    fill.bound = 1 / std::sqrt(static_cast<double>(parameter.shape.back()));
  }
  if (parameter.kind == ParameterSpec::Kind::NormWeight) {
    fill.offset = 1;
    if (fill.kind == FillSpec::Kind::Uniform && data.init_bound_from_shape) fill.bound = 0.25;
  }
  return fill;
}

std::string_view name_of(ParallelStyle style) {
  switch (style) {
    case ParallelStyle::Replicate:
      return "replicate";
    case ParallelStyle::Colwise:
      return "colwise";
    case ParallelStyle::Rowwise:
      return "rowwise";
    case ParallelStyle::RowwiseSp:
      return "rowwise_sp";
    case ParallelStyle::SequenceParallel:
      return "sequence_parallel";
    case ParallelStyle::Expert:
      return "expert";
  }
  HPSIM_CHECK(false, "unknown style {}", static_cast<int>(style));
  return {};
}

std::string_view name_of(InitDevice device) {
  switch (device) {
    case InitDevice::Cpu:
      return "cpu";
    case InitDevice::Meta:
      return "meta";
  }
  HPSIM_CHECK(false, "unknown device {}", static_cast<int>(device));
  return {};
}

std::string_view name_of(LossNormalization normalization) {
  switch (normalization) {
    case LossNormalization::LocalMean:
      return "local_mean";
    case LossNormalization::GlobalTokens:
      return "global_tokens";
    case LossNormalization::Sum:
      return "sum";
  }
  HPSIM_CHECK(false, "unknown normalization {}", static_cast<int>(normalization));
  return {};
}

bool FaultSpec::is_about(int parameter) const {
  return params.empty() || std::binary_search(params.begin(), params.end(), parameter);
}

bool FaultSpec::is_of(Rank rank) const {
  return ranks.empty() || std::binary_search(ranks.begin(), ranks.end(), rank);
}

double mean_divisor(const Scenario& scenario, std::int64_t count) {
  if (!scenario.is_exact()) return static_cast<double>(count);
  // In integers: a logarithm would raise the INEXACT flag that exact mode watches.
  return static_cast<double>(std::bit_ceil(static_cast<std::uint64_t>(count)));
}

std::vector<Placement> placements_of(const Scenario& scenario, int p) {
  if (!scenario.placements.empty()) return scenario.placements.at(static_cast<std::size_t>(p));
  return std::vector<Placement>(static_cast<std::size_t>(scenario.mesh.num_dims()), Replicate{});
}

MeshDims shared_data_dims(const Scenario& scenario, int p) {
  if (scenario.placements.empty()) return {};
  const auto& placements = scenario.placements.at(static_cast<std::size_t>(p));
  MeshDims shared;
  for (const int dim : scenario.data.data_dims) {
    if (is_cut(placements.at(static_cast<std::size_t>(dim)))) shared.push_back(dim);
  }
  return shared;
}

MeshDims fully_shard_domain(const Scenario& scenario) {
  const Roles& roles = scenario.roles;
  MeshDims domain;
  for (const std::optional<int>& dim :
       {roles.fsdp_shard_dim, roles.dp_replicate_dim, roles.shard_replicate_dim}) {
    if (dim) domain = union_of(domain, {*dim});
  }
  if (!domain.empty()) return domain;
  for (int dim = 0; dim < scenario.mesh.num_dims(); ++dim)
    domain.push_back(dim);
  return domain;
}

bool InactiveSpec::lists_data_rank(std::int64_t data_rank) const {
  return std::binary_search(data_ranks.begin(), data_ranks.end(), data_rank);
}

bool InactiveSpec::lists_pass(std::int64_t step, std::int64_t micro_batch) const {
  return std::binary_search(steps.begin(), steps.end(), step) &&
         std::binary_search(micro_batches.begin(), micro_batches.end(), micro_batch);
}

bool is_ignored(const Scenario& scenario, int p) {
  const std::vector<int>& ignored = scenario.fully_shard.ignored_params;
  return std::binary_search(ignored.begin(), ignored.end(), p);
}

bool is_sharded(const Scenario& scenario, int p) {
  const FullyShardSpec& spec = scenario.fully_shard;
  if (!spec.shards_parameters || is_ignored(scenario, p)) return false;
  if (std::binary_search(spec.replicate_params.begin(), spec.replicate_params.end(), p))
    return false;
  const Shape& shape = scenario.parameters.at(static_cast<std::size_t>(p)).shape;
  // Divided, not multiplied: sizes are not limited yet when the reader asks.
  const std::int64_t elem_bytes = size_bytes(parameter_dtype(scenario, p));
  const std::int64_t fewest_elems =
      spec.min_shard_bytes / elem_bytes + (spec.min_shard_bytes % elem_bytes != 0 ? 1 : 0);
  return num_elems(shape) >= fewest_elems;
}

ShardCut shard_cut_of(const Scenario& scenario, int p, std::int64_t num_shards) {
  const FullyShardSpec& spec = scenario.fully_shard;
  ShardCut cut{.num_shards = num_shards, .chunking = spec.chunking};
  if (spec.shard_placements.empty()) return cut;
  const ShardPlacement& placement = spec.shard_placements.at(static_cast<std::size_t>(p));
  cut.dims = placement.dims;
  cut.local_units = placement.local_units;
  return cut;
}

double gradient_factor(const Scenario& scenario, int p) {
  return is_ignored(scenario, p) ? 1 : scenario.fully_shard.gradient_scaling_factor;
}

double gradient_divisor(const Scenario& scenario) {
  if (scenario.fully_shard.gradient_divide_factor) {
    return *scenario.fully_shard.gradient_divide_factor;
  }
  if (scenario.fully_shard.reduce_op == ReduceOp::Sum) return 1;
  return mean_divisor(scenario, scenario.num_data_ranks());
}

}  // namespace hpsim
