#pragma once

#include <string_view>

namespace hpsim {

/// Whether a glob over fully qualified names matches all of `name`: `*` stands for any characters
/// within one component (no '.'), `**` for any characters across components, all else for itself.
///
///   "*.weight"   matches "l0.weight", not "blocks.l0.weight"
///   "**.weight"  matches both
///   "l*"         matches "l0" and "l", not "l0.weight"
///   "**"         matches everything
[[nodiscard]] bool glob_matches(std::string_view pattern, std::string_view name);

}  // namespace hpsim
