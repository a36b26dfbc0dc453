#include "scenario/faults/fault_tables.h"

namespace hpsim {

std::vector<FaultKind> exchange_faults() {
  return {};
}

}  // namespace hpsim
