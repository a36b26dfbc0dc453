#pragma once

#include <vector>

#include "scenario/scenario.h"
#include "trace/reference_run.h"
#include "trace/training_state.h"

namespace hpsim {

/// Trains the scenario on one process with the whole batch, knowing no plan, rank or collective.
///
/// Derived mode: float64, with the variance of the rounding error that a run in the scenario's
/// dtype may carry beside every value (README, "Bounds"). `held[t]` is what the run held before
/// step t, for t >= 1 (held[0] is ignored: the baseline draws the initial parameters itself); each
/// step is judged from it. If `held` is empty, the steps follow one another freely. `losses` and
/// `grad_norms` of the result are always those of a free training; where rounding errors have grown
/// beyond an eighth of one of them, a training that diverges, their spreads are infinite from that
/// step on, as from a step on where rounding may change which expert a position goes to.
///
/// Exact mode: in the scenario's dtype, `held` is ignored.
/// \throws Error (InvalidScenario) in exact mode where an operation was not exact, with step,
///         parameter and way out; in derived mode where rounding may change a route in a step that
///         is judged, NEAR_TIE, with step, module, sample, position, both experts and way out
[[nodiscard]] ReferenceRun run_baseline(const Scenario& scenario,
                                        const std::vector<TrainingState>& held = {});

}  // namespace hpsim
