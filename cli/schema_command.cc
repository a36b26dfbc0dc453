#include "commands.h"
#include "scenario/schema.h"
#include "terminal.h"

namespace hpsim {

int schema_command() {
  write_stdout(schema_json());
  return 0;
}

}  // namespace hpsim
