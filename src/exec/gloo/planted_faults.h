#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/ids.h"
#include "plan/faults/process_faults.h"

namespace hpsim {

/// What one rank does wrong on purpose, and when.
class PlantedFaults {
 public:
  PlantedFaults(const std::vector<PlacedFault>& faults, Rank rank);

  /// For the rank itself to call, in its own process, before each step: dies, throws or stalls if
  /// that is planted there. \throws std::runtime_error
  void strike_before(std::int64_t plan_step) const;

 private:
  std::map<std::int64_t, std::string> by_step_;
};

/// "kill" of ranks 1, 2 before all_gather of unit weight (forward, step 0)
[[nodiscard]] std::string describe_faults(const Plan& plan, const std::vector<PlacedFault>& faults);

}  // namespace hpsim
