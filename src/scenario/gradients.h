#pragma once

#include <cstdint>
#include <vector>

#include "scenario/scenario.h"

namespace hpsim {

/// Whether a parameter ever has a gradient in the run: gradients of activations are computed where
/// such a parameter has a part in them.
[[nodiscard]] bool is_ever_trained(const Scenario& scenario, int p);

/// Whether a parameter has requires_grad in an optimizer step.
[[nodiscard]] bool is_trained(const Scenario& scenario, int p, std::int64_t step);

/// Whether a module, or elementwise parameter, takes part in a pass of a data rank
/// (`data.inactive`).
[[nodiscard]] bool is_active(const Scenario& scenario, int module, std::int64_t step,
                             std::int64_t micro_batch, std::int64_t data_rank);

/// Whether a parameter gets a gradient in a pass: it is trained, and a module that computes with it
/// is active on some data rank; with reduce_unused that it is trained is enough.
[[nodiscard]] bool has_gradient(const Scenario& scenario, int p, std::int64_t step,
                                std::int64_t micro_batch);

/// In any pass of an optimizer step: it is reduced, part of the norm, and updated.
[[nodiscard]] bool has_gradient(const Scenario& scenario, int p, std::int64_t step);

/// Valid positions of a micro-batch of a data rank; all of them where `data.tokens` is not given.
[[nodiscard]] std::int64_t num_valid_positions(const Scenario& scenario, std::int64_t data_rank,
                                               std::int64_t micro_batch);

/// What the sum of `terms_per_position` loss terms of each valid position of a micro-batch of a
/// data rank is divided by (LossNormalization); of an elementwise parameter, positions are samples
/// and terms its elements. In exact mode counts are rounded up to powers of two, one by one.
[[nodiscard]] double loss_divisor(const Scenario& scenario, std::int64_t data_rank,
                                  std::int64_t micro_batch, std::int64_t terms_per_position);

}  // namespace hpsim
