#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <new>

#include "base/error.h"
#include "base/suggest.h"
#include "commands.h"
#include "terminal.h"

namespace hpsim {
namespace {

/// What the chosen subcommand does once the command line is read; the value is the exit code.
using Action = std::function<int()>;

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

/// \throws Error (Usage) if the word is no subcommand of `app`, with the way out
void check_command(const CLI::App& app, const std::string& word) {
  const std::vector<std::string> names = command_names(app);
  if (std::find(names.begin(), names.end(), word) != names.end()) return;
  std::string help = fmt::format("it takes {}", fmt::join(names, ", "));
  std::error_code failure;
  const bool is_nested = app.get_parent() != nullptr;
  if (!is_nested && std::filesystem::exists(word, failure)) {
    help = "hpsim run " + word;
  } else if (const auto near =
                 suggest(word, std::vector<std::string_view>(names.begin(), names.end()))) {
    help = fmt::format("did you mean \"{}\"?", *near);
  }
  throw Error(ErrorKind::Usage,
              fmt::format("no subcommand{} is named \"{}\"",
                          is_nested ? " of " + app.get_name() : "", word),
              help);
}

/// The subcommand that was chosen, or the app itself.
const CLI::App& chosen_command(const CLI::App& app) {
  const std::vector<CLI::App*> chosen = app.get_subcommands();
  return chosen.empty() ? app : chosen_command(*chosen.front());
}

/// "golden check"
std::string full_name(const CLI::App& command) {
  const CLI::App* parent = command.get_parent();
  if (parent == nullptr || parent->get_parent() == nullptr) return command.get_name();
  return full_name(*parent) + " " + command.get_name();
}

/// The way out of a flag that the chosen subcommand does not have.
std::string help_for_flags(const CLI::App& app) {
  const CLI::App& command = chosen_command(app);
  if (&command == &app) return "hpsim --help";
  std::vector<std::string> storage;
  const std::vector<std::string_view> names = option_names(command, storage);
  for (const std::string& word : command.remaining()) {
    const std::string flag = word.substr(0, word.find('='));
    if (const auto near = suggest(flag, names)) return fmt::format("did you mean {}?", *near);
  }
  return fmt::format("hpsim {} --help", full_name(command));
}

/// \throws Error (Usage) if the first words are no subcommands
void check_commands(const CLI::App& app, const std::vector<std::string>& words) {
  const CLI::App* command = &app;
  for (const std::string& word : words) {
    if (word.rfind('-', 0) == 0 || command->get_subcommands(nullptr).empty()) return;
    check_command(*command, word);
    command = command->get_subcommand(word);
  }
}

/// Reads the command line. \throws Error (Usage); help and version requests set `action` too
void read_command_line(CLI::App& app, int argc, char** argv, Action& action) {
  if (argc < 2) {
    throw Error(ErrorKind::Usage, "no subcommand given",
                "hpsim run FILE runs a scenario; hpsim --help lists all subcommands");
  }
  check_commands(app, {argv + 1, argv + argc});
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    const std::string help = chosen_command(app).help();
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

/// --format and --color, for arguments that have both.
template <class Arguments>
void add_output_options(CLI::App& command, const std::string& formats, Arguments& arguments) {
  command.add_option("--format", arguments.format, formats)
      ->capture_default_str()
      ->type_name("NAME");
  command.add_option("--color", arguments.color, "auto, always or never")
      ->capture_default_str()
      ->type_name("WHEN");
}

/// What a build server is told.
void add_ci_options(CLI::App& command, CiArguments& arguments) {
  command.add_option("--junit", arguments.junit, "write JUnit XML, a case per scenario and check")
      ->type_name("FILE");
  command.add_flag("--annotations", arguments.annotations,
                   "print findings as annotations for GitHub");
  command
      .add_option("--budget", arguments.budget,
                  "limits: collectives=N, bytes=N (per rank and optimizer step), peak=N (bytes)")
      ->type_name("LIMITS");
}

void add_run(CLI::App& app, Action& action) {
  auto arguments = std::make_shared<RunArguments>();
  CLI::App* command =
      app.add_subcommand("run", "Run scenarios and prove them against a non-distributed baseline");
  const auto add_option = [&](const char* flag, auto& value, const char* unit, const char* help) {
    return command->add_option(flag, value, help)->capture_default_str()->type_name(unit);
  };
  command->add_option("paths", arguments->paths, "scenario files, or directories of them")
      ->required()
      ->type_name("PATH");
  add_option("--backend", arguments->backend, "NAME", "symbolic, local, gloo or nccl");
  add_output_options(*command, "text, json or md", *arguments);
  add_option("--timeout", arguments->timeout_s, "SECONDS", "longest wait of a rank for another");
  command
      ->add_option("--golden", arguments->golden,
                   "compare with the goldens in this directory; see hpsim golden")
      ->type_name("DIR");
  add_ci_options(*command, arguments->ci);
  command->add_flag("--keep-going", arguments->keep_going, "run all, whatever fails");
  command->add_flag("--quiet", arguments->quiet, "no progress");
  command->add_flag("--full", arguments->full, "do not fold long lists");
  command->callback(
      [arguments, &action] { action = [arguments] { return run_command(*arguments); }; });
}

void add_golden_action(CLI::App& golden, GoldenAction golden_action, const char* help,
                       Action& action) {
  auto arguments = std::make_shared<GoldenArguments>();
  CLI::App* command = golden.add_subcommand(std::string(name_of(golden_action)), help);
  command
      ->add_option("paths", arguments->paths,
                   "scenario files, or directories of them; default: scenarios")
      ->type_name("PATH");
  command
      ->add_option("--golden", arguments->golden,
                   "directory of goldens; default: golden, beside scenarios or in PATH")
      ->type_name("DIR");
  command
      ->add_option("--backend", arguments->backend,
                   "auto (local, above 1,024 ranks symbolic), symbolic, local or gloo")
      ->capture_default_str()
      ->type_name("NAME");
  add_output_options(*command, "text, json or md", *arguments);
  command->add_option("--timeout", arguments->timeout_s, "longest wait of a rank for another")
      ->capture_default_str()
      ->type_name("SECONDS");
  if (golden_action == GoldenAction::Check) add_ci_options(*command, arguments->ci);
  command->add_flag("--quiet", arguments->quiet, "no progress");
  command->add_flag("--full", arguments->full, "do not fold long lists");
  command->callback([golden_action, arguments, &action] {
    action = [golden_action, arguments] { return golden_command(golden_action, *arguments); };
  });
}

void add_golden(CLI::App& app, Action& action) {
  CLI::App* golden =
      app.add_subcommand("golden", "Freeze what scenarios do, and tell what has changed");
  golden->require_subcommand(1);
  add_golden_action(*golden, GoldenAction::Check, "Fail where a run is not what its golden says",
                    action);
  add_golden_action(*golden, GoldenAction::Update,
                    "Write the goldens anew, and tell what changes; not where CI is set", action);
  add_golden_action(*golden, GoldenAction::Diff, "Tell all that an update would change", action);
}

void add_plan(CLI::App& app, Action& action) {
  auto arguments = std::make_shared<PlanArguments>();
  CLI::App* command =
      app.add_subcommand("plan", "List the steps of the verified plan, each with its rule");
  command->add_option("paths", arguments->paths, "scenario files, or directories of them")
      ->required()
      ->type_name("PATH");
  command->add_option("--step", arguments->step, "the optimizer step to list; default: 0")
      ->type_name("T");
  add_output_options(*command, "text or json", *arguments);
  command->add_flag(
      "--full", arguments->full,
      "all optimizer steps; do not fold long lists, list ranks whatever their number");
  command->callback(
      [arguments, &action] { action = [arguments] { return plan_command(*arguments); }; });
}

void add_explain(CLI::App& app, Action& action) {
  auto arguments = std::make_shared<ExplainArguments>();
  CLI::App* command =
      app.add_subcommand("explain", "Tell where every row of a parameter lives, and why");
  command->add_option("path", arguments->path, "a scenario file")->required()->type_name("PATH");
  command->add_option("--param", arguments->param, "a parameter, or a glob: all about these")
      ->type_name("NAME");
  command->add_option("--rank", arguments->rank, "what this rank holds and exchanges")
      ->type_name("R");
  add_output_options(*command, "text or json", *arguments);
  command->add_flag("--full", arguments->full,
                    "do not fold long lists, list ranks whatever their number");
  command->callback(
      [arguments, &action] { action = [arguments] { return explain_command(*arguments); }; });
}

void add_list(CLI::App& app, Action& action) {
  auto paths = std::make_shared<std::vector<std::string>>();
  CLI::App* command = app.add_subcommand("list", "List scenarios: name, mesh, file, description");
  command->add_option("paths", *paths, "scenario files, or directories of them")->type_name("PATH");
  command->callback([paths, &action] { action = [paths] { return list_command(*paths); }; });
}

void add_faults(CLI::App& app, Action& action) {
  auto arguments = std::make_shared<FaultsArguments>();
  CLI::App* command = app.add_subcommand(
      "faults", "List the faults that a scenario can plant, and what finds them");
  command->add_option("name", arguments->name, "all about this one")->type_name("NAME");
  add_output_options(*command, "text or json", *arguments);
  command->callback(
      [arguments, &action] { action = [arguments] { return faults_command(*arguments); }; });
}

void add_mutate(CLI::App& app, Action& action) {
  auto arguments = std::make_shared<MutateArguments>();
  CLI::App* command = app.add_subcommand(
      "mutate", "Plant every fault in scenarios: fail where its own check does not find it");
  command->add_option("paths", arguments->paths, "scenario files, or directories of them")
      ->required()
      ->type_name("PATH");
  command->add_option("--fault", arguments->faults, "only these")->type_name("NAME");
  command->add_option("--backend", arguments->backend, "symbolic (faults of plans), local or gloo")
      ->capture_default_str()
      ->type_name("NAME");
  add_output_options(*command, "text or json", *arguments);
  command->add_option("--timeout", arguments->timeout_s, "longest wait of a rank for another")
      ->capture_default_str()
      ->type_name("SECONDS");
  command->add_option("--golden", arguments->golden, "compare the matrix with this file (exit 4)")
      ->type_name("FILE");
  command->add_flag("--update", arguments->update, "write that file anew; not where CI is set");
  command->add_flag("--quiet", arguments->quiet, "no progress");
  command->callback(
      [arguments, &action] { action = [arguments] { return mutate_command(*arguments); }; });
}

void add_shrink(CLI::App& app, Action& action) {
  auto arguments = std::make_shared<ShrinkArguments>();
  CLI::App* command = app.add_subcommand(
      "shrink", "Make a scenario that fails as small as it can be while it fails alike");
  const auto add_option = [&](const char* flag, auto& value, const char* unit, const char* help) {
    command->add_option(flag, value, help)->capture_default_str()->type_name(unit);
  };
  command->add_option("path", arguments->path, "a scenario file")->required()->type_name("FILE");
  add_option("--output", arguments->output, "FILE", "where the small scenario goes");
  add_option("--backend", arguments->backend, "NAME",
             "auto (local; gloo for faults of processes; above 1,024 ranks symbolic), symbolic, "
             "local or gloo");
  add_option("--time", arguments->time_s, "SECONDS", "stop looking for a smaller one after these");
  add_option("--timeout", arguments->timeout_s, "SECONDS", "longest wait of a rank for another");
  add_option("--color", arguments->color, "WHEN", "auto, always or never");
  command->add_flag("--quiet", arguments->quiet, "no progress");
  command->callback(
      [arguments, &action] { action = [arguments] { return shrink_command(*arguments); }; });
}

void add_commands(CLI::App& app, Action& action) {
  add_run(app, action);
  add_golden(app, action);
  add_plan(app, action);
  add_explain(app, action);
  add_faults(app, action);
  add_mutate(app, action);
  add_shrink(app, action);
  add_list(app, action);
  app.add_subcommand("schema", "Print the JSON Schema of scenario files")->callback([&action] {
    action = schema_command;
  });
  app.add_subcommand("exit-codes", "List exit codes and their meaning")->callback([&action] {
    action = exit_codes_command;
  });
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
    add_commands(app, action);
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
