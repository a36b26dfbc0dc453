#pragma once

#include "plan/plan.h"

namespace hpsim {

// Faults of stage Run that are another plan (PlanFault). Groups are those of the collectives of
// units, activations, the norm and the averaged weights.

/// Another mesh dim of the same size in the place of one of the group's.
bool execute_wrong_group_dim(Plan& plan, const FaultSpec& fault);

/// Groups of as many ranks, but of consecutive ones, where the plan has others.
bool execute_wrong_group_stride(Plan& plan, const FaultSpec& fault);

/// Of all-reduces over several mesh dims, the last that is larger than 1 is left out.
bool execute_dropped_group_dim(Plan& plan, const FaultSpec& fault);

/// Every rank takes the mean over its own terms, and gradients are the mean of these over ranks,
/// where the loss is the mean over all terms. The losses that are recorded are those of
/// engine/faults/loss_faults.cc.
bool execute_mean_of_means(Plan& plan, const FaultSpec& fault);

/// Ranks that differ along the replicate dims alone read the same samples, as if they were one.
bool execute_same_data_on_replicas(Plan& plan, const FaultSpec& fault);

}  // namespace hpsim
