#include <algorithm>
#include <utility>

#include "plan/passes/passes.h"
#include "scenario/precision.h"

namespace hpsim {
namespace {

/// Those of `dims` along which the gradient is Partial, if together they are more than one rank.
MeshDims dims_to_reduce(const Mesh& mesh, const PlannedParameter& parameter, const MeshDims& dims) {
  MeshDims reduced;
  for (const int dim : dims) {
    if (contains(parameter.partial_dims, dim)) reduced.push_back(dim);
  }
  return mesh.size(reduced) > 1 ? reduced : MeshDims{};
}

/// What a parameter asks of the bucket that it lies in.
Bucket empty_bucket(const Scenario& scenario, int p, const PlannedParameter& parameter, int unit) {
  Bucket bucket;
  bucket.dtype = parameter.compute_dtype;
  bucket.reduce_dtype = reduce_dtype(scenario, p);
  bucket.unit = unit;
  bucket.sharded_group = parameter.sharded_group;
  bucket.unsharded_group = parameter.unsharded_group;
  bucket.scatter_dims = dims_to_reduce(scenario.mesh, parameter, parameter.sharded_group.dims);
  bucket.all_reduce_dims = dims_to_reduce(scenario.mesh, parameter, parameter.unsharded_group.dims);
  if (scenario.fully_shard.sync_object == SyncObject::Weight) {
    bucket.average_dims = std::exchange(bucket.all_reduce_dims, {});
  }
  bucket.is_ignored = scenario.units[static_cast<std::size_t>(unit)].is_ignored;
  return bucket;
}

/// Dims outside the fully_shard domain over which the gradient of a parameter is reduced.
MeshDims further_dims(const Plan& plan, int p) {
  const PlannedParameter& parameter = plan.parameter(p);
  return dims_to_reduce(plan.mesh(), parameter, parameter.partial_group.dims);
}

/// Orders the members of a bucket by their further dims, and lays their slots end to end.
void lay_out_bucket(Plan& plan, Bucket& bucket) {
  std::stable_sort(bucket.parameters.begin(), bucket.parameters.end(),
                   [&](int a, int b) { return further_dims(plan, a) < further_dims(plan, b); });
  for (const int p : bucket.parameters) {
    PlannedParameter& parameter = plan.parameters.at(static_cast<std::size_t>(p));
    parameter.offset_elems = bucket.row_elems;
    bucket.row_elems = bucket.row_elems.plus(plan.mesh(), parameter.padded_elems);
    bucket.casts = bucket.casts || parameter.dtype != bucket.dtype;
  }
  const std::int64_t parts = plan.scenario.fully_shard.post_forward_size;
  if (parts > 0 && bucket.sharded_group.size > 1) bucket.post_forward_size = parts;
}

}  // namespace

bool is_reduced_alike(const Bucket& a, const Bucket& b) {
  return a.sharded_group == b.sharded_group && a.unsharded_group == b.unsharded_group &&
         a.scatter_dims == b.scatter_dims && a.all_reduce_dims == b.all_reduce_dims &&
         a.average_dims == b.average_dims && a.dtype == b.dtype && a.reduce_dtype == b.reduce_dtype;
}

GradientRow gradient_row(const Plan& plan, int b, const std::vector<int>& parameters) {
  GradientRow row;
  row.bucket = b;
  row.parameters = parameters;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    row.offsets.push_back(row.row_elems);
    row.row_elems = row.row_elems.plus(plan.mesh(), plan.parameter(parameters[i]).padded_elems);
    const MeshDims dims = further_dims(plan, parameters[i]);
    if (dims.empty()) continue;
    const auto position = static_cast<std::int64_t>(i);
    if (row.partials.empty() || row.partials.back().dims != dims) {
      row.partials.push_back({dims, {position, position}});
    }
    row.partials.back().members.end = position + 1;
  }
  return row;
}

Plan form_buckets(Plan plan) {
  for (int unit = 0; unit < static_cast<int>(plan.scenario.units.size()); ++unit) {
    const std::size_t first_of_unit = plan.buckets.size();
    const UnitSpec& spec = plan.scenario.units[static_cast<std::size_t>(unit)];
    for (const int p : spec.parameters) {
      PlannedParameter& parameter = plan.parameters.at(static_cast<std::size_t>(p));
      Bucket fitting = empty_bucket(plan.scenario, p, parameter, unit);
      auto it = plan.buckets.end();  // ignored parameters are reduced one by one
      if (!spec.is_ignored && plan.scenario.fully_shard.fuses_collectives) {
        it = std::find_if(plan.buckets.begin() + static_cast<std::ptrdiff_t>(first_of_unit), it,
                          [&](const Bucket& bucket) { return is_reduced_alike(bucket, fitting); });
      }
      if (it == plan.buckets.end()) {
        plan.buckets.push_back(std::move(fitting));
        it = plan.buckets.end() - 1;
      }
      parameter.bucket = static_cast<int>(it - plan.buckets.begin());
      it->parameters.push_back(p);
    }
  }
  for (Bucket& bucket : plan.buckets)
    lay_out_bucket(plan, bucket);
  return plan;
}

std::vector<std::vector<int>> buckets_by_unit(const Plan& plan) {
  std::vector<std::vector<int>> buckets(plan.scenario.units.size());
  for (int b = 0; b < static_cast<int>(plan.buckets.size()); ++b) {
    buckets.at(static_cast<std::size_t>(plan.buckets[static_cast<std::size_t>(b)].unit))
        .push_back(b);
  }
  return buckets;
}

bool has_buckets(const Plan& plan) {
  return std::all_of(plan.parameters.begin(), plan.parameters.end(), [&](const auto& parameter) {
    return parameter.bucket >= 0 && parameter.bucket < static_cast<int>(plan.buckets.size());
  });
}

}  // namespace hpsim
