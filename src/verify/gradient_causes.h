#pragma once

#include <string>
#include <vector>

#include "verify/suspect.h"

namespace hpsim {

/// Numbers that the terms of one gradient may be: above, they are not asked for.
inline constexpr double kMostTermNumbers = 1 << 26;

/// What the baseline says about a gradient: of which terms it is made (provenance.h), or which
/// other training has it (variant_causes.h). Nothing without sources. Where terms would be too
/// many, `message` says that they were not sought.
[[nodiscard]] std::vector<std::string> gradient_causes(const Suspect& suspect,
                                                       std::string& message);

/// What is asked of the baseline for a shard.
[[nodiscard]] ContributionRequest request_for(const Suspect& suspect);

}  // namespace hpsim
