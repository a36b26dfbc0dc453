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

/// Gradients of experts on this mesh, multiplied in what the run recorded: what the first finding
/// says that explains the ratio.
std::vector<std::string> explained(const std::string& mesh, const std::string& more,
                                   double factor) {
  const VerifiedPlan plan = verify_plan(build_plan(parse_scenario(R"x({"hpsim": 1, "mesh": )x" +
                                                                      mesh + R"x(, "model": [
          {"name": "norm", "type": "rms_norm", "dim": 8},
          {"name": "moe", "type": "moe", "dim": 8, "hidden": 6, "experts": 4, "top_k": 2}],
          "data": {"sample_shape": [3, 8]}, "parallelize": {"moe": "expert"},
          "training": {"global_batch": 16})x" + more + "}",
                                                                  "experts.json")));
  RunResult run = LocalExecutor().run(plan, {});
  const ReferenceRun reference = run_baseline(plan->scenario, states_before_steps(*plan, run));
  CHECK(compare_runs(plan, run, reference).passed());
  for (int p = 0; p < static_cast<int>(plan->parameters.size()); ++p) {
    if (plan->scenario.parameters[static_cast<std::size_t>(p)].kind !=
        ParameterSpec::Kind::ExpertWeight) {
      continue;
    }
    for (const Rank rank : run.layout().recording()) {
      auto* const data = reinterpret_cast<float*>(run.bytes(run.layout().gradient(rank, 0, p)));
      for (std::int64_t i = 0; i < run.layout().shard_elems(rank, p); ++i)
        data[i] *= static_cast<float>(factor);
    }
  }
  const Verdict verdict = compare_runs(plan, run, reference);
  for (const Finding& finding : verdict.findings) {
    if (finding.check != CheckId::GradientParity) continue;
    CHECK(finding.code == FindingCode::GradScale);
    CHECK(finding.param.find(".experts.w") != std::string::npos);
    return finding.explains;
  }
  return {};
}

TEST_CASE("planted: divisors of experts that frameworks got wrong are named") {
  const auto names = [](const std::vector<std::string>& explains, const std::string& wanted) {
    CAPTURE(explains);
    return std::find(explains.begin(), explains.end(), wanted) != explains.end();
  };
  // Divided by the ranks that hold the same experts only: ep times too large.
  const std::string fsdp_ep = R"({"shape": [2, 2], "mesh_dim_names": ["fsdp", "ep"]})";
  CHECK(names(explained(fsdp_ep, "", 2), "ep=2"));
  const std::string ep_4 = R"({"shape": [2, 4], "mesh_dim_names": ["fsdp", "ep"]})";
  CHECK(names(explained(ep_4, "", 4), "ep=4"));
  // Divided by ep once more.
  CHECK(names(explained(ep_4, "", 0.25), "1/ep=1/4"));
  // ep / tp, of a mesh of experts of its own; and tp.
  const std::string ep_tp = R"({"shape": [4, 2], "mesh_dim_names": ["ep", "tp"]})";
  CHECK(names(explained(ep_tp, "", 2), "ep/tp=2"));
  CHECK(names(explained(ep_tp, "", 2), "tp=2"));
  // Replicas of experts taken for one: R.
  const std::string rep_ep = R"({"shape": [2, 4], "mesh_dim_names": ["rep", "ep"]})";
  CHECK(names(explained(rep_ep, "", 2), "R=2"));
  // A shard group of one rank: the factor is not applied, or twice.
  const std::string one = R"({"shape": [1, 2], "mesh_dim_names": ["fsdp", "ep"]})";
  const std::string factor = R"(, "fully_shard": {"gradient_divide_factor": 3})";
  CHECK(names(explained(one, factor, 3), "F=3"));
  CHECK(names(explained(one, factor, 1.0 / 3), "1/F=1/3"));
}

TEST_CASE("planted: a plan that scales experts by a divisor of their own is rejected") {
  Plan plan = build_plan(parse_scenario(R"x({
      "hpsim": 1, "mesh": {"shape": [2, 2], "mesh_dim_names": ["fsdp", "ep"]},
      "model": [{"name": "norm", "type": "rms_norm", "dim": 8},
                {"name": "moe", "type": "moe", "dim": 8, "hidden": 6, "experts": 4, "top_k": 2}],
      "data": {"sample_shape": [8]}, "parallelize": {"moe": "expert"},
      "fully_shard": {"units": ["moe.experts"]}})x",
                                        "experts.json"));
  int num_scaled = 0;
  for (Step& step : plan.steps) {
    if (step.kind != StepKind::ReduceScatter) continue;
    if (plan.unit_name(plan.bucket(step.bucket)) != "moe.experts") continue;
    step.collective->scale *= 2;  // by the ranks of fsdp, not by all data ranks
    ++num_scaled;
  }
  REQUIRE(num_scaled == 1);
  try {
    (void)verify_plan(std::move(plan));
    FAIL("the plan was taken");
  } catch (const PlanRejected& rejected) {
    REQUIRE(rejected.findings().size() == 3);
    for (const Finding& finding : rejected.findings()) {
      CHECK(finding.code == FindingCode::GradScale);
      CHECK(finding.param.find("moe.experts.w") == 0);
    }
  }
}

}  // namespace
}  // namespace hpsim::test
