#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "plan/passes/passes.h"

namespace hpsim {
namespace {

constexpr std::string_view kScatterRule =
    "shard_size > 1: reduce-scatter over the sharded group (multi-dim RFC 2.2.2)";
constexpr std::string_view kAllReduceRule =
    "dp_size > 1: all-reduce over the unsharded group (multi-dim RFC 2.2.2)";
constexpr std::string_view kPartialRule =
    "the gradient is Partial along these dims: one all-reduce after the last unit";
constexpr std::string_view kIgnoredRule =
    "fully_shard ignores it: the user reduces over the dims on which its gradient is Partial, and "
    "divides by F";
constexpr std::string_view kScaleRule =
    "no reduction carries the factor k/F: it is applied once, locally (multi-dim RFC 2.2.2)";
constexpr std::string_view kLocalScaleRule =
    "the mean of the weights divides by the number of copies: what that leaves of k/F is applied "
    "once, locally (multi-dim RFC 2.2.4)";
constexpr std::string_view kStoreRule = "true sizes are stored, padding is not (ragged RFC 6.4)";

/// Layouts of gradients in words; each is written once, whatever the number of optimizer steps.
class GradientLayouts {
 public:
  explicit GradientLayouts(const Plan& plan) : plan_(plan) {}

  /// Of a parameter's gradient with these dims Partial and, once reduced, the cut in place.
  const std::string& of_parameter(int p, const MeshDims& partial_dims, bool is_cut) {
    std::string& text = texts_[{p, partial_dims, is_cut}];
    if (!text.empty()) return text;
    const PlannedParameter& parameter = plan_.parameter(p);
    std::vector<Placement> placements = is_cut ? parameter.sharded : parameter.unsharded;
    for (const int dim : partial_dims)
      placements[static_cast<std::size_t>(dim)] = Partial{};
    text = to_string(placements, plan_.scenario.fully_shard.vocabulary);
    return text;
  }

  /// Of a bucket, told by the last of its parameters: the one that is Partial if any is.
  const std::string& of_bucket(const Bucket& bucket, const MeshDims& partial_dims, bool is_cut) {
    return of_parameter(bucket.parameters.back(), partial_dims, is_cut);
  }

 private:
  const Plan& plan_;
  std::map<std::tuple<int, MeshDims, bool>, std::string> texts_;
};

/// Dims over which the last parameter of the bucket is reduced after the last unit.
MeshDims all_partial_dims(const Bucket& bucket) {
  return bucket.partials.empty() ? MeshDims{} : bucket.partials.back().dims;
}

/// The steps that turn a bucket's gradients into gradients of its shards.
class Reducer {
 public:
  Reducer(const Plan& plan, GradientLayouts& layouts, std::int64_t step)
      : plan_(plan), layouts_(layouts), step_(step) {}

  void reduce(int b) {
    const Bucket& bucket = plan_.bucket(b);
    const double factor = plan_.scenario.fully_shard.gradient_scaling_factor;
    const double divisor = gradient_divisor(plan_.scenario);
    const bool scatters = !bucket.scatter_dims.empty();
    const bool all_reduces = !bucket.all_reduce_dims.empty();
    if (scatters) {
      Step& step = emit(StepKind::ReduceScatter, b, kScatterRule);
      step.collective = spec(CollectiveOp::ReduceScatter, bucket.scatter_dims,
                             bucket.gathered_elems(), bucket.row_elems);
      step.collective->prescale = factor;
      if (!all_reduces) step.collective->scale = 1 / divisor;
      const MeshDims rest = union_of(bucket.all_reduce_dims, all_partial_dims(bucket));
      step.why.before = layouts_.of_bucket(bucket, union_of(rest, bucket.scatter_dims), false);
      step.why.after = layouts_.of_bucket(bucket, rest, true);
    }
    if (all_reduces) {
      Step& step = emit(StepKind::AllReduce, b, kAllReduceRule);
      step.collective =
          spec(CollectiveOp::AllReduce, bucket.all_reduce_dims, bucket.row_elems, bucket.row_elems);
      if (!scatters) step.collective->prescale = factor;
      step.collective->scale = 1 / divisor;
      const MeshDims partial = all_partial_dims(bucket);
      step.why.before = layouts_.of_bucket(bucket, union_of(bucket.all_reduce_dims, partial), true);
      step.why.after = layouts_.of_bucket(bucket, partial, true);
    }
    if (!scatters && !all_reduces) {
      const auto num_averaged = static_cast<double>(plan_.mesh().size(bucket.average_dims));
      const bool averages = num_averaged > 1;
      emit(StepKind::ScaleGradient, b, averages ? kLocalScaleRule : kScaleRule).local_scale =
          factor * num_averaged / divisor;
    }
    if (bucket.partials.empty()) emit(StepKind::StoreGradient, b, kStoreRule);
  }

  void reduce_partial(int b) {
    const Bucket& bucket = plan_.bucket(b);
    if (bucket.partials.empty()) return;
    for (int range = 0; range < static_cast<int>(bucket.partials.size()); ++range)
      reduce_range(b, range, kPartialRule);
    emit(StepKind::StoreGradient, b, kStoreRule);
  }

  /// What the user does with a parameter that fully_shard ignores.
  void reduce_ignored(int b) {
    const Bucket& bucket = plan_.bucket(b);
    const double divisor = gradient_divisor(plan_.scenario);
    phase_ = Phase::Optimizer;
    if (bucket.partials.empty()) {
      emit(StepKind::ScaleGradient, b, kIgnoredRule).local_scale = 1 / divisor;
    } else {
      reduce_range(b, 0, kIgnoredRule).collective->scale = 1 / divisor;
    }
    emit(StepKind::StoreGradient, b, kStoreRule);
  }

