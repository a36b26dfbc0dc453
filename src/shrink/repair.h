#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "base/error.h"

namespace hpsim {

/// Leaves out what the reader of scenarios refuses: the values at the pointers of the diagnostics,
/// elements from the back. False, with the scenario as it was, if one of them is of the whole file,
/// or of what every scenario has: `hpsim`, `mesh`, the model.
///
///   /data/data_dims/0 in {"data": {"data_dims": ["dp", "tp"]}}    {"data": {"data_dims": ["tp"]}}
///   /mesh/shape                                                   false
[[nodiscard]] bool leave_out_refused(nlohmann::ordered_json& scenario,
                                     const std::vector<Diagnostic>& diagnostics);

}  // namespace hpsim
