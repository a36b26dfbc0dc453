#include "plan/faults/operators.h"

#include "plan/faults/executed_faults.h"

namespace hpsim {

std::span<const NamedPlanFault> executed_operators() {
  static constexpr NamedPlanFault kOperators[] = {
      {"wrong_group_dim", execute_wrong_group_dim},
      {"wrong_group_stride", execute_wrong_group_stride},
      {"dropped_group_dim", execute_dropped_group_dim},
      {"mean_of_means", execute_mean_of_means},
      {"same_data_on_replicas", execute_same_data_on_replicas},
  };
  return kOperators;
}

}  // namespace hpsim
