#include "explained_run.h"

#include "baseline/contributions.h"
#include "baseline/eigen_baseline.h"
#include "exec/local.h"
#include "plan/build_plan.h"
#include "plan/verify_plan.h"
#include "support/catch.h"
#include "verify/compare_runs.h"

namespace hpsim::test {

CountedSources::CountedSources(const Scenario& scenario, double confidence) {
  using Tensors = CauseSources::Tensors;
  sources.cost = [&](const ContributionRequest& request) {
    return contribution_cost(scenario, request);
  };
  sources.contributions = [&](const ContributionRequest& request, const Tensors& parameters) {
    ++num_contributions;
    return contributions_to(scenario, request, parameters);
  };
  sources.gradients = [this, confidence](const Scenario& variant, std::int64_t step,
                                         const Tensors& parameters) {
    ++num_gradients;
    return gradients_of_step(variant, step, parameters, confidence);
  };
}

ExplainedRun::ExplainedRun(const Scenario& scenario, const Spoiling& spoiling)
    : plan(verify_plan(build_plan(scenario))), run(run_spoiled(plan, spoiling)) {}

ExplainedRun::ExplainedRun(const Scenario& told, const Scenario& done)
    : plan(verify_plan(build_plan(told))),
      run(LocalExecutor().run(verify_plan(build_plan(done)), {})) {}

Verdict ExplainedRun::judge() const {
  const ReferenceRun reference = run_baseline(plan->scenario, states_before_steps(*plan, run));
  const CountedSources counted(plan->scenario, reference.confidence);
  Verdict verdict = compare_runs(plan, run, reference, counted.sources);
  if (verdict.passed()) {
    CHECK(counted.num_contributions == 0);
    CHECK(counted.num_gradients == 0);
  }
  return verdict;
}

std::vector<std::string> explanations(const Verdict& verdict, CheckId check,
                                      const std::string& param, std::int64_t step) {
  for (const Finding& finding : verdict.findings) {
    if (finding.check != check || finding.severity != Severity::Error) continue;
    if (!param.empty() && finding.param != param) continue;
    if (step >= 0 && finding.step != step) continue;
    UNSCOPED_INFO(finding.message);
    CHECK(finding.explains.size() <= 3);
    return finding.explains;
  }
  FAIL("no such finding");
  return {};
}

void SentBuffers::keep(const Step& /*step*/, Rank rank, const CollectiveCall& call) {
  const auto* const data = static_cast<const float*>(call.input);
  buffers_[{call.plan_step, rank.value}] = {data, data + call.elems_in};
}

}  // namespace hpsim::test
