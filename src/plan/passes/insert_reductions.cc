#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "plan/passes/passes.h"
#include "plan/row_members.h"
#include "scenario/gradients.h"
#include "scenario/precision.h"

namespace hpsim {
namespace {

constexpr std::string_view kScatterRule =
    "shard_size > 1: reduce-scatter over the sharded group (multi-dim RFC 2.2.2)";
constexpr std::string_view kAllReduceRule =
    "dp_size > 1: all-reduce over the unsharded group (multi-dim RFC 2.2.2)";
constexpr std::string_view kPartialRule =
    "the gradient is Partial along these dims too: one all-reduce of the unit's reduced row";
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

  /// Of a row, told by the last of its parameters: the one that is Partial if any is.
  const std::string& of_row(const GradientRow& row, const MeshDims& partial_dims, bool is_cut) {
    return of_parameter(row.parameters.back(), partial_dims, is_cut);
  }

 private:
  const Plan& plan_;
  std::map<std::tuple<int, MeshDims, bool>, std::string> texts_;
};

/// Dims over which the last parameter of the row is reduced last, besides those of fully_shard.
MeshDims all_partial_dims(const GradientRow& row) {
  return row.partials.empty() ? MeshDims{} : row.partials.back().dims;
}

/// Which row the gradients of each bucket lie in, pass after pass, and when it is stored.
class GradientRows {
 public:
  explicit GradientRows(Plan& plan) : plan_(plan) {
    const TrainingSpec& training = plan.scenario.training;
    is_uniform_ = training.trained_from.empty() && plan.scenario.data.inactive.empty();
    for (int b = 0; b < static_cast<int>(plan.buckets.size()); ++b) {
      // Whatever has gradients, its all-reduces may come later than its reduce-scatters.
      is_all_reduced_.push_back(waits_by_itself(b));
    }
    if (!plan.scenario.fully_shard.fuses_collectives) wait_as_if_fused();
  }

  void enter_step(std::int64_t step) {
    if (is_uniform_ && !rows_.empty()) return;
    rows_.clear();
    for (int b = 0; b < static_cast<int>(plan_.buckets.size()); ++b)
      rows_.push_back(rows_of(b, step));
  }

  /// -1: no parameter of the bucket has a gradient until it is stored.
  [[nodiscard]] int row_at(int bucket, std::int64_t micro_batch) const {
    return rows_.at(static_cast<std::size_t>(bucket)).at(static_cast<std::size_t>(micro_batch));
  }

  /// Whether the bucket's gradients must wait for all-reduces before they are stored.
  [[nodiscard]] bool is_all_reduced(int bucket) const {
    return is_all_reduced_.at(static_cast<std::size_t>(bucket));
  }

 private:
  /// Parameters that one bucket would hold wait for each other's all-reduces: which ones are fused
  /// changes no numbers.
  void wait_as_if_fused() {
    const std::vector<Bucket>& buckets = plan_.buckets;
    for (std::size_t first = 0; first < buckets.size();) {
      std::size_t end = first;
      std::vector<std::size_t> waiting;  // one of each kind
      const auto is_like_waiting = [&](std::size_t b) {
        return std::any_of(waiting.begin(), waiting.end(), [&](std::size_t other) {
          return is_reduced_alike(buckets[b], buckets[other]);
        });
      };
      for (; end < buckets.size() && buckets[end].unit == buckets[first].unit; ++end) {
        if (is_all_reduced_[end] && !is_like_waiting(end)) waiting.push_back(end);
      }
      for (std::size_t b = first; b < end; ++b) {
        if (!buckets[b].is_ignored && is_like_waiting(b)) is_all_reduced_[b] = true;
      }
      first = end;
    }
  }

  [[nodiscard]] bool waits_by_itself(int b) const {
    const Bucket& bucket = plan_.bucket(b);
    return !bucket.all_reduce_dims.empty() ||
           !gradient_row(plan_, b, bucket.parameters).partials.empty();
  }

