#include "engine/faults/fault_kinds.h"
#include "engine/faults/fault_tools.h"

namespace hpsim {

std::span<const EngineFaultKind> rank_fault_kinds() {
  static const std::vector<EngineFaultKind> kinds = [] {
    std::vector<EngineFaultKind> all;
    for (const auto& some :
         {parameter_fault_kinds(), initial_fault_kinds(), sample_fault_kinds(),
          gradient_fault_kinds(), rounding_fault_kinds(), optimizer_fault_kinds(),
          padding_fault_kinds(), storage_fault_kinds(), buffer_fault_kinds(), norm_fault_kinds(),
          clipping_fault_kinds(), model_fault_kinds(), activation_fault_kinds()})
      all.insert(all.end(), some.begin(), some.end());
    return all;
  }();
  return kinds;
}

}  // namespace hpsim
