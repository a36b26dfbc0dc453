#include <algorithm>
#include <utility>

#include "base/check.h"
#include "plan/passes/passes.h"

namespace hpsim {
namespace {

constexpr std::string_view kAverageRule =
    "sync_object \"weight\": copies that were updated by gradients of different samples are "
    "averaged "
    "over the unsharded group (multi-dim RFC 2.2.4)";

Step average(const Plan& plan, int b, std::int64_t step) {
  const Bucket& bucket = plan.bucket(b);
  const std::int64_t size = plan.mesh().size(bucket.average_dims);
  Step result;
  result.kind = StepKind::AverageWeights;
  result.phase = Phase::Optimizer;
  result.step = step;
  result.bucket = b;
  result.collective = CollectiveSpec{.op = CollectiveOp::AllReduce,
                                     .dims = bucket.average_dims,
                                     .group_size = size,
                                     .dtype = plan.parameter(bucket.parameters.at(0)).dtype,
                                     .elems_in = bucket.row_elems,
                                     .elems_out = bucket.row_elems,
                                     .scale = 1 / static_cast<double>(size)};
  const Vocabulary vocabulary = plan.scenario.fully_shard.vocabulary;
  const PlannedParameter& parameter = plan.parameter(bucket.parameters.at(0));
  std::vector<Placement> placements = parameter.sharded;
  result.why.after = to_string(placements, vocabulary);
  for (const int dim : bucket.average_dims)
    placements[static_cast<std::size_t>(dim)] = Partial{ReduceOp::Avg};
  result.why.before = to_string(placements, vocabulary);
  result.why.rule = kAverageRule;
  return result;
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
    for (const int b : averaged)
      steps.push_back(average(plan, b, number));
  }
  plan.steps = std::move(steps);
  return plan;
}

bool needs_weight_sync(const Plan& plan) {
  return !averaged_buckets(plan).empty();
}

bool has_weight_sync(const Plan& plan) {
  const auto averages = std::count_if(plan.steps.begin(), plan.steps.end(), [](const Step& step) {
    return step.kind == StepKind::AverageWeights;
  });
  return averages ==
         plan.scenario.training.steps * static_cast<std::int64_t>(averaged_buckets(plan).size());
}

}  // namespace hpsim