  /// Per micro-batch.
  std::vector<int> rows_of(int b, std::int64_t step) {
    const std::int64_t num_micro_batches = plan_.scenario.training.micro_batches;
    std::vector<int> rows(static_cast<std::size_t>(num_micro_batches), -1);
    std::int64_t first = 0;
    for (std::int64_t m = 0; m < num_micro_batches; ++m) {
      if (!stores(b, m)) continue;
      const int row = row_of(b, with_gradients(b, step, {first, m + 1}));
      std::fill(rows.begin() + first, rows.begin() + m + 1, row);
      first = m + 1;
    }
    return rows;
  }

  [[nodiscard]] bool stores(int b, std::int64_t micro_batch) const {
    const TrainingSpec& training = plan_.scenario.training;
    if (micro_batch + 1 == training.micro_batches) return true;
    if (plan_.bucket(b).is_ignored || !training.syncs_gradients(micro_batch)) return false;
    return training.does_all_reduce(micro_batch) || !is_all_reduced(b);
  }

  [[nodiscard]] std::vector<int> with_gradients(int b, std::int64_t step,
                                                const Interval& micro_batches) const {
    if (is_uniform_) return plan_.bucket(b).parameters;
    std::vector<int> parameters;
    for (const int p : plan_.bucket(b).parameters) {
      for (std::int64_t m = micro_batches.begin; m < micro_batches.end; ++m) {
        if (!has_gradient(plan_.scenario, p, step, m)) continue;
        parameters.push_back(p);
        break;
      }
    }
    return parameters;
  }

  int row_of(int b, std::vector<int> parameters) {
    if (parameters.empty()) return -1;
    const auto [known, is_new] =
        known_.try_emplace({b, parameters}, static_cast<int>(plan_.gradient_rows.size()));
    if (is_new) plan_.gradient_rows.push_back(gradient_row(plan_, b, parameters));
    return known->second;
  }

  Plan& plan_;
  bool is_uniform_ = true;              ///< every parameter has a gradient in every pass
  std::vector<bool> is_all_reduced_;    ///< per bucket
  std::vector<std::vector<int>> rows_;  ///< [bucket][micro-batch] of the step at hand
  std::map<std::pair<int, std::vector<int>>, int> known_;
};

/// The steps that turn a bucket's gradients into gradients of its shards.
class Reducer {
 public:
  Reducer(const Plan& plan, const GradientRows& rows, GradientLayouts& layouts, const Step& at)
      : plan_(plan), rows_(rows), layouts_(layouts), step_(at.step), micro_batch_(at.micro_batch) {}

  /// After the backward of a unit: over the dims of fully_shard, then over those on which its
  /// gradients are Partial besides, so that no unit's row waits for another unit.
  void reduce(int b) {
    const int index = rows_.row_at(b, micro_batch_);
    if (index < 0) return;
    const Bucket& bucket = plan_.bucket(b);
    const bool scatters = !bucket.scatter_dims.empty();
    const bool waits = rows_.is_all_reduced(b) && !all_reduces_now();
    if (waits && !scatters) return;  // gradients add up
    const bool all_reduces = !bucket.all_reduce_dims.empty();
    if (scatters) reduce_scatter(b, index);
    if (waits) return;  // rows add up
    if (all_reduces) all_reduce(b, index);
    if (!scatters && !all_reduces) scale(b, index);
    const int num_ranges = static_cast<int>(plan_.gradient_row(index).partials.size());
    for (int range = 0; range < num_ranges; ++range)
      reduce_range(b, index, range, kPartialRule);
    store(b, index);
  }

  /// What the user does with a parameter that fully_shard ignores.
  void reduce_ignored(int b) {
    const int index = rows_.row_at(b, micro_batch_);
    if (index < 0) return;
    const double divisor = gradient_divisor(plan_.scenario);
    phase_ = Phase::Optimizer;
    if (plan_.gradient_row(index).partials.empty()) {
      emit(StepKind::ScaleGradient, b, index, kIgnoredRule).local_scale = 1 / divisor;
    } else {
      reduce_range(b, index, 0, kIgnoredRule).collective->scale = 1 / divisor;
    }
    store(b, index);
  }

  [[nodiscard]] std::vector<Step> take() { return std::exchange(steps_, {}); }

