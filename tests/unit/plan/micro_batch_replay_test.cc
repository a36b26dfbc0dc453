#include "plan/micro_batch_replay.h"

#include "plan/build_plan.h"
#include "support/catch.h"
#include "unit/plan/planted_plan.h"

namespace hpsim {
namespace {

using test::Texts;

/// What it says of all steps.
Texts told_of(const Plan& plan) {
  MicroBatchReplay replay(plan);
  Texts texts;
  for (const Step& step : plan.steps) {
    if (auto fault = replay.take(step)) texts.push_back(*fault);
  }
  return texts;
}

/// One parameter on (rep 2, fsdp 4), three micro-batches.
Plan plan_with(std::vector<bool> gradient_syncs, std::vector<bool> all_reduces) {
  Scenario scenario = test::hsdp_scenario(test::elementwise_model({{"w", {8, 2}}}), 2, 4);
  scenario.training.micro_batches = 3;
  scenario.training.global_batch = 24;
  scenario.training.gradient_syncs = std::move(gradient_syncs);
  scenario.training.all_reduces = std::move(all_reduces);
  return build_plan(scenario);
}

/// What it says of the steps of one plan where the training of the other is asked for.
Texts told_of(Plan plan, const Plan& asked) {
  plan.scenario.training = asked.scenario.training;
  return told_of(plan);
}

TEST_CASE("micro-batches reduce as often as the training asks for") {
  const Plan all = plan_with({}, {});
  const Plan last_two = plan_with({false, true, true}, {});
  const Plan reduced_last = plan_with({}, {false, false, true});
  CHECK(told_of(all).empty());
  CHECK(told_of(last_two).empty());
  CHECK(told_of(reduced_last).empty());

  CHECK(told_of(all, last_two) ==
        Texts{"reduce_scatter over (fsdp) in micro-batch 0 of 3, which asks for 0 of them",
              "all_reduce over (rep) in micro-batch 0 of 3, which asks for 0 of them"});
  CHECK(told_of(all, reduced_last) ==
        Texts{"all_reduce over (rep) in micro-batch 0 of 3, which asks for 0 of them",
              "all_reduce over (rep) in micro-batch 1 of 3, which asks for 0 of them"});
  CHECK(told_of(last_two, all) ==
        Texts{"micro-batch 0 of 3 ended with 0 reduce_scatters over (fsdp) of unit \"(root)\", and "
              "asks for them"});
  CHECK(told_of(reduced_last, all) ==
        Texts{"micro-batch 0 of 3 ended with 0 all_reduces over (rep) of unit \"(root)\", and asks "
              "for them",
              "micro-batch 1 of 3 ended with 0 all_reduces over (rep) of unit \"(root)\", and asks "
              "for them"});
}

}  // namespace
}  // namespace hpsim
