#include "scenario/faults/fault_tables.h"

namespace hpsim {

std::vector<FaultKind> engine_faults() {
  return {};
}

}  // namespace hpsim
