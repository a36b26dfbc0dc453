#include "commands.h"
#include "terminal.h"

namespace hpsim {
namespace {

constexpr const char* kExitCodes =
    "0    pass\n"
    "1    a check failed\n"
    "2    usage: wrong flags, or nothing to run\n"
    "3    a scenario is invalid\n"
    "4    a golden file differs, is missing or is obsolete\n"
    "5    over a stated budget\n"
    "6    a rank died, a collective timed out, or ranks disagree\n"
    "7    the environment lacks something\n"
    "70   internal error: a bug in hpsim\n"
    "130  interrupted\n";

}  // namespace

int exit_codes_command() {
  write_stdout(kExitCodes);
  return 0;
}

}  // namespace hpsim
