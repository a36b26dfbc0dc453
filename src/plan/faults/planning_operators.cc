#include <vector>

#include "plan/faults/operators.h"
#include "plan/faults/planning_tables.h"

namespace hpsim {
namespace {

std::vector<NamedPlanFault> all_operators() {
  std::vector<NamedPlanFault> all;
  for (const auto& operators :
       {early_operators(), placement_operators(), group_operators(), collective_operators(),
        scale_operators(), sync_operators(), order_operators()}) {
    all.insert(all.end(), operators.begin(), operators.end());
  }
  return all;
}

}  // namespace

std::span<const NamedPlanFault> planning_operators() {
  static const std::vector<NamedPlanFault> operators = all_operators();
  return operators;
}

}  // namespace hpsim
