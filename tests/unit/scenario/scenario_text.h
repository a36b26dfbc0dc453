#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "scenario/scenario.h"

namespace hpsim {

/// `{"hpsim": 1, "mesh": (4) fsdp, "parameters": {"weight": [7, 8]}, ...members}`, on one line.
[[nodiscard]] std::string minimal_with(std::string_view members);

/// The same with a chain of linear 8 -> 7, tanh, linear 7 -> 3 called l0, a0, l1.
[[nodiscard]] std::string chain_with(std::string_view members);

/// `mesh` with this shape and these names, other members, and one parameter.
[[nodiscard]] std::string on_mesh(std::string_view shape, std::string_view names,
                                  std::string_view members = "");

/// Parses as "dir/file.json".
[[nodiscard]] Scenario parsed(std::string_view text);

/// What parse_scenario complains of; fails the test if it complains of nothing.
[[nodiscard]] std::vector<Diagnostic> diagnostics_of(std::string_view text);

/// The messages, one per line.
[[nodiscard]] std::string messages_of(std::string_view text);

/// \pre the file exists, below the root of the sources
[[nodiscard]] std::string read_file(const std::string& path);

/// Names of the files in a folder of the sources that end so, sorted.
[[nodiscard]] std::vector<std::string> files_in(const std::string& folder,
                                                std::string_view extension);

}  // namespace hpsim
