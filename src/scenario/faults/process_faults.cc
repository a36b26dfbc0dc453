#include "scenario/faults/fault_tables.h"

namespace hpsim {

std::vector<FaultKind> process_faults() {
  constexpr FaultAims kAims{.ranks = true, .step = true, .seq = true};
  return {
      {.name = "kill",
       .kind = "process",
       .stage = FaultStage::Process,
       .breaks = "ranks die of SIGKILL before a collective",
       .needs = "a process per rank",
       .caught_by = {{CheckId::PlanAgreement, FindingCode::RankDied}},
       .reports = "pytorch/gloo#444, gloo#513",
       .aims = kAims},
      {.name = "throw",
       .kind = "process",
       .stage = FaultStage::Process,
       .breaks = "ranks throw an exception before a collective",
       .needs = "a process per rank",
       .caught_by = {{CheckId::PlanAgreement, FindingCode::RankDied}},
       .reports = "pytorch/gloo#444, gloo#513",
       .aims = kAims},
      {.name = "stall",
       .kind = "process",
       .stage = FaultStage::Process,
       .breaks = "ranks do nothing from a collective on, until they are ended",
       .needs = "a process per rank, and one that does not stall",
       .caught_by = {{CheckId::PlanAgreement, FindingCode::Hang}},
       .reports = "pytorch/gloo#444, gloo#513, pytorch#149869",
       .aims = kAims},
  };
}

}  // namespace hpsim
