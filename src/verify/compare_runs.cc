#include "verify/compare_runs.h"

#include "verify/evidence.h"
#include "verify/execution.h"
#include "verify/identical_data.h"
#include "verify/invariants.h"
#include "verify/ledger.h"
#include "verify/parity.h"
#include "verify/precision.h"
#include "verify/routing.h"

namespace hpsim {

Verdict compare_runs(const VerifiedPlan& plan, const RunResult& run, const ReferenceRun& reference,
                     const CauseSources& sources) {
  Verdict verdict;
  RankTable ranks(plan->mesh());
  const Evidence evidence{*plan, run, reference, ranks, plan.checks().warnings, sources};
  for (const CheckResult& result : plan.checks().results) {
    CheckRecorder recorder(result);
    if (result.id == CheckId::PlanAgreement && run.has_numbers()) {
      check_plan_agreement(evidence, recorder, verdict);
    } else if (result.id == CheckId::Placements) {
      check_placements(evidence, recorder, verdict);
    } else {
      recorder.finish(verdict);
    }
  }
  if (run.has_numbers()) {
    check_losses(evidence, verdict);
    warn_of_identical_data(evidence, verdict);
    check_gradients(evidence, verdict);
    check_parameters(evidence, verdict);
    check_optimizer_state(evidence, verdict);
    check_grad_norms(evidence, verdict);
    check_replicas(evidence, verdict);
    check_padding(evidence, verdict);
    check_ledger(evidence, verdict);
    check_precision(evidence, verdict);
    check_routing(evidence, verdict);
    if (!reference.exact) verdict.drift = measure_drift(*plan, run, reference);
  }
  verdict.findings.insert(verdict.findings.end(), plan.checks().warnings.begin(),
                          plan.checks().warnings.end());
  return verdict;
}

}  // namespace hpsim
