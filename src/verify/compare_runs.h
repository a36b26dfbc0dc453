#pragma once

#include "plan/plan.h"
#include "trace/reference_run.h"
#include "trace/run_result.h"
#include "verify/verdict.h"

namespace hpsim {

/// Judges a run: every check of the plan, then (if the run has numbers) loss, every gradient shard,
/// every updated parameter shard, optimizer state, on every rank and step against `reference`;
/// agreement of replicas; padding; executed collectives; ledger.
[[nodiscard]] Verdict compare_runs(const VerifiedPlan& plan, const RunResult& run,
                                   const ReferenceRun& reference);

}  // namespace hpsim
