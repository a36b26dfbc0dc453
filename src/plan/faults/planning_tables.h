#pragma once

#include <vector>

#include "plan/faults/operators.h"

namespace hpsim {

// What planning_operators is put together from, in this order: what a pass gets wrong early comes
// first, since all that follows is planned anew from it.

/// Of parameters, before they are put into buckets: which ranks hold copies, how large slots are,
/// and in which micro-batches gradients are reduced.
[[nodiscard]] std::vector<NamedPlanFault> early_operators();
/// Of how parameters are cut, and of what their placements say.
[[nodiscard]] std::vector<NamedPlanFault> placement_operators();
/// Of the groups of collectives.
[[nodiscard]] std::vector<NamedPlanFault> group_operators();
/// Of collectives: whether there is one, and what it carries.
[[nodiscard]] std::vector<NamedPlanFault> collective_operators();
/// Of the factors of gradients.
[[nodiscard]] std::vector<NamedPlanFault> scale_operators();
/// Of the mesh dims over which gradients and activations are added up.
[[nodiscard]] std::vector<NamedPlanFault> sync_operators();
/// Of the order of steps.
[[nodiscard]] std::vector<NamedPlanFault> order_operators();

}  // namespace hpsim
