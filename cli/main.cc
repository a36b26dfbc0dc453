#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <filesystem>
#include <new>

#include "base/check.h"
#include "commands.h"
#include "terminal.h"

namespace hpsim {
namespace {

constexpr int kExitInternalError = 70;

std::vector<std::string_view> option_names(const CLI::App& app, std::vector<std::string>& storage) {
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames())
      storage.push_back("--" + name);
  }
  return {storage.begin(), storage.end()};
}

std::vector<std::string> command_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands(nullptr))
    names.push_back(command->get_name());
  return names;
}

/// \throws Error (Usage) if the first argument is no subcommand, with the way out
void check_command(const CLI::App& app, const std::string& word) {
  const std::vector<std::string> names = command_names(app);
  if (std::find(names.begin(), names.end(), word) != names.end()) return;
  std::string help = fmt::format("it takes {}", fmt::join(names, ", "));
  std::error_code failure;
  if (std::filesystem::exists(word, failure)) {
    help = "hpsim run " + word;
  } else if (const auto near =
                 suggest(word, std::vector<std::string_view>(names.begin(), names.end()))) {
    help = fmt::format("did you mean \"{}\"?", *near);
  }
  throw Error(ErrorKind::Usage, fmt::format("no subcommand is named \"{}\"", word), help);
}

/// The way out of a flag that the chosen subcommand does not have.
std::string help_for_flags(const CLI::App& app) {
  for (const CLI::App* command : app.get_subcommands()) {
    std::vector<std::string> storage;
    const std::vector<std::string_view> names = option_names(*command, storage);
    for (const std::string& word : command->remaining()) {
      const std::string flag = word.substr(0, word.find('='));
      if (const auto near = suggest(flag, names)) return fmt::format("did you mean {}?", *near);
    }
    return fmt::format("hpsim {} --help", command->get_name());
  }
  return "hpsim --help";
}

/// Reads the command line. \throws Error (Usage); help and version requests set `action` too
void read_command_line(CLI::App& app, int argc, char** argv, Action& action) {
  if (argc < 2) {
    throw Error(ErrorKind::Usage, "no subcommand given",
                "hpsim run FILE runs a scenario; hpsim --help lists all subcommands");
  }
  const std::string first = argv[1];
  if (first.rfind('-', 0) != 0) check_command(app, first);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    const std::vector<CLI::App*> chosen = app.get_subcommands();
    const std::string help = chosen.empty() ? app.help() : chosen.front()->help();
    action = [help] {
      write_stdout(help);
      return 0;
    };
  } catch (const CLI::CallForVersion&) {
    action = [] {
      write_stdout("hpsim " HPSIM_VERSION "\n");
      return 0;
    };
  } catch (const CLI::ParseError& error) {
    throw Error(ErrorKind::Usage, error.what(), help_for_flags(app));
  }
}

int hpsim_main(int argc, char** argv) {
  prepare_streams();
  try {
    Action action;
    CLI::App app(
        "hpsim simulates how large models are sharded, and proves that the sharded\n"
        "training computes what one process would.");
    app.name("hpsim");
    app.set_version_flag("--version", std::string(HPSIM_VERSION), "Print the version and exit");
    app.require_subcommand(1);
    add_run_command(app, action);
    add_list_command(app, action);
    add_schema_command(app, action);
    add_exit_codes_command(app, action);
    read_command_line(app, argc, argv, action);
    return action();
  } catch (const Error& error) {
    print_diagnostics(error.diagnostics(), ColorMode::Auto);
    return exit_code_of(error.kind());
  } catch (const std::bad_alloc&) {
    write_stderr(
        "error: out of memory\n  help: use fewer ranks, steps or elements, or --backend "
        "symbolic\n");
    return exit_code_of(ErrorKind::Environment);
  } catch (const std::exception& error) {
    write_stderr(
        fmt::format("internal error: {}\n  help: this is a bug in hpsim; please report it "
                    "with the command line and the scenario\n",
                    error.what()));
    return kExitInternalError;
  }
}

}  // namespace
}  // namespace hpsim

int main(int argc, char** argv) {
  return hpsim::hpsim_main(argc, argv);
}
