// Where positions went: what is compared with the baseline, and what follows from it.

#include "verify/routing.h"

#include <algorithm>
#include <string>

#include "baseline/eigen_baseline.h"
#include "exec/local.h"
#include "plan/build_plan.h"
#include "plan/verify_plan.h"
#include "planted_run.h"
#include "scenario/parse.h"
#include "support/catch.h"
#include "verify/compare_runs.h"

namespace hpsim::test {
namespace {

using Ids = std::vector<CheckId>;

/// fsdp 2 x ep 2, two steps; four samples on each data rank, 3 positions each, two of four experts.
struct ExpertsRun {
  ExpertsRun()
      : plan(verify_plan(build_plan(parse_scenario(R"x({
          "hpsim": 1, "mesh": {"shape": [2, 2], "mesh_dim_names": ["fsdp", "ep"]},
          "model": [{"name": "norm", "type": "rms_norm", "dim": 8},
                    {"name": "moe", "type": "moe", "dim": 8, "hidden": 6, "experts": 4, "top_k": 2}],
          "data": {"sample_shape": [3, 8]}, "parallelize": {"moe": "expert"},
          "training": {"steps": 2, "global_batch": 16}})x",
                                                   "experts.json")))),
        run(LocalExecutor().run(plan, {})),
        reference(run_baseline(plan->scenario, states_before_steps(*plan, run))) {}

  [[nodiscard]] Verdict judge() const { return compare_runs(plan, run, reference); }

  VerifiedPlan plan;
  RunResult run;
  ReferenceRun reference;
};

TEST_CASE("every count of every rank and step is compared") {
  const ExpertsRun experts;
  const Verdict verdict = experts.judge();
  CHECK(failed_checks(verdict) == Ids{});
  CHECK(check_of(verdict, CheckId::Routing).compared == 2 * 4 * 4);
  // All positions of a rank go to two experts each.
  for (std::int64_t rank = 0; rank < 4; ++rank) {
    const std::int64_t* const counts = experts.run.routed(Rank{rank}, 1, 0);
    CHECK(counts[0] + counts[1] + counts[2] + counts[3] == 4 * 3 * 2);
  }
}

TEST_CASE("planted: a position sent to another expert than the baseline's") {
  ExpertsRun experts;
  std::int64_t* const counts = experts.run.routed(Rank{2}, 1, 0);
  const std::int64_t expert = counts[1] > 0 ? 1 : 2;
  const std::int64_t before = counts[expert];
  --counts[expert];
  ++counts[3];
  const Verdict verdict = experts.judge();
  const auto finding =
      std::find_if(verdict.findings.begin(), verdict.findings.end(),
                   [](const Finding& each) { return each.code == FindingCode::RouteWrong; });
  REQUIRE(finding != verdict.findings.end());
  CHECK(finding->check == CheckId::Routing);
  CHECK(finding->rank == 2);
  CHECK(finding->step == 1);
  CHECK(finding->expected == static_cast<double>(before));
  CHECK(finding->got == static_cast<double>(before - 1));
  CHECK_THAT(finding->message, Catch::Matchers::StartsWith("\"moe.experts\" on rank 2 (fsdp=1, "));
}

TEST_CASE("planted: what was sent is not what was routed") {
  // Counts that were recorded wrongly do not agree with the bytes that were sent.
  ExpertsRun miscounted;
  miscounted.run.routed(Rank{0}, 0, 0)[0] += 100;
  const auto failed = failed_checks(miscounted.judge());
  CHECK(std::find(failed.begin(), failed.end(), CheckId::PlanAgreement) != failed.end());
  CHECK(std::find(failed.begin(), failed.end(), CheckId::Ledger) != failed.end());
  CHECK(std::find(failed.begin(), failed.end(), CheckId::Routing) != failed.end());

  ExpertsRun missent;
  ExecutedCollective* const executed = missent.run.executed(Rank{1});
  const std::int64_t count = missent.run.rank_record(Rank{1}).num_collectives;
  const auto dispatch =
      std::find_if(executed, executed + count, [&](const ExecutedCollective& each) {
        return missent.plan->steps.at(static_cast<std::size_t>(each.plan_step)).kind ==
               StepKind::Dispatch;
      });
  REQUIRE(dispatch != executed + count);
  dispatch->elems_out += 8;  // one position more arrived than was sent
  const Verdict verdict = missent.judge();
  CHECK(failed_checks(verdict) == Ids{CheckId::PlanAgreement});
  REQUIRE_FALSE(verdict.findings.empty());
  CHECK(verdict.findings.front().code == FindingCode::CommShape);
}

}  // namespace
}  // namespace hpsim::test
