#include "plan/faults/operators.h"

namespace hpsim {

std::span<const NamedPlanFault> planning_operators() {
  return {};
}

}  // namespace hpsim
