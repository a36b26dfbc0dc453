#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <vector>

namespace hpsim {

/// Makes the modules of a scenario fit one another: each takes as many features as the one before
/// it gives, the first as many as `sample_shape` says, and a residual or repeat gives as many as it
/// takes, by what its last linear gives. Nothing for a scenario without `model`.
///
///   linear 4 -> 6, linear 5 -> 2             linear 4 -> 6, linear 6 -> 2
///   linear 4 -> 6, residual of linear 5 -> 5 ... residual of linear 6 -> 6
void fit_features(nlohmann::ordered_json& scenario);

/// The numbers of features in the model, largest first, each once.
[[nodiscard]] std::vector<std::int64_t> feature_sizes(const nlohmann::ordered_json& scenario);

/// Every number of features that is `size` becomes `smaller`; heads are made as many as divide it.
void replace_feature_size(nlohmann::ordered_json& scenario, std::int64_t size,
                          std::int64_t smaller);

}  // namespace hpsim