 private:
  [[nodiscard]] bool all_reduces_now() const {
    return plan_.scenario.training.does_all_reduce(micro_batch_);
  }
  /// k times what of 1/F comes before the sum, on the first collective; the rest on the last.
  [[nodiscard]] double prescale(const Bucket& bucket) const {
    return plan_.scenario.fully_shard.gradient_scaling_factor *
           predivision(bucket.reduce_dtype, gradient_divisor(plan_.scenario));
  }
  [[nodiscard]] double postscale(const Bucket& bucket) const {
    const double divisor = gradient_divisor(plan_.scenario);
    return 1 / (divisor * predivision(bucket.reduce_dtype, divisor));
  }

  void reduce_scatter(int b, int index) {
    const Bucket& bucket = plan_.bucket(b);
    const GradientRow& row = plan_.gradient_row(index);
    Step& step = emit(StepKind::ReduceScatter, b, index, kScatterRule);
    step.collective = spec(bucket, CollectiveOp::ReduceScatter, bucket.scatter_dims,
                           row.row_elems.times(bucket.sharded_group.size), row.row_elems);
    step.collective->prescale = prescale(bucket);
    if (bucket.all_reduce_dims.empty()) step.collective->scale = postscale(bucket);
    const MeshDims rest = union_of(bucket.all_reduce_dims, all_partial_dims(row));
    step.why.before = layouts_.of_row(row, union_of(rest, bucket.scatter_dims), false);
    step.why.after = layouts_.of_row(row, rest, true);
  }

  void all_reduce(int b, int index) {
    const Bucket& bucket = plan_.bucket(b);
    const GradientRow& row = plan_.gradient_row(index);
    Step& step = emit(StepKind::AllReduce, b, index, kAllReduceRule);
    step.collective =
        spec(bucket, CollectiveOp::AllReduce, bucket.all_reduce_dims, row.row_elems, row.row_elems);
    if (bucket.scatter_dims.empty()) step.collective->prescale = prescale(bucket);
    step.collective->scale = postscale(bucket);
    const MeshDims partial = all_partial_dims(row);
    step.why.before = layouts_.of_row(row, union_of(bucket.all_reduce_dims, partial), true);
    step.why.after = layouts_.of_row(row, partial, true);
  }

  void scale(int b, int index) {
    const auto num_averaged = static_cast<double>(plan_.mesh().size(plan_.bucket(b).average_dims));
    emit(StepKind::ScaleGradient, b, index, num_averaged > 1 ? kLocalScaleRule : kScaleRule)
        .local_scale = plan_.scenario.fully_shard.gradient_scaling_factor * num_averaged /
                       gradient_divisor(plan_.scenario);
  }

  void store(int b, int index) { emit(StepKind::StoreGradient, b, index, kStoreRule); }

  Step& reduce_range(int b, int index, int range, std::string_view rule) {
    const GradientRow& row = plan_.gradient_row(index);
    const PartialRange& partial = row.partials[static_cast<std::size_t>(range)];
    const PerCoordinate elems = partial_elems(plan_, row, partial);
    Step& step = emit(StepKind::AllReduce, b, index, rule);
    step.partial = range;
    step.collective = spec(plan_.bucket(b), CollectiveOp::AllReduce, partial.dims, elems, elems);
    const int first = row.parameters[static_cast<std::size_t>(partial.members.begin)];
    step.why.before = layouts_.of_parameter(first, partial.dims, true);
    step.why.after = layouts_.of_parameter(first, {}, true);
    return step;
  }
  [[nodiscard]] CollectiveSpec spec(const Bucket& bucket, CollectiveOp op, const MeshDims& dims,
                                    const PerCoordinate& elems_in,
                                    const PerCoordinate& elems_out) const {
    return {.op = op,
            .dims = dims,
            .group_size = plan_.mesh().size(dims),
            .dtype = bucket.reduce_dtype,
            .elems_in = elems_in,
            .elems_out = elems_out};
  }
  Step& emit(StepKind kind, int bucket, int row, std::string_view rule) {
    Step step;
    step.kind = kind;
    step.phase = phase_;
    step.step = step_;
    step.micro_batch = micro_batch_;
    step.bucket = bucket;
    step.row = row;
    step.why.rule = rule;
    steps_.push_back(std::move(step));
    return steps_.back();
  }

