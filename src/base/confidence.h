#pragma once

#include <cstdint>

namespace hpsim {

/// Standard deviations k that none of `num_compared` normal errors leaves, but for one chance in
/// 10^9: k = sqrt(2 ln(2 N / 1e-9)), from P(|error| > k sigma) <= 2 exp(-k² / 2) for each of N.
///
///   1 -> 6.5447    4480 -> 7.7232    1000000 -> 8.3943
///
/// \pre num_compared >= 1
[[nodiscard]] double confidence_multiplier(std::int64_t num_compared);

}  // namespace hpsim
