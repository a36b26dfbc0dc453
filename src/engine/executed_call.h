#pragma once

#include <cstdint>

#include "engine/rank_engine.h"
#include "plan/plan.h"
#include "trace/run_result.h"

namespace hpsim {

/// What is recorded of a collective that a rank enters. `plan` is the one that the rank carries
/// out, `group_index` that of the rank's group among groups_along. Its tag is the collective_tag of
/// the plan step, another one where the call is not what that step says.
[[nodiscard]] ExecutedCollective executed_call(const Plan& plan, const CollectiveCall& call,
                                               std::int64_t group_index);

}  // namespace hpsim
