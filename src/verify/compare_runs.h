#pragma once

#include "plan/plan.h"
#include "trace/reference_run.h"
#include "trace/run_result.h"
#include "verify/cause_sources.h"
#include "verify/verdict.h"

namespace hpsim {

/// Judges a run: every check of the plan, then (if the run has numbers) loss, every gradient shard,
/// every updated parameter shard, optimizer state, on every rank and step against `reference`;
/// agreement of replicas; padding; executed collectives; ledger. Where a check of numbers fails,
/// its findings say what explains them, as far as `sources` answer.
[[nodiscard]] Verdict compare_runs(const VerifiedPlan& plan, const RunResult& run,
                                   const ReferenceRun& reference, const CauseSources& sources = {});

}  // namespace hpsim
