#pragma once

#include <string>
#include <vector>

#include "base/finding.h"
#include "plan/plan.h"

namespace hpsim::test {

/// Names of all faults of stage Plan.
[[nodiscard]] std::vector<std::string> plan_faults();

/// The spec of a fault that is aimed at all its places. `number` is its place in `faults`.
[[nodiscard]] FaultSpec unaimed(const std::string& name, int number = 0);

/// Which keys aim it.
[[nodiscard]] bool takes_params(const std::string& name);
[[nodiscard]] bool takes_unit(const std::string& name);
[[nodiscard]] bool takes_step(const std::string& name);

/// Whether it is about what parameters are, not about steps.
[[nodiscard]] bool is_about_placement(const std::string& name);

/// What became of a plan in which faults were planted.
struct Planted {
  bool has_place = false;  ///< for all of them
  bool is_rejected = false;
  std::vector<Finding> findings;  ///< for which it was rejected
  std::string failure;            ///< what was thrown besides; empty if nothing was

  /// Findings of the checks that are a fault's own.
  [[nodiscard]] std::vector<Finding> of(const std::string& name) const;
  /// All of that, for a person who reads of a test that failed.
  [[nodiscard]] std::string told() const;
};

/// Plants faults in a right plan, and verifies it.
[[nodiscard]] Planted plant(Plan plan, std::vector<FaultSpec> faults);

}  // namespace hpsim::test
