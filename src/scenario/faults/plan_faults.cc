#include "scenario/faults/fault_tables.h"

namespace hpsim {

std::vector<FaultKind> plan_faults() {
  return {};
}

}  // namespace hpsim
