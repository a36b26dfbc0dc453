#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "engine/faults/fault_tools.h"

namespace hpsim {

// What faults of collectives are made of.

/// Whether a fault is aimed at a step: at its optimizer step and, where one is named, its unit.
[[nodiscard]] bool is_aimed_at(const Plan& plan, const FaultSpec& fault, const Step& step);

/// Whether some step at which the fault is aimed has a collective in which an aimed rank sends
/// something, and is so.
[[nodiscard]] bool any_exchange(const Plan& plan, const FaultSpec& fault,
                                const std::function<bool(const Step&)>& is_so);

// Kinds of collectives.
[[nodiscard]] bool is_all_gather(const Step& step);      ///< of a unit's parameters
[[nodiscard]] bool is_reduce_scatter(const Step& step);  ///< of its gradients
[[nodiscard]] bool is_all_reduce(const Step& step);      ///< of its gradients over copies
[[nodiscard]] bool is_partial_reduce(const Step& step);  ///< over other dims: partial_group
[[nodiscard]] bool is_of_gradients(const Step& step);    ///< any of the three
[[nodiscard]] bool is_of_activation(const Step& step);   ///< a redistribution
[[nodiscard]] bool is_of_loss(const Step& step);         ///< its statistics
[[nodiscard]] bool is_of_norm(const Step& step);         ///< that gradients are clipped by
[[nodiscard]] bool is_weight_average(const Step& step);

/// Position of a rank among the members of its group.
[[nodiscard]] std::int64_t position_in_group(const Plan& plan, const CollectiveSpec& spec,
                                             Rank rank);

/// Leaves in the output what the rank has itself: its own part in its place, of a reduction its own
/// term, zeros elsewhere. \pre the slots of an all_to_all are equal
void keep_own(const Plan& plan, Rank rank, const CollectiveCall& call);

// The tables of exchange_fault_kinds(), by what they are about.
[[nodiscard]] std::vector<EngineFaultKind> skipped_exchanges();
[[nodiscard]] std::vector<EngineFaultKind> repeated_exchanges();
[[nodiscard]] std::vector<EngineFaultKind> altered_exchanges();
[[nodiscard]] std::vector<EngineFaultKind> exchanges_of_other_units();
[[nodiscard]] std::vector<EngineFaultKind> gradient_scales();
[[nodiscard]] std::vector<EngineFaultKind> micro_batch_faults();
[[nodiscard]] std::vector<EngineFaultKind> early_reductions();
[[nodiscard]] std::vector<EngineFaultKind> token_faults();
[[nodiscard]] std::vector<EngineFaultKind> loss_faults();

}  // namespace hpsim
