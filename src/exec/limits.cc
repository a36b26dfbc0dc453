#include "exec/limits.h"

#include <fmt/format.h>
#include <unistd.h>

#include <string>

#include "base/check.h"
#include "base/error.h"
#include "base/units.h"

namespace hpsim {

std::int64_t max_ranks(Backend backend) {
  switch (backend) {
    case Backend::Symbolic:
      return std::int64_t{1} << 20;
    case Backend::Local:
      return 1024;
    case Backend::Gloo:
      return 64;
  }
  HPSIM_CHECK(false, "unknown backend {}", static_cast<int>(backend));
  return 0;
}

void require_ranks(Backend backend, std::int64_t num_ranks) {
  if (num_ranks <= max_ranks(backend)) return;
  std::string help;
  for (const Backend larger : {Backend::Local, Backend::Symbolic}) {
    if (num_ranks > max_ranks(larger)) continue;
    help += fmt::format("{}--backend {} takes up to {} ranks", help.empty() ? "" : ", ",
                        name_of(larger), format_count(max_ranks(larger)));
  }
  if (help.empty()) help = "no backend takes so many; make the mesh smaller";
  throw Error(
      ErrorKind::Usage,
      fmt::format("the mesh has {} ranks, backend {} takes up to {}", format_count(num_ranks),
                  name_of(backend), format_count(max_ranks(backend))),
      help);
}

void require_faults(Backend backend, const Scenario& scenario) {
  if (scenario.faults.empty() || backend == Backend::Gloo) return;
  const FaultSpec& first = scenario.faults.front();
  throw Error(ErrorKind::Usage,
              {Diagnostic{.file = scenario.file,
                          .pointer = first.pointer,
                          .message = fmt::format("fault \"{}\" needs a process per rank, which "
                                                 "backend {} does not have",
                                                 name_of(first.kind), name_of(backend)),
                          .help = "use --backend gloo, or leave \"faults\" out"}});
}

void require_memory_for_results(std::int64_t size_bytes) {
  const std::int64_t machine_bytes =
      static_cast<std::int64_t>(::sysconf(_SC_PHYS_PAGES)) * ::sysconf(_SC_PAGESIZE);
  if (size_bytes <= machine_bytes) return;
  throw Error(ErrorKind::Environment,
              fmt::format("what the ranks record takes {}, this machine has {}",
                          format_bytes(size_bytes), format_bytes(machine_bytes)),
              "run fewer steps, smaller parameters or fewer ranks, or use --backend symbolic");
}

}  // namespace hpsim
