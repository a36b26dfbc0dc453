#pragma once

#include <cstdint>
#include <optional>

#include "plan/plan.h"

namespace hpsim {

/// Terms of the loss of one data rank: samples, positions and, for mse, features.
[[nodiscard]] std::int64_t num_loss_terms(const Scenario& scenario);

/// Mesh dims over which a cross entropy gathers numbers of each position, since they cut its
/// classes; none for mse, which adds up parts.
[[nodiscard]] MeshDims loss_group(const Plan& plan);

/// Numbers per position that ranks gather: the largest logit, the sum of exponentials, the logit of
/// the target.
inline constexpr std::int64_t kLossStatistics = 3;

/// The all_gather of these numbers; none where no classes are cut. Logits are never gathered.
///
///   2 samples of 5 positions, 8 classes over tp 2    all_gather tp: 30 -> 60 elements
[[nodiscard]] std::optional<CollectiveSpec> loss_collective(const Plan& plan);

/// Mesh dims along which ranks hold different terms of the loss; along others they agree.
[[nodiscard]] MeshDims loss_part_dims(const Plan& plan);

}  // namespace hpsim
