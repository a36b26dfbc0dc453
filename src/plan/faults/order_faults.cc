#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <tuple>

#include "plan/faults/plan_edits.h"
#include "plan/faults/planning_tables.h"
#include "plan/recomputation.h"

namespace hpsim {
namespace {

/// Buckets with parameters of a module, per module.
std::vector<std::set<int>> buckets_of_modules(const Plan& plan) {
  std::vector<std::set<int>> buckets;
  for (const std::vector<int>& parameters : parameters_of_modules(plan.scenario)) {
    std::set<int>& of_module = buckets.emplace_back();
    for (const int p : parameters)
      of_module.insert(plan.parameter(p).bucket);
  }
  return buckets;
}

bool is_compute(const Step& step) {
  return step.kind == StepKind::Forward || step.kind == StepKind::Backward;
}

/// Compute does not wait for what was begun for it.
bool leave_out_wait(Plan& plan, const FaultSpec& fault) {
  return erase_steps(plan, fault,
                     [](const Step& step) { return step.kind == StepKind::WaitUnshard; });
}

/// A gradient is stored before the collectives that add up its terms.
bool store_first(Plan& plan, const FaultSpec& fault) {
  std::vector<std::size_t> erased;
  std::vector<MovedStep> moved;
  // By optimizer step, micro-batch, bucket: the first reduction that sends something.
  std::map<std::tuple<std::int64_t, std::int64_t, int>, std::size_t> first;
  for (std::size_t i = 0; i < plan.steps.size(); ++i) {
    const Step& step = plan.steps[i];
    const std::tuple key(step.step, step.micro_batch, step.bucket);
    if (is_reduction(step) && step.collective) first.emplace(key, i);
    const auto found = first.find(key);
    if (step.kind != StepKind::StoreGradient || found == first.end() ||
        !is_aimed(plan, fault, step)) {
      continue;
    }
    erased.push_back(i);
    moved.push_back({step, found->second});
  }
  move_steps(plan, erased, std::move(moved));
  return !erased.empty();
}

/// Gathered parameters are freed right after they were gathered.
bool free_at_once(Plan& plan, const FaultSpec& fault) {
  const std::vector<std::set<int>> buckets = buckets_of_modules(plan);
  std::vector<std::optional<std::size_t>> whole_since(plan.buckets.size());
  std::vector<char> is_used(plan.buckets.size(), 0);
  std::vector<std::size_t> erased;
  std::vector<MovedStep> moved;
  for (std::size_t i = 0; i < plan.steps.size(); ++i) {
    const Step& step = plan.steps[i];
    if (is_compute(step)) {
      for (const int b : buckets.at(static_cast<std::size_t>(step.module)))
        is_used.at(static_cast<std::size_t>(b)) = 1;
    }
    if (step.bucket < 0) continue;
    const auto b = static_cast<std::size_t>(step.bucket);
    const bool makes_whole =
        step.kind == StepKind::WaitUnshard || (step.kind == StepKind::Unshard && !step.is_async);
    if (makes_whole) {
      whole_since[b] = i;
      is_used[b] = 0;
    }
    if (step.kind != StepKind::Reshard || !whole_since[b] || is_used[b] == 0) continue;
    if (!is_aimed(plan, fault, step)) continue;
    erased.push_back(i);
    moved.push_back({step, *whole_since[b] + 1});
  }
  move_steps(plan, erased, std::move(moved));
  return !erased.empty();
}

/// The optimizer takes gradients before the collectives of the last micro-batch have come.
bool update_first(Plan& plan, const FaultSpec& fault) {
  std::vector<std::size_t> erased;
  std::vector<MovedStep> moved;
  std::map<std::pair<std::int64_t, std::int64_t>, std::size_t> first;  // step, micro-batch
  for (std::size_t i = 0; i < plan.steps.size(); ++i) {
    const Step& step = plan.steps[i];
    const std::pair key(step.step, step.micro_batch);
    if (is_reduction(step) && step.collective) first.emplace(key, i);
    const auto found = first.find(key);
    if (step.kind != StepKind::Optimizer || found == first.end() || !fault.is_in(step.step))
      continue;
    erased.push_back(i);
    moved.push_back({step, found->second});
  }
  move_steps(plan, erased, std::move(moved));
  return !erased.empty();
}

/// What the last micro-batch should reduce and store, the first one does.
bool reduce_first_micro_batch(Plan& plan, const FaultSpec& fault) {
  const TrainingSpec& training = plan.scenario.training;
  if (training.micro_batches == 1 || training.syncs_gradients(0)) return false;
  std::vector<std::size_t> erased;
  std::vector<MovedStep> moved;
  std::map<std::int64_t, std::size_t> second;  // by optimizer step: where micro-batch 1 begins
  bool sends = false;
  for (std::size_t i = 0; i < plan.steps.size(); ++i) {
    const Step& step = plan.steps[i];
    if (step.micro_batch == 1) second.emplace(step.step, i);
    const bool ends_gradient = is_reduction(step) || step.kind == StepKind::StoreGradient;
    if (!ends_gradient || step.phase != Phase::Backward || !fault.is_in(step.step) ||
        step.micro_batch + 1 != training.micro_batches) {
      continue;
    }
    sends = sends || step.collective.has_value();
    erased.push_back(i);
    moved.push_back({step, second.at(step.step)});
    moved.back().step.micro_batch = 0;
  }
  if (!sends) return false;
  move_steps(plan, erased, std::move(moved));
  return true;
}

/// Buckets with parameters of modules that backward computes again.
std::set<int> recomputed_buckets(const Plan& plan) {
  const std::vector<std::set<int>> buckets = buckets_of_modules(plan);
  std::set<int> recomputed;
  for (const Step& step : plan.steps) {
    if (step.kind != StepKind::Forward || !step.is_recomputed) continue;
    const std::set<int>& of_module = buckets.at(static_cast<std::size_t>(step.module));
    recomputed.insert(of_module.begin(), of_module.end());
  }
  return recomputed;
}

/// Gradients of a part that is computed again are added up for either time.
bool reduce_recomputed_twice(Plan& plan, const FaultSpec& fault) {
  const std::set<int> recomputed = recomputed_buckets(plan);
  std::vector<MovedStep> again;
  std::set<std::tuple<std::int64_t, std::int64_t, int>> seen;  // step, micro-batch, row
  for (std::size_t i = 0; i < plan.steps.size(); ++i) {
    const Step& step = plan.steps[i];
    if (!is_reduction(step) || !step.collective || !recomputed.contains(step.bucket)) continue;
    if (!is_aimed(plan, fault, step)) continue;
    if (!seen.emplace(step.step, step.micro_batch, step.row).second) continue;
    again.push_back({step, i + 1});
    again.back().step.collective->prescale = again.back().step.collective->scale = 1;
  }
  const bool is_changed = !again.empty();
  move_steps(plan, {}, std::move(again));
  return is_changed;
}

/// After a part was computed again, its units are freed, and gathered once more for backward.
bool gather_recomputed_twice(Plan& plan, const FaultSpec& fault) {
  const std::vector<std::set<int>> buckets = buckets_of_modules(plan);
  std::map<int, Step> unshard;            // per bucket: the last one
  std::map<int, std::size_t> recomputed;  // modules computed again, whose backward is to come
  std::vector<MovedStep> more;
  for (std::size_t i = 0; i < plan.steps.size(); ++i) {
    const Step& step = plan.steps[i];
    if (step.kind == StepKind::Unshard && step.collective) unshard[step.bucket] = step;
    if (step.kind == StepKind::Forward && step.is_recomputed) recomputed[step.module] = i;
    if (step.kind != StepKind::Backward || recomputed.erase(step.module) == 0) continue;
    for (const int b : buckets.at(static_cast<std::size_t>(step.module))) {
      const auto found = unshard.find(b);
      if (found == unshard.end() || !is_aimed(plan, fault, found->second)) continue;
      Step again = found->second;
      again.is_async = false;
      again.phase = step.phase;
      again.micro_batch = step.micro_batch;
      Step reshard = again;
      reshard.kind = StepKind::Reshard;
      reshard.collective.reset();
      more.push_back({std::move(reshard), i});
      more.push_back({std::move(again), i});
    }
  }
  const bool is_changed = !more.empty();
  move_steps(plan, {}, std::move(more));
  return is_changed;
}

}  // namespace

std::vector<NamedPlanFault> order_operators() {
  return {{"plan_wait_missing", leave_out_wait},
          {"plan_store_before_reduce", store_first},
          {"plan_reshard_before_use", free_at_once},
          {"plan_update_before_reduce", update_first},
          {"plan_sync_first", reduce_first_micro_batch},
          {"plan_second_reduce_of_recomputed", reduce_recomputed_twice},
          {"plan_second_gather_of_recomputed", gather_recomputed_twice}};
}

}  // namespace hpsim
