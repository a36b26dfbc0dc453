#pragma once

#include <array>
#include <cstdint>

#include "scenario/scenario.h"

namespace hpsim {

/// One shard as the optimizer sees it: true elements only, never padding.
template <class T>
struct OptimizedShard {
  T* weight = nullptr;
  const T* gradient = nullptr;
  std::array<T*, 2> state{};  ///< sgd: momentum buffer; adam: exp_avg, exp_avg_sq
  std::int64_t elems = 0;
};

/// One update, `step` from 0, as torch.optim does it, element by element:
///   sgd    g += wd w; buf = g on the first step, else m buf + g; g = nesterov ? g + m buf : buf;
///          w -= lr g
///   adam   g += wd w; m = b1 m + (1-b1) g; v = b2 v + (1-b2) g²;
///          w -= lr / (1 - b1^t) · m / (sqrt(v) / sqrt(1 - b2^t) + eps), t = step + 1
///   adamw  w *= 1 - lr wd first, then adam with wd = 0
/// The rounding of exact mode is not done here, see `round_weights`.
template <class T>
void optimizer_update(const OptimizerSpec& spec, std::int64_t step, const OptimizedShard<T>& shard);

/// Exact mode: every weight to the nearest multiple of round_to (ties to even), then to
/// [-clamp, clamp]. Nothing if the specification has neither.
template <class T>
void round_weights(const OptimizerSpec& spec, T* weight, std::int64_t elems);

}  // namespace hpsim
