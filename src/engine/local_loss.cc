#include "engine/local_loss.h"

#include <algorithm>

#include "engine/cross_entropy.h"
#include "plan/loss_collective.h"
#include "scenario/gradients.h"
#include "scenario/precision.h"
#include "tensor/fill.h"

namespace hpsim {

static_assert(kCrossEntropyStatistics == kLossStatistics);

template <class T>
void draw_samples(const Scenario& scenario, const Pass& pass, const char* name,
                  const FillSpec& spec, const ActivationPart& part, std::int64_t features,
                  std::int64_t shift, T* data) {
  const std::uint64_t key = fill_key(name, scenario.data.seed);
  const std::int64_t batch = scenario.micro_batch_size();
  const DType dtype = scenario.numerics.dtype;
  const std::int64_t positions = num_positions(scenario.model);
  const std::int64_t width = part.features.length();
  const bool are_whole_rows = width == features;
  for (const std::int64_t data_rank : part.data_ranks) {
    const std::int64_t from = (data_rank + shift) % scenario.num_data_ranks();
    const std::int64_t first = pass.step * scenario.training.global_batch +
                               from * scenario.local_batch() + pass.micro_batch * batch;
    for (std::int64_t sample = first; sample < first + batch; ++sample) {
      const std::int64_t row = sample * positions + part.positions.begin;
      if (are_whole_rows) {
        const std::int64_t elems = part.positions.length() * features;
        fill(data, elems, key, row * features, spec, dtype);
        data += elems;
        continue;
      }
      for (std::int64_t i = 0; i < part.positions.length(); ++i, data += width)
        fill(data, width, key, (row + i) * features + part.features.begin, spec, dtype);
    }
  }
}

template <class T>
LocalLoss<T>::LocalLoss(const Plan& plan, const Coordinate& coordinate)
    : scenario_(plan.scenario),
      features_(output_features(plan.scenario.model)),
      part_(activation_part(plan.scenario, plan.output, features_, coordinate)),
      classes_{part_.features.begin, part_.features.length()},
      rows_(num_rows(plan.scenario, part_)),
      num_parts_(plan.mesh().size(loss_group(plan))) {}

template <class T>
void LocalLoss<T>::append_run(std::int64_t count, bool is_valid, T divisor) {
  if (count == 0) return;
  if (!runs_.empty() && runs_.back().is_valid == is_valid && runs_.back().divisor == divisor) {
    runs_.back().count += count;
    return;
  }
  const std::int64_t first = runs_.empty() ? 0 : runs_.back().first + runs_.back().count;
  runs_.push_back({first, count, is_valid, divisor});
}

/// Valid are the first positions of a micro-batch, sample after sample.
template <class T>
void LocalLoss<T>::find_runs(const Pass& pass) {
  runs_.clear();
  const std::int64_t positions = num_positions(scenario_.model);
  const std::int64_t terms = is_cross_entropy() ? 1 : features_;
  for (const std::int64_t data_rank : part_.data_ranks) {
    const auto divisor =
        static_cast<T>(loss_divisor(scenario_, data_rank, pass.micro_batch, terms));
    const std::int64_t valid = num_valid_positions(scenario_, data_rank, pass.micro_batch);
    for (std::int64_t sample = 0; sample < scenario_.micro_batch_size(); ++sample) {
      const std::int64_t first = sample * positions;
      const Interval held = {first + part_.positions.begin, first + part_.positions.end};
      const Interval counted = intersect(held, {0, valid});
      const std::int64_t count = std::max<std::int64_t>(counted.length(), 0);
      append_run(count, true, divisor);
      append_run(held.length() - count, false, divisor);
    }
  }
}

template <class T>
CollectiveEnds<T> LocalLoss<T>::begin(const Pass& pass, std::int64_t shift,
                                      const LocalActivation<T>& output,
                                      LocalActivation<T>& gradient, RankMemory<T>& memory) {
  find_runs(pass);
  if (!is_cross_entropy()) {
    // Holds the target first, then the gradient.
    draw_samples(scenario_, pass, "target", scenario_.data.target, part_, features_, shift,
                 gradient.data.data());
    return {};
  }
  const DType dtype = loss_dtype(scenario_);
  targets_ = take_activation(memory, dtype, rows_);
  ActivationPart tokens = part_;
  tokens.features = {0, 1};
  draw_samples(scenario_, pass, "target", scenario_.data.target, tokens, 1, shift,
               targets_.data.data());
  statistics_ = take_activation(memory, dtype, kCrossEntropyStatistics * rows_);
  cross_entropy_statistics(output.data.data(), rows_, classes_, targets_.data.data(),
                           statistics_.data.data());
  if (num_parts_ == 1) return {};
  round_to(dtype, statistics_.data.data(), statistics_.elems);
  gathered_ = take_activation(memory, dtype, num_parts_ * statistics_.elems);
  return {statistics_.data.data(), gathered_.data.data()};
}

template <class T>
T LocalLoss<T>::finish(const LocalActivation<T>& output, LocalActivation<T>& gradient,
                       RankMemory<T>& memory) {
  if (!is_cross_entropy()) return finish_mse(output.data.data(), gradient.data.data());
  LocalActivation<T>& statistics = num_parts_ == 1 ? statistics_ : gathered_;
  T* const combined = statistics.data.data();
  cross_entropy_combine(combined, num_parts_, rows_, combined);
  const T loss = finish_cross_entropy(output.data.data(), combined, gradient.data.data());
  if (num_parts_ > 1) give_back(memory, gathered_);
  give_back(memory, statistics_);
  give_back(memory, targets_);
  return loss;
}

template <class T>
T LocalLoss<T>::finish_cross_entropy(const T* y, const T* combined, T* dy) const {
  T loss = 0;
  for (const Run& run : runs_) {
    const std::int64_t first = run.first * classes_.count;
    if (!run.is_valid) {
      std::fill_n(dy + first, run.count * classes_.count, T(0));
      continue;
    }
    const T* const of_run = combined + run.first * kCrossEntropyStatistics;
    loss += cross_entropy_sum(of_run, run.count) / run.divisor;
    cross_entropy_gradient(y + first, run.count, classes_, targets_.data.data() + run.first, of_run,
                           1 / run.divisor, dy + first);
  }
  return loss;
}

template <class T>
T LocalLoss<T>::finish_mse(const T* y, T* dy) const {
  const std::int64_t width = part_.features.length();
  T loss = 0;
  for (const Run& run : runs_) {
    const std::int64_t begin = run.first * width;
    const std::int64_t end = begin + run.count * width;
    T sum = 0;
    for (std::int64_t i = begin; i < end; ++i) {
      const T difference = y[i] - dy[i];
      sum += difference * difference;
      dy[i] = run.is_valid ? 2 * difference / run.divisor : T(0);
    }
    if (run.is_valid) loss += sum / run.divisor;
  }
  return loss;
}

#define HPSIM_INSTANTIATE(T)                                                             \
  template void draw_samples(const Scenario&, const Pass&, const char*, const FillSpec&, \
                             const ActivationPart&, std::int64_t, std::int64_t, T*);     \
  template class LocalLoss<T>;
HPSIM_INSTANTIATE(float)
HPSIM_INSTANTIATE(double)
#undef HPSIM_INSTANTIATE

}  // namespace hpsim
