#include "plan/micro_batch_replay.h"

#include <fmt/format.h>

namespace hpsim {

std::optional<std::string> MicroBatchReplay::take(const Step& step) {
  if (plan_.scenario.training.micro_batches == 1 || step.phase == Phase::Optimizer)
    return std::nullopt;
  std::optional<std::string> fault;
  const std::pair pass(step.step, step.micro_batch);
  if (pass != pass_) {
    fault = lacking();
    pass_ = pass;
    rows_.clear();
    scattered_.clear();
    all_reduced_.clear();
  }
  if (step.kind == StepKind::Backward) rows_.insert(step.rows.begin(), step.rows.end());
  if (!step.collective) return fault;
  if (step.kind == StepKind::ReduceScatter) scattered_.insert(step.bucket);
  if (step.kind == StepKind::AllReduce) all_reduced_.insert(step.bucket);
  return fault ? fault : unwanted(step);
}

std::optional<std::string> MicroBatchReplay::unwanted(const Step& step) const {
  const bool all_reduces = step.kind == StepKind::AllReduce;
  if (step.kind != StepKind::ReduceScatter && !all_reduces) return std::nullopt;
  const TrainingSpec& training = plan_.scenario.training;
  if (training.syncs_gradients(step.micro_batch) &&
      (!all_reduces || training.does_all_reduce(step.micro_batch))) {
    return std::nullopt;
  }
  return fmt::format("{} over ({}) in micro-batch {} of {}, which asks for 0 of them",
                     name_of(step.kind), plan_.mesh().names(step.collective->dims),
                     step.micro_batch, training.micro_batches);
}

std::optional<std::string> MicroBatchReplay::lacking() const {
  const TrainingSpec& training = plan_.scenario.training;
  const auto [step, micro_batch] = pass_;
  if (step < 0 || micro_batch + 1 >= training.micro_batches ||
      !training.syncs_gradients(micro_batch)) {
    return std::nullopt;
  }
  for (const int index : rows_) {
    const GradientRow& row = plan_.gradient_row(index);
    const Bucket& bucket = plan_.bucket(row.bucket);
    if (bucket.is_ignored) continue;
    const auto text = [&](const char* what, const MeshDims& dims) {
      return fmt::format(
          "micro-batch {} of {} ended with 0 {}s over ({}) of unit \"{}\", and asks "
          "for them",
          micro_batch, training.micro_batches, what, plan_.mesh().names(dims),
          plan_.unit_name(bucket));
    };
    if (!bucket.scatter_dims.empty() && !scattered_.contains(row.bucket))
      return text("reduce_scatter", bucket.scatter_dims);
    if (!training.does_all_reduce(micro_batch) || all_reduced_.contains(row.bucket)) continue;
    if (!bucket.all_reduce_dims.empty()) return text("all_reduce", bucket.all_reduce_dims);
    if (!row.partials.empty()) return text("all_reduce", row.partials.front().dims);
  }
  return std::nullopt;
}

}  // namespace hpsim
