#include "engine/optimizers.h"

#include <algorithm>
#include <cmath>

namespace hpsim {
namespace {

template <class T>
void sgd_update(const OptimizerSpec& spec, std::int64_t step, const OptimizedShard<T>& shard) {
  const T lr = static_cast<T>(spec.lr);
  const T decay = static_cast<T>(spec.weight_decay);
  const T momentum = static_cast<T>(spec.momentum);
  T* const weight = shard.weight;
  if (spec.momentum == 0) {
    if (spec.weight_decay == 0) {
      for (std::int64_t i = 0; i < shard.elems; ++i)
        weight[i] -= lr * shard.gradient[i];
    } else {
      for (std::int64_t i = 0; i < shard.elems; ++i) {
        weight[i] -= lr * (shard.gradient[i] + decay * weight[i]);
      }
    }
    return;
  }
  T* const buffer = shard.state[0];
  for (std::int64_t i = 0; i < shard.elems; ++i) {
    const T gradient = shard.gradient[i] + decay * weight[i];
    buffer[i] = step == 0 ? gradient : momentum * buffer[i] + gradient;
    weight[i] -= lr * (spec.nesterov ? gradient + momentum * buffer[i] : buffer[i]);
  }
}

template <class T>
void adam_update(const OptimizerSpec& spec, std::int64_t step, const OptimizedShard<T>& shard) {
  const bool decouples = spec.kind == OptimizerSpec::Kind::AdamW;
  const auto t = static_cast<double>(step + 1);
  const T keep = static_cast<T>(1 - spec.lr * spec.weight_decay);
  const T decay = static_cast<T>(spec.weight_decay);
  const T beta1 = static_cast<T>(spec.beta1);
  const T beta2 = static_cast<T>(spec.beta2);
  const T rest1 = static_cast<T>(1 - spec.beta1);
  const T rest2 = static_cast<T>(1 - spec.beta2);
  const T step_size = static_cast<T>(spec.lr / (1 - std::pow(spec.beta1, t)));
  const T correction2 = static_cast<T>(std::sqrt(1 - std::pow(spec.beta2, t)));
  const T eps = static_cast<T>(spec.eps);
  T* const weight = shard.weight;
  T* const first = shard.state[0];
  T* const second = shard.state[1];
  for (std::int64_t i = 0; i < shard.elems; ++i) {
    T gradient = shard.gradient[i];
    if (decouples) {
      weight[i] *= keep;
    } else {
      gradient += decay * weight[i];
    }
    first[i] = beta1 * first[i] + rest1 * gradient;
    second[i] = beta2 * second[i] + rest2 * gradient * gradient;
    weight[i] -= step_size * (first[i] / (std::sqrt(second[i]) / correction2 + eps));
  }
}

}  // namespace

template <class T>
void optimizer_update(const OptimizerSpec& spec, std::int64_t step,
                      const OptimizedShard<T>& shard) {
  if (spec.kind == OptimizerSpec::Kind::Sgd) {
    sgd_update(spec, step, shard);
  } else {
    adam_update(spec, step, shard);
  }
}

template <class T>
void round_weights(const OptimizerSpec& spec, T* weight, std::int64_t elems) {
  if (spec.round_to) {
    const T unit = static_cast<T>(*spec.round_to);
    for (std::int64_t i = 0; i < elems; ++i)
      weight[i] = std::nearbyint(weight[i] / unit) * unit;
  }
  if (spec.clamp) {
    const T limit = static_cast<T>(*spec.clamp);
    for (std::int64_t i = 0; i < elems; ++i)
      weight[i] = std::clamp(weight[i], -limit, limit);
  }
}

template void optimizer_update<float>(const OptimizerSpec&, std::int64_t,
                                      const OptimizedShard<float>&);
template void optimizer_update<double>(const OptimizerSpec&, std::int64_t,
                                       const OptimizedShard<double>&);
template void round_weights<float>(const OptimizerSpec&, float*, std::int64_t);
template void round_weights<double>(const OptimizerSpec&, double*, std::int64_t);

}  // namespace hpsim
