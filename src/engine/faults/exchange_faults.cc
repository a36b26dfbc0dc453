#include "engine/faults/fault_kinds.h"

namespace hpsim {

std::span<const EngineFaultKind> exchange_fault_kinds() {
  return {};
}

}  // namespace hpsim
