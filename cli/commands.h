#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/suggest.h"

namespace hpsim {

/// What a subcommand does once the command line is read; the value is the exit code.
using Action = std::function<int()>;

// Each adds one subcommand and sets `action` when it is chosen.
void add_run_command(CLI::App& app, Action& action);
void add_list_command(CLI::App& app, Action& action);
void add_schema_command(CLI::App& app, Action& action);
void add_exit_codes_command(CLI::App& app, Action& action);

/// The entry of `choices` that `word` names. \throws Error (Usage) that lists them all
[[nodiscard]] std::size_t choose(const std::string& flag, const std::string& word,
                                 const std::vector<std::string_view>& choices);

/// The last of 0, 5, 4, 1, 2, 3, 6, 7, 70 that is among the codes: what several runs exit with.
[[nodiscard]] int worst_exit_code(const std::vector<int>& codes);

}  // namespace hpsim