  const Plan& plan_;
  const GradientRows& rows_;
  GradientLayouts& layouts_;
  std::int64_t step_;
  std::int64_t micro_batch_;
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

bool is_same_pass(const Step& a, const Step& b) {
  return a.step == b.step && a.micro_batch == b.micro_batch && a.phase != Phase::Optimizer &&
         b.phase != Phase::Optimizer;
}

/// Per step: the units whose backward it ends, inner before outer.
std::vector<std::vector<int>> units_ended_by(const Plan& plan) {
  const std::vector<std::vector<int>> around =
      units_around(plan.scenario.model, plan.scenario.units);
  std::vector<std::vector<int>> ended(plan.steps.size());
  std::vector<char> seen(plan.scenario.units.size(), 0);
  for (std::size_t i = plan.steps.size(); i-- > 0;) {
    const bool ends_pass =
        i + 1 == plan.steps.size() || !is_same_pass(plan.steps[i], plan.steps[i + 1]);
    if (ends_pass) seen.assign(seen.size(), 0);
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
  const auto reduce_root = [&](Reducer& reducer) {
    for (int unit = 0; unit < static_cast<int>(plan.scenario.units.size()); ++unit) {
      if (is_root(unit)) reduce_unit(unit, reducer);
    }
  };

  const std::vector<std::vector<int>> ended = units_ended_by(plan);
  const std::vector<std::vector<int>> parameters_of_module = parameters_of_modules(plan.scenario);
  GradientRows rows(plan);
  RowMembers row_members(plan);
  GradientLayouts layouts(plan);
  std::vector<Step> with_reductions;
  with_reductions.reserve(plan.steps.size() * 2);
  std::int64_t entered = -1;
  for (std::size_t i = 0; i < plan.steps.size(); ++i) {
    Step& step = plan.steps[i];
    if (std::exchange(entered, step.step) != step.step) rows.enter_step(step.step);
    Reducer reducer(plan, rows, layouts, step);
    const bool syncs = plan.scenario.training.syncs_gradients(step.micro_batch);
    const bool begins_update =
        step.phase == Phase::Optimizer && (i == 0 || plan.steps[i - 1].phase != Phase::Optimizer);
    if (begins_update) {
      for (int b = 0; b < static_cast<int>(plan.buckets.size()); ++b) {
        if (plan.bucket(b).is_ignored) reducer.reduce_ignored(b);
      }
      append(with_reductions, reducer.take());
    }
    if (step.kind == StepKind::Backward) {
      for (const int p : parameters_of_module[static_cast<std::size_t>(step.module)]) {
        const int row = rows.row_at(plan.parameter(p).bucket, step.micro_batch);
        if (row < 0 || !row_members.holds(row, p)) continue;
        if (std::find(step.rows.begin(), step.rows.end(), row) == step.rows.end())
          step.rows.push_back(row);
      }
    }
    with_reductions.push_back(step);
    for (const int unit : ended[i]) {
      if (!is_root(unit) && syncs) reduce_unit(unit, reducer);
    }
    const bool ends_pass = step.phase == Phase::Backward && i + 1 < plan.steps.size() &&
                           !is_same_pass(step, plan.steps[i + 1]);
    if (ends_pass && syncs) reduce_root(reducer);
    append(with_reductions, reducer.take());
  }
  plan.steps = std::move(with_reductions);
  return plan;
}

bool has_reductions(const Plan& plan) {
  std::set<std::pair<std::int64_t, int>> stored;  // optimizer step and bucket
  for (const Step& step : plan.steps) {
    if (step.kind == StepKind::StoreGradient) stored.insert({step.step, step.bucket});
  }
  for (std::int64_t step = 0; step < plan.scenario.training.steps; ++step) {
    for (int p = 0; p < static_cast<int>(plan.parameters.size()); ++p) {
      if (!has_gradient(plan.scenario, p, step)) continue;
      if (!stored.contains({step, plan.parameter(p).bucket})) return false;
    }
  }
  return true;
}

}  // namespace hpsim
