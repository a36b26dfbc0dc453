#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>

#include "base/error.h"
#include "commands.h"
#include "report/table.h"
#include "report/text_parts.h"
#include "scenario_files.h"
#include "terminal.h"

namespace hpsim {
namespace {

namespace fs = std::filesystem;

/// The scenarios here, or else those installed beside the program.
std::vector<std::string> default_paths() {
  std::error_code failure;
  if (fs::is_directory("scenarios", failure)) return {"scenarios"};
  const fs::path program = fs::read_symlink("/proc/self/exe", failure);
  const fs::path installed = program.parent_path().parent_path() / "share/hpsim/scenarios";
  if (fs::is_directory(installed, failure)) return {installed.string()};
  throw Error(ErrorKind::Usage, "there is no directory \"scenarios\" here",
              "name one, or a file: hpsim list PATH...");
}

}  // namespace

int list_command(std::vector<std::string> paths) {
  if (paths.empty()) paths = default_paths();
  const ReadScenarios read = read_scenarios(find_scenario_files(paths));
  Table table({{"name"}, {"mesh"}, {"file"}, {"description"}});
  for (const Scenario& scenario : read.scenarios) {
    table.add_row({{scenario.name, Ink::Bold},
                   {mesh_text(scenario.mesh)},
                   {scenario.file},
                   {scenario.description}});
  }
  constexpr std::size_t kUnlimited = 100000;
  if (!read.scenarios.empty()) {
    write_stdout(table.text(0, kUnlimited, wants_color(ColorMode::Auto, STDOUT_FILENO)));
  }
  for (const RejectedFile& file : read.rejected)
    print_diagnostics(file.diagnostics, ColorMode::Auto);
  return read.rejected.empty() ? 0 : exit_code_of(ErrorKind::InvalidScenario);
}

}  // namespace hpsim
