#include <algorithm>
#include <set>
#include <utility>

#include "base/check.h"
#include "plan/passes/passes.h"
#include "scenario/gradients.h"

namespace hpsim {
namespace {

constexpr std::string_view kAverageRule =
    "sync_object \"weight\": copies that were updated by gradients of different samples are "
    "averaged "
    "over the unsharded group (multi-dim RFC 2.2.4)";

Step average(const Plan& plan, int row, std::int64_t step) {
  const GradientRow& averaged = plan.gradient_row(row);
  const int b = averaged.bucket;
  const Bucket& bucket = plan.bucket(b);
  const std::int64_t size = plan.mesh().size(bucket.average_dims);
  Step result;
  result.kind = StepKind::AverageWeights;
  result.phase = Phase::Optimizer;
  result.step = step;
  result.micro_batch = plan.scenario.training.micro_batches - 1;
  result.bucket = b;
  result.row = row;
  result.collective = CollectiveSpec{.op = CollectiveOp::AllReduce,
                                     .dims = bucket.average_dims,
                                     .group_size = size,
                                     .dtype = plan.parameter(averaged.parameters.at(0)).dtype,
                                     .elems_in = averaged.row_elems,
                                     .elems_out = averaged.row_elems,
                                     .scale = 1 / static_cast<double>(size)};
  const Vocabulary vocabulary = plan.scenario.fully_shard.vocabulary;
  const PlannedParameter& parameter = plan.parameter(averaged.parameters.at(0));
  std::vector<Placement> placements = parameter.sharded;
  result.why.after = to_string(placements, vocabulary);
  for (const int dim : bucket.average_dims)
    placements[static_cast<std::size_t>(dim)] = Partial{ReduceOp::Avg};
  result.why.before = to_string(placements, vocabulary);
  result.why.rule = kAverageRule;
  return result;
}

/// The row of those parameters of a bucket that a step updates; -1: none.
int updated_row(Plan& plan, int b, std::int64_t step) {
  std::vector<int> updated;
  for (const int p : plan.bucket(b).parameters) {
    if (has_gradient(plan.scenario, p, step)) updated.push_back(p);
  }
  if (updated.empty()) return -1;
  const auto known = std::find_if(
      plan.gradient_rows.begin(), plan.gradient_rows.end(),
      [&](const GradientRow& row) { return row.bucket == b && row.parameters == updated; });
  if (known != plan.gradient_rows.end())
    return static_cast<int>(known - plan.gradient_rows.begin());
  plan.gradient_rows.push_back(gradient_row(plan, b, updated));
  return static_cast<int>(plan.gradient_rows.size()) - 1;
}

/// Buckets whose weights are averaged.
std::vector<int> averaged_buckets(const Plan& plan) {
  std::vector<int> averaged;
  for (int b = 0; b < static_cast<int>(plan.buckets.size()); ++b) {
    if (!plan.bucket(b).average_dims.empty()) averaged.push_back(b);
  }
  return averaged;
}

}  // namespace

Plan insert_weight_sync(Plan plan) {
  const std::vector<int> averaged = averaged_buckets(plan);
  for (const int b : averaged) {
    const Bucket& bucket = plan.bucket(b);
    // The reader refuses all else: a mean of weights answers no other sum.
    const bool has_partials = std::any_of(
        plan.gradient_rows.begin(), plan.gradient_rows.end(),
        [&](const GradientRow& row) { return row.bucket == b && !row.partials.empty(); });
    HPSIM_CHECK(bucket.sharded_group.size == 1 && !has_partials,
                "the weights of bucket {} are no whole copies", b);
  }
  std::vector<Step> steps;
  steps.reserve(plan.steps.size());
  for (Step& step : plan.steps) {
    const bool is_update = step.kind == StepKind::Optimizer;
    const std::int64_t number = step.step;
    steps.push_back(std::move(step));
    if (!is_update) continue;
    for (const int b : averaged) {
      const int row = updated_row(plan, b, number);
      if (row >= 0) steps.push_back(average(plan, row, number));
    }
  }
  plan.steps = std::move(steps);
  return plan;
}

bool needs_weight_sync(const Plan& plan) {
  for (int p = 0; p < static_cast<int>(plan.parameters.size()); ++p) {
    if (plan.averaged_dims(p).empty()) continue;
    for (std::int64_t step = 0; step < plan.scenario.training.steps; ++step) {
      if (has_gradient(plan.scenario, p, step)) return true;
    }
  }
  return false;
}

bool has_weight_sync(const Plan& plan) {
  std::set<std::pair<std::int64_t, int>> averages;  // optimizer step and bucket
  for (const Step& step : plan.steps) {
    if (step.kind == StepKind::AverageWeights) averages.insert({step.step, step.bucket});
  }
  for (std::int64_t step = 0; step < plan.scenario.training.steps; ++step) {
    for (int p = 0; p < static_cast<int>(plan.parameters.size()); ++p) {
      if (plan.averaged_dims(p).empty() || !has_gradient(plan.scenario, p, step)) continue;
      if (!averages.contains({step, plan.parameter(p).bucket})) return false;
    }
  }
  return true;
}

}  // namespace hpsim
