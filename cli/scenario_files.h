#pragma once

#include <string>
#include <vector>

#include "base/error.h"
#include "scenario/scenario.h"

namespace hpsim {

/// The scenario files that the arguments stand for, in their order. A file stands for itself; a
/// directory for every *.json below it that has a top-level key "hpsim", sorted by path, without
/// those below directories named "invalid", unless it bears that name itself. A file that is no
/// JSON but says "hpsim" counts, so that a broken scenario is not left out in silence. None comes
/// twice.
///
///   a.json              -> a.json
///   scenarios           -> scenarios/fsdp/a.json ...             not scenarios/invalid/...
///   scenarios/invalid/  -> scenarios/invalid/unknown_key.json ...
///
/// \throws Error (Usage) if an argument names nothing, cannot be read, or stands for no scenario
[[nodiscard]] std::vector<std::string> find_scenario_files(const std::vector<std::string>& paths);

/// The bytes of a file or pipe, `max_bytes` at most.
/// \throws Error (Usage) as read_scenarios does
[[nodiscard]] std::string read_text_file(const std::string& path, std::size_t max_bytes);

/// Whether the text is a JSON object, with // comments or not, that has the key.
[[nodiscard]] bool has_top_level_key(const std::string& text, const std::string& key);

/// A file that is no valid scenario, with all its mistakes.
struct RejectedFile {
  std::string file;
  std::vector<Diagnostic> diagnostics;
};

struct ReadScenarios {
  std::vector<Scenario> scenarios;
  std::vector<RejectedFile> rejected;
};

/// Reads all files, whatever is wrong with some.
/// \throws Error (Usage) if one cannot be read, is neither a file nor a pipe, or is a pipe through
///         which nothing comes for 10 s
[[nodiscard]] ReadScenarios read_scenarios(const std::vector<std::string>& files);

}  // namespace hpsim
