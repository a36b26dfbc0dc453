#include "plan/faults/operators.h"

namespace hpsim {

std::span<const NamedPlanFault> executed_operators() {
  return {};
}

}  // namespace hpsim
