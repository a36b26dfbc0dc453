// Between the begin of an unshard and its end nothing may use the parameters: the engine finds it.

#include "base/check.h"
#include "engine/rank_engine.h"
#include "one_rank.h"
#include "plan/verify_plan.h"
#include "support/catch.h"
#include "support/scenarios.h"

namespace hpsim {
namespace {

using OneRank = OneRankOf<float>;
using Catch::Matchers::Contains;
constexpr const char* kUsed = "is used while it is unsharded";
constexpr const char* kNotBegun = "no unshard of bucket 1 is begun";

/// Two layers of 4 x 4 on two ranks, the next one begun ahead.
Scenario two_layers() {
  Scenario scenario = test::fsdp_scenario(
      test::modules_model({test::linear("l0", 4, 4, false), test::linear("l1", 4, 4, false)}), 2);
  scenario.fully_shard.forward_prefetch = 1;
  return scenario;
}

TEST_CASE("planted: what is pending is read, written, freed, averaged or begun once more") {
  OneRank rank(two_layers(), Rank{0});
  const auto ends = rank.memory.begin_unshard(1);
  REQUIRE(ends.output != nullptr);
  CHECK_THROWS_WITH(rank.memory.whole(1), Contains(kUsed));
  CHECK_THROWS_WITH(rank.memory.shard(1), Contains(kUsed));
  CHECK_THROWS_WITH(rank.memory.reshard(1, false), Contains(kUsed));
  CHECK_THROWS_WITH(rank.memory.begin_unshard(1), Contains(kUsed));
  CHECK_NOTHROW(rank.memory.shard(0));
  rank.memory.end_unshard(1);
  CHECK(rank.memory.whole(1).data == ends.output);
  CHECK_THROWS_WITH(rank.memory.end_unshard(1), Contains(kNotBegun));
}

TEST_CASE(
    "the buffer is taken at the begin, and what it is gathered from is given back at the end") {
  Scenario scenario = two_layers();
  scenario.fully_shard.mp_policy.param_dtype = DType::BFloat16;
  OneRank rank(scenario, Rank{0});
  // A row of 8 numbers that is cast, and 16 that are gathered.
  (void)rank.memory.begin_unshard(1);
  CHECK(rank.live(MemoryKind::UnshardedParameters) == (8 + 16) * 2);
  rank.memory.end_unshard(1);
  CHECK(rank.live(MemoryKind::UnshardedParameters) == 16 * 2);
}

TEST_CASE("an engine that runs ahead of the plan, or waits for nothing, is stopped") {
  // 0 unshard l0, 1 begin l1, 2 forward l0, 3 reshard l0, 4 wait l1, 5 forward l1
  const VerifiedPlan plan = verify_plan(build_plan(two_layers()));
  REQUIRE(plan->steps[1].is_async);
  REQUIRE(plan->steps[4].kind == StepKind::WaitUnshard);
  RunResult result = result_for(*plan);
  const auto engine = make_rank_engine(plan, Rank{0}, result);
  const auto run = [&](std::int64_t plan_step) {
    const auto call = engine->begin(plan_step);
    engine->finish(plan_step);
    return call;
  };
  CHECK_THROWS_WITH(run(4), Contains(kNotBegun));
  CHECK(run(0).has_value());
  const auto begun = run(1);
  REQUIRE(begun.has_value());
  CHECK(begun->op == CollectiveOp::AllGather);
  CHECK_FALSE(run(2).has_value());
  CHECK_THROWS_WITH(run(5), Contains(kUsed));
  CHECK_FALSE(run(3).has_value());
  CHECK_FALSE(run(4).has_value());
  CHECK_FALSE(run(5).has_value());
}

}  // namespace
}  // namespace hpsim