  [[nodiscard]] std::vector<Step> take() { return std::exchange(steps_, {}); }

 private:
  Step& reduce_range(int b, int range, std::string_view rule) {
    const Bucket& bucket = plan_.bucket(b);
    const PartialRange& partial = bucket.partials[static_cast<std::size_t>(range)];
    const PerCoordinate elems = partial_elems(plan_, bucket, partial);
    Step& step = emit(StepKind::AllReduce, b, rule);
    step.partial = range;
    step.collective = spec(CollectiveOp::AllReduce, partial.dims, elems, elems);
    const int first = bucket.parameters[static_cast<std::size_t>(partial.members.begin)];
    step.why.before = layouts_.of_parameter(first, partial.dims, true);
    step.why.after = layouts_.of_parameter(first, {}, true);
    return step;
  }
  [[nodiscard]] CollectiveSpec spec(CollectiveOp op, const MeshDims& dims,
                                    const PerCoordinate& elems_in,
                                    const PerCoordinate& elems_out) const {
    return {.op = op,
            .dims = dims,
            .group_size = plan_.mesh().size(dims),
            .dtype = plan_.scenario.numerics.dtype,
            .elems_in = elems_in,
            .elems_out = elems_out};
  }
  Step& emit(StepKind kind, int bucket, std::string_view rule) {
    Step step;
    step.kind = kind;
    step.phase = phase_;
    step.step = step_;
    step.bucket = bucket;
    step.why.rule = rule;
    steps_.push_back(std::move(step));
    return steps_.back();
  }

  const Plan& plan_;
  GradientLayouts& layouts_;
  std::int64_t step_;
  Phase phase_ = Phase::Backward;
  std::vector<Step> steps_;
};

/// Units whose backward a step belongs to, outer before inner; the root unit is in none.
std::vector<int> units_of(const Plan& plan, const Step& step,
                          const std::vector<std::vector<int>>& units_around) {
  if (step.phase != Phase::Backward) return {};
  if (step.bucket >= 0) return {plan.buckets[static_cast<std::size_t>(step.bucket)].unit};
  return step.module >= 0 ? units_around[static_cast<std::size_t>(step.module)]
                          : std::vector<int>{};
}

/// Per step: the units whose backward it ends, inner before outer.
std::vector<std::vector<int>> units_ended_by(const Plan& plan) {
  const std::vector<std::vector<int>> around =
      units_around(plan.scenario.model, plan.scenario.units);
  std::vector<std::vector<int>> ended(plan.steps.size());
  std::vector<char> seen(plan.scenario.units.size(), 0);
  for (std::size_t i = plan.steps.size(); i-- > 0;) {
    if (plan.steps[i].kind == StepKind::Optimizer) seen.assign(seen.size(), 0);
    for (const int unit : units_of(plan, plan.steps[i], around)) {
      if (seen[static_cast<std::size_t>(unit)] != 0) continue;
      seen[static_cast<std::size_t>(unit)] = 1;
      ended[i].insert(ended[i].begin(), unit);
    }
  }
  return ended;
}

void append(std::vector<Step>& steps, std::vector<Step> more) {
  steps.insert(steps.end(), std::make_move_iterator(more.begin()),
               std::make_move_iterator(more.end()));
}

}  // namespace

Plan insert_reductions(Plan plan) {
  const auto is_root = [&](int unit) {
    return plan.scenario.units[static_cast<std::size_t>(unit)].is_root;
  };
  const std::vector<std::vector<int>> buckets_of_unit = buckets_by_unit(plan);
  const auto reduce_unit = [&](int unit, Reducer& reducer) {
    for (const int b : buckets_of_unit[static_cast<std::size_t>(unit)])
      reducer.reduce(b);
  };

  const std::vector<std::vector<int>> ended = units_ended_by(plan);
  GradientLayouts layouts(plan);
  std::vector<Step> with_reductions;
  with_reductions.reserve(plan.steps.size() * 2);
  for (std::size_t i = 0; i < plan.steps.size(); ++i) {
    const Step& step = plan.steps[i];
    Reducer reducer(plan, layouts, step.step);
    if (step.kind == StepKind::Optimizer) {
      // The root unit is reduced last, then what is Partial along other dims.
      for (int unit = 0; unit < static_cast<int>(plan.scenario.units.size()); ++unit) {
        if (is_root(unit)) reduce_unit(unit, reducer);
      }
      for (int b = static_cast<int>(plan.buckets.size()); b-- > 0;) {
        if (!plan.bucket(b).is_ignored) reducer.reduce_partial(b);
      }
      for (int b = 0; b < static_cast<int>(plan.buckets.size()); ++b) {
        if (plan.bucket(b).is_ignored) reducer.reduce_ignored(b);
      }
      append(with_reductions, reducer.take());
    }
    with_reductions.push_back(step);
    for (const int unit : ended[i]) {
      if (!is_root(unit)) reduce_unit(unit, reducer);
    }
    append(with_reductions, reducer.take());
  }
  plan.steps = std::move(with_reductions);
  return plan;
}

bool has_reductions(const Plan& plan) {
  const auto stores = std::count_if(plan.steps.begin(), plan.steps.end(), [](const Step& step) {
    return step.kind == StepKind::StoreGradient;
  });
  return stores == plan.scenario.training.steps * static_cast<std::int64_t>(plan.buckets.size());
}

}  // namespace hpsim
