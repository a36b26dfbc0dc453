#include <iterator>

#include "engine/faults/exchange_tools.h"
#include "engine/faults/fault_kinds.h"

namespace hpsim {

std::span<const EngineFaultKind> exchange_fault_kinds() {
  static const std::vector<EngineFaultKind> all = [] {
    std::vector<EngineFaultKind> kinds;
    for (auto table : {skipped_exchanges(), repeated_exchanges(), altered_exchanges(),
                       exchanges_of_other_units(), gradient_scales(), micro_batch_faults(),
                       early_reductions(), token_faults(), loss_faults()}) {
      kinds.insert(kinds.end(), table.begin(), table.end());
    }
    return kinds;
  }();
  return all;
}

}  // namespace hpsim
