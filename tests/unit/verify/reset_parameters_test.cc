// Runs whose parameters take their tensors anew, and what goes wrong when reset_sharded_param does
// not do all of it: every fault is found by a check of the run.

#include <algorithm>
#include <memory>
#include <vector>

#include "baseline/eigen_baseline.h"
#include "plan/build_plan.h"
#include "plan/verify_plan.h"
#include "planted_run.h"
#include "spoiled_run.h"
#include "support/catch.h"
#include "support/scenarios.h"
#include "verify/compare_runs.h"

namespace hpsim::test {
namespace {

using Ids = std::vector<CheckId>;
using BeforeStep = std::function<void(std::int64_t, Rank, RankEngine&)>;

/// w: rows 2 2 2 1 of 3, b: 2 2 1 0; two steps with momentum.
VerifiedPlan plan_of(InitDevice device) {
  Scenario scenario = fsdp_scenario(elementwise_model({{"w", {7, 3}}, {"b", {5}}}), 4);
  scenario.training.steps = 2;
  scenario.training.init_device = device;
  scenario.training.optimizer.momentum = 0.5;
  return verify_plan(build_plan(std::move(scenario)));
}

Verdict judged(const VerifiedPlan& plan, const RunResult& run) {
  return compare_runs(plan, run, run_baseline(plan->scenario, states_before_steps(*plan, run)));
}

Verdict judged(const VerifiedPlan& plan, const BeforeStep& before_step) {
  return judged(plan, run_spoiled(plan, {.before_step = before_step}));
}

/// Every parameter takes its values from a tensor of its own; its slot holds others until then.
void load_all(RankEngine& engine) {
  RankMemory<float>& memory = memory_of<float>(engine);
  for (int p = 0; p < 2; ++p) {
    const auto before = memory.registered(p);
    const std::vector<float> values(before->data, before->data + before->elems);
    std::fill_n(before->data, before->elems, 7.0F);
    memory.reset_sharded_param(p, values.data(), before->elems, DType::Float32);
    CHECK(memory.registered(p) == before);
  }
}

TEST_CASE("training goes on after all parameters were loaded anew, on the objects it had") {
  for (const InitDevice device : {InitDevice::Cpu, InitDevice::Meta}) {
    const VerifiedPlan plan = plan_of(device);
    int num_loaded = 0;
    const auto load = [&](std::int64_t step, Rank /*rank*/, RankEngine& engine) {
      if (step != 1) return;
      load_all(engine);
      ++num_loaded;
    };
    RunResult run = run_spoiled(plan, {.before_step = load});
    CHECK(num_loaded == 4);
    // Of padded slots the load wrote padding once more than the plan tells: w of the last rank, b
    // of the last two.
    run.rank_record(Rank{2}).pad_copies -= 1;
    run.rank_record(Rank{3}).pad_copies -= 2;
    CHECK(failed_checks(judged(plan, run)).empty());
  }
}

TEST_CASE("padding that a reset does not rebuild is found when it is sent") {
  const VerifiedPlan plan = plan_of(InitDevice::Meta);
  const Verdict verdict = judged(plan, [](std::int64_t step, Rank rank, RankEngine& engine) {
    if (step != 1 || rank.value != 3) return;
    const auto& w = memory_of<float>(engine).registered(0);
    w->data[w->elems] = 1;  // the first element behind its row
  });
  const std::vector<CheckId> failed = failed_checks(verdict);
  REQUIRE(std::find(failed.begin(), failed.end(), CheckId::Padding) != failed.end());
  const auto found = std::find_if(verdict.findings.begin(), verdict.findings.end(),
                                  [](auto& f) { return f.code == FindingCode::PaddingNonzero; });
  REQUIRE(found != verdict.findings.end());
  CHECK(found->param == "w");
  CHECK(found->rank == 3);
  CHECK(found->step == 1);
}

TEST_CASE("a parameter that views its old tensor is found: what is gathered was not updated") {
  const VerifiedPlan plan = plan_of(InitDevice::Meta);
  std::vector<float> old;
  const Verdict verdict = judged(plan, [&](std::int64_t step, Rank rank, RankEngine& engine) {
    if (step != 1 || rank.value != 1) return;
    const auto& w = memory_of<float>(engine).registered(0);
    old.assign(w->data, w->data + w->elems);
    w->data = old.data();
  });
  CHECK(failed_checks(verdict) == Ids{CheckId::ParameterParity});
  REQUIRE_FALSE(verdict.findings.empty());
  CHECK(verdict.findings[0].param == "w");
  CHECK(verdict.findings[0].step == 1);
}

TEST_CASE("a new object in place of the one that the optimizer holds is found likewise") {
  const VerifiedPlan plan = plan_of(InitDevice::Cpu);
  std::vector<float> old;
  const Verdict verdict = judged(plan, [&](std::int64_t step, Rank rank, RankEngine& engine) {
    if (step != 0 || rank.value != 2) return;
    // HyperParallel issue 322: modules know a new parameter, the optimizer the tensor of before.
    std::shared_ptr<ShardedParameter<float>>& w = memory_of<float>(engine).registered(0);
    const std::shared_ptr<ShardedParameter<float>> held = w;
    w = std::make_shared<ShardedParameter<float>>(*held);
    old.assign(held->data, held->data + held->elems);
    held->data = old.data();
  });
  CHECK(failed_checks(verdict) == Ids{CheckId::ParameterParity});
  REQUIRE_FALSE(verdict.findings.empty());
  CHECK(verdict.findings[0].param == "w");
  CHECK(verdict.findings[0].step == 0);
}

}  // namespace
}  // namespace hpsim::test
