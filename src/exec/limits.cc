#include "exec/limits.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <string>

#include "base/check.h"
#include "base/error.h"
#include "base/units.h"
#include "plan/rank_layout.h"
#include "scenario/fault_catalog.h"

namespace hpsim {

std::int64_t max_ranks(Backend backend) {
  switch (backend) {
    case Backend::Symbolic:
      return std::numeric_limits<std::int64_t>::max();
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
    help += larger == Backend::Symbolic
                ? fmt::format("{}--backend symbolic takes any number", help.empty() ? "" : ", ")
                : fmt::format("--backend {} takes up to {} ranks", name_of(larger),
                              format_count(max_ranks(larger)));
  }
  throw Error(
      ErrorKind::Usage,
      fmt::format("the mesh has {} ranks, backend {} takes up to {}", format_count(num_ranks),
                  name_of(backend), format_count(max_ranks(backend))),
      help);
}

void require_faults(Backend backend, const Scenario& scenario) {
  if (backend == Backend::Gloo) return;
  std::vector<Diagnostic> refused;
  for (const FaultSpec& fault : scenario.faults) {
    const FaultStage stage = fault_kind(fault.name).stage;
    const bool is_of_runs = stage == FaultStage::Run && backend == Backend::Symbolic;
    if (stage != FaultStage::Process && !is_of_runs) continue;
    refused.push_back({.file = scenario.file,
                       .pointer = fault.pointer,
                       .message = fmt::format(
                           "fault \"{}\" needs {}, which backend {} does not have", fault.name,
                           is_of_runs ? "ranks that run" : "a process per rank", name_of(backend)),
                       .help = is_of_runs ? "use --backend local or gloo, or leave \"faults\" out"
                                          : "use --backend gloo, or leave \"faults\" out"});
  }
  if (!refused.empty()) throw Error(ErrorKind::Usage, std::move(refused));
}

void require_rank_kinds(const Plan& plan) {
  constexpr double kMost = 2e6;
  const double kinds = num_rank_classes(plan);
  const auto num_parameters = static_cast<std::int64_t>(plan.parameters.size());
  if (kinds * static_cast<double>(num_parameters) <= kMost) return;
  throw Error(ErrorKind::Usage,
              fmt::format("the ranks hold {:.3g} different sets of sizes of {} parameters, backend "
                          "symbolic takes up to {} sizes",
                          kinds, format_count(num_parameters),
                          format_count(static_cast<std::int64_t>(kMost))),
              "make the cuts even, or the parameters fewer");
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
