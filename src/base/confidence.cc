#include "base/confidence.h"

#include <cmath>

#include "base/check.h"

namespace hpsim {

double confidence_multiplier(std::int64_t num_compared) {
  HPSIM_CHECK(num_compared >= 1, "{} numbers compared", num_compared);
  constexpr double kChance = 1e-9;
  return std::sqrt(2 * std::log(2 * static_cast<double>(num_compared) / kChance));
}

}  // namespace hpsim
