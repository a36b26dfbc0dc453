#include "commands.h"
#include "scenario/schema.h"
#include "terminal.h"

namespace hpsim {

void add_schema_command(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("schema", "Print the JSON Schema of scenario files");
  command->callback([&action] {
    action = [] {
      write_stdout(schema_json());
      return 0;
    };
  });
}

}  // namespace hpsim
