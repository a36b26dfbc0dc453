#pragma once

#include <string>
#include <string_view>

#include "scenario/scenario.h"

namespace hpsim {

/// Reads one scenario file: JSON with // comments, version 1 of the format.
///
/// `file` is the argument as typed: it stands in messages, and its stem is the default name.
/// \throws Error (InvalidScenario) with every mistake of the file, each with line, column, JSON
///         pointer, both numbers and a way out
[[nodiscard]] Scenario parse_scenario(std::string_view text, const std::string& file);

}  // namespace hpsim
