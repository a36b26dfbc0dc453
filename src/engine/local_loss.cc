#include "engine/local_loss.h"

#include "engine/cross_entropy.h"
#include "plan/loss_collective.h"
#include "tensor/fill.h"

namespace hpsim {

static_assert(kCrossEntropyStatistics == kLossStatistics);

template <class T>
void draw_samples(const Scenario& scenario, std::int64_t step, const char* name,
                  const FillSpec& spec, const ActivationPart& part, std::int64_t features,
                  T* data) {
  const std::uint64_t key = fill_key(name, scenario.data.seed);
  const std::int64_t batch = scenario.local_batch();
  const std::int64_t positions = num_positions(scenario.model);
  const std::int64_t width = part.features.length();
  const bool are_whole_rows = width == features;
  for (const std::int64_t data_rank : part.data_ranks) {
    const std::int64_t first = step * scenario.training.global_batch + data_rank * batch;
    for (std::int64_t sample = first; sample < first + batch; ++sample) {
      const std::int64_t row = sample * positions + part.positions.begin;
      if (are_whole_rows) {
        const std::int64_t elems = part.positions.length() * features;
        fill(data, elems, key, row * features, spec);
        data += elems;
        continue;
      }
      for (std::int64_t i = 0; i < part.positions.length(); ++i, data += width)
        fill(data, width, key, (row + i) * features + part.features.begin, spec);
    }
  }
}

template <class T>
LocalLoss<T>::LocalLoss(const Plan& plan, const Coordinate& coordinate)
    : scenario_(plan.scenario),
      features_(output_features(plan.scenario.model)),
      part_(activation_part(plan.scenario, plan.output, features_, coordinate)),
      rows_(num_rows(plan.scenario, part_)),
      num_parts_(plan.mesh().size(loss_group(plan))),
      divisor_(static_cast<T>(loss_divisor(plan.scenario, num_loss_terms(plan.scenario)))) {}

template <class T>
CollectiveEnds<T> LocalLoss<T>::begin(std::int64_t step, const LocalActivation<T>& output,
                                      LocalActivation<T>& gradient, RankMemory<T>& memory) {
  if (!is_cross_entropy()) {
    // Holds the target first, then the gradient.
    draw_samples(scenario_, step, "target", scenario_.data.target, part_, features_,
                 gradient.data.data());
    return {};
  }
  targets_ = take_activation(memory, rows_);
  ActivationPart tokens = part_;
  tokens.features = {0, 1};
  draw_samples(scenario_, step, "target", scenario_.data.target, tokens, 1, targets_.data.data());
  statistics_ = take_activation(memory, kCrossEntropyStatistics * rows_);
  const LocalClasses classes{part_.features.begin, part_.features.length()};
  cross_entropy_statistics(output.data.data(), rows_, classes, targets_.data.data(),
                           statistics_.data.data());
  if (num_parts_ == 1) return {};
  gathered_ = take_activation(memory, num_parts_ * statistics_.elems);
  return {statistics_.data.data(), gathered_.data.data()};
}

template <class T>
T LocalLoss<T>::finish(const LocalActivation<T>& output, LocalActivation<T>& gradient,
                       RankMemory<T>& memory) {
  if (!is_cross_entropy())
    return finish_mse(output.data.data(), gradient.data.data(), gradient.elems);
  LocalActivation<T>& statistics = num_parts_ == 1 ? statistics_ : gathered_;
  T* const combined = statistics.data.data();
  const T loss = cross_entropy_combine(combined, num_parts_, rows_, combined);
  const LocalClasses classes{part_.features.begin, part_.features.length()};
  cross_entropy_gradient(output.data.data(), rows_, classes, targets_.data.data(), combined,
                         1 / divisor_, gradient.data.data());
  if (num_parts_ > 1) give_back(memory, gathered_);
  give_back(memory, statistics_);
  give_back(memory, targets_);
  return loss / divisor_;
}

template <class T>
T LocalLoss<T>::finish_mse(const T* y, T* dy, std::int64_t elems) const {
  T sum = 0;
  for (std::int64_t i = 0; i < elems; ++i) {
    const T difference = y[i] - dy[i];
    sum += difference * difference;
    dy[i] = 2 * difference / divisor_;
  }
  return sum / divisor_;
}

#define HPSIM_INSTANTIATE(T)                                                              \
  template void draw_samples(const Scenario&, std::int64_t, const char*, const FillSpec&, \
                             const ActivationPart&, std::int64_t, T*);                    \
  template class LocalLoss<T>;
HPSIM_INSTANTIATE(float)
HPSIM_INSTANTIATE(double)
#undef HPSIM_INSTANTIATE

}  // namespace hpsim
