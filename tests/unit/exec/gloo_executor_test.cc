#include "exec/gloo/gloo_executor.h"
#include "exec/describe_step.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <numeric>
#include <utility>
#include <vector>

#include "base/error.h"
#include "exec/gloo/plan_runner.h"
#include "exec/gloo/supervisor.h"
#include "exec/local.h"
#include "exec/shared_memory.h"
#include "plan/build_plan.h"
#include "plan/verify_plan.h"
#include "support/catch.h"
#include "support/scenarios.h"
#include "unit/exec/leftovers.h"
#include "unit/exec/uneven_counts.h"

namespace hpsim {
namespace {

using test::activation;
using test::elementwise_model;
using test::finish_scenario;
using test::fsdp_scenario;
using test::hsdp_scenario;
using test::linear;
using test::make_exact;
using test::modules_model;

VerifiedPlan verified(Scenario scenario) {
  return verify_plan(build_plan(std::move(scenario)));
}

RunResult run_gloo(const VerifiedPlan& plan) {
  return make_gloo_executor()->run(plan, {});
}

std::vector<Scenario> assorted() {
  std::vector<Scenario> scenarios = {
      fsdp_scenario(elementwise_model({{"a", {7, 8}}, {"b", {5, 3}}}), 4),
      hsdp_scenario(modules_model({linear("l0", 6, 10), activation("a0", ModuleType::Gelu),
                                   linear("l1", 10, 3)}),
                    2, 3),
      fsdp_scenario(modules_model({linear("l0", 300, 301), linear("l1", 301, 1)}), 3),
      fsdp_scenario(modules_model({linear("l0", 4, 4)}), 1)};
  scenarios[1].mesh = Mesh({2, 3}, {"rep", "fsdp"}, {5, 1, 0, 4, 2, 3});
  scenarios[1].training.steps = 3;
  scenarios[1].training.optimizer.kind = OptimizerSpec::Kind::AdamW;
  scenarios[1].numerics.dtype = DType::Float64;
  Scenario exact = hsdp_scenario(elementwise_model({{"w", {5, 3}}}), 2, 2);
  make_exact(exact);
  scenarios.push_back(exact);
  return scenarios;
}

TEST_CASE("gloo records what local records, byte for byte") {
  for (const Scenario& scenario : assorted()) {
    const VerifiedPlan plan = verified(scenario);
    RunResult on_gloo = run_gloo(plan);
    RunResult on_local = LocalExecutor().run(plan, {});
    const std::int64_t size = on_local.layout().size_bytes();
    REQUIRE(on_gloo.layout().size_bytes() == size);
    REQUIRE(size > 0);
    CHECK(std::memcmp(on_gloo.bytes(0), on_local.bytes(0), static_cast<std::size_t>(size)) == 0);
    for (std::int64_t r = 0; r < plan->mesh().num_ranks(); ++r) {
      CHECK(on_gloo.rank_record(Rank{r}).done == 1);
    }
    CHECK(on_gloo.backend() == "gloo");
    CHECK(on_gloo.connect_time_s > 0);
    CHECK(on_gloo.run_time_s > 0);
  }
}

TEST_CASE("a sum over ranks that rounds is recorded, on every rank that holds it") {
  // Weights of 0 make the gradient -x t. All products, and sums of a rank's two samples, stay
  // within 2^24 and are exact, as are the scale 1/8 and the update of 0; sums over 8 replicas pass
  // 2^24.
  const auto scenario_with = [](std::int64_t largest_target) {
    Scenario scenario = hsdp_scenario(elementwise_model({{"w", {64}}}), 8, 1);
    make_exact(scenario);
    scenario.data.init.max = 0;
    scenario.data.input.max = 1 << 12;
    scenario.data.target.max = largest_target;
    return scenario;
  };
  for (const bool rounds : {true, false}) {
    const VerifiedPlan plan = verified(scenario_with(rounds ? 1 << 11 : 1 << 8));
    const RunResult on_gloo = run_gloo(plan);
    const RunResult on_local = LocalExecutor().run(plan, {});
    for (std::int64_t rank = 0; rank < 8; ++rank) {
      CHECK(on_gloo.step_record(Rank{rank}, 0).inexact == (rounds ? 1 : 0));
      CHECK(on_local.step_record(Rank{rank}, 0).inexact == (rounds ? 1 : 0));
    }
  }
}

TEST_CASE("without tensors nothing but records is kept") {
  const VerifiedPlan plan = verified(fsdp_scenario(elementwise_model({{"w", {7, 8}}}), 4));
  RunOptions options;
  options.records_tensors = false;
  const RunResult run = make_gloo_executor()->run(plan, options);
  CHECK_FALSE(run.has_numbers());
  CHECK(run.rank_record(Rank{3}).done == 1);
  CHECK(run.rank_record(Rank{3}).num_collectives == 3);
}

TEST_CASE("more ranks than a machine takes are refused, naming the way out") {
  const VerifiedPlan plan = verified(fsdp_scenario(elementwise_model({{"w", {7}}}), 65));
  try {
    (void)run_gloo(plan);
    FAIL("no error");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::Usage);
    const std::string text = error.what();
    CHECK(text.find("65") != std::string::npos);
    CHECK(text.find("--backend local takes up to 1,024") != std::string::npos);
    CHECK(text.find("symbolic") != std::string::npos);
  }
}

TEST_CASE("64 ranks run") {
  const VerifiedPlan plan = verified(fsdp_scenario(elementwise_model({{"w", {7, 8}}}), 64));
  RunResult on_gloo = run_gloo(plan);
  RunResult on_local = LocalExecutor().run(plan, {});
  CHECK(std::memcmp(on_gloo.bytes(0), on_local.bytes(0),
                    static_cast<std::size_t>(on_local.layout().size_bytes())) == 0);
}

TEST_CASE("twenty runs in a row leave nothing behind and give the same bytes") {
  const VerifiedPlan plan = verified(fsdp_scenario(elementwise_model({{"w", {7, 8}}}), 4));
  RunResult first = run_gloo(plan);
  const PrivateDirectory directory;
  const std::string before = leftovers();
  for (int i = 0; i < 20; ++i) {
    RunResult again = run_gloo(plan);
    CHECK(std::memcmp(first.bytes(0), again.bytes(0),
                      static_cast<std::size_t>(first.layout().size_bytes())) == 0);
  }
  CHECK(leftovers() == before);
}

/// Asks for an all-to-all of given counts at every step with a collective, and does nothing else.
class DealingEngine : public RankEngine {
 public:
  DealingEngine(const CountMatrix& matrix, Rank rank)
      : sent_(matrix.sent_by(static_cast<std::size_t>(rank.value))),
        expected_(matrix.sent_to(static_cast<std::size_t>(rank.value))),
        input_(sum_of(sent_), static_cast<float>(rank.value)),
        output_(sum_of(expected_), -1.0F) {}

  [[nodiscard]] const std::vector<float>& output() const { return output_; }

  std::optional<CollectiveCall> begin(std::int64_t plan_step) override {
    return CollectiveCall{.plan_step = plan_step,
                          .op = CollectiveOp::AllToAll,
                          .input = input_.data(),
                          .output = output_.data(),
                          .elems_in = static_cast<std::int64_t>(input_.size()),
                          .elems_out = static_cast<std::int64_t>(output_.size()),
                          .counts_in = sent_,
                          .counts_out = expected_};
  }
  void finish(std::int64_t /*plan_step*/) override {}

 private:
  static std::size_t sum_of(const std::vector<std::int64_t>& counts) {
    return static_cast<std::size_t>(std::accumulate(counts.begin(), counts.end(), std::int64_t{0}));
  }

  std::vector<std::int64_t> sent_, expected_;
  std::vector<float> input_, output_;
};

/// Three ranks of a plan whose first two collectives are routed.
Plan routed_plan() {
  Plan plan = build_plan(fsdp_scenario(elementwise_model({{"w", {7, 8}}}), 3));
  for (Step& step : plan.steps) {
    if (!step.collective) continue;
    step.collective->op = CollectiveOp::AllToAll;
    step.collective->is_routed = true;
  }
  return plan;
}

TEST_CASE("a rank that only gets, or has nothing to do, is in step with the others") {
  // Rank 1 sends two elements to rank 0, rank 2 has nothing to do.
  const CountMatrix matrix{"", {{0, 0, 0}, {2, 0, 0}, {0, 0, 0}}};
  const Plan plan = routed_plan();
  std::vector<std::int64_t> collectives;
  for (std::size_t i = 0; i < plan.steps.size(); ++i) {
    if (plan.steps[i].collective) collectives.push_back(static_cast<std::int64_t>(i));
  }
  REQUIRE(collectives.size() >= 2);
  ResultLayout layout(plan, false);
  auto block = map_shared(layout.size_bytes());
  RunResult result("gloo", std::move(layout), std::move(block));
  const auto right = map_shared(sizeof(std::atomic<int>));
  auto& num_right = *new (right.get()) std::atomic<int>(0);
  RunOptions options;
  options.timeout_s = 20;
  const auto describe = [&](std::int64_t plan_step) { return describe_step(plan, plan_step); };
  (void)run_ranks(3, options, describe, [&](RankSession& session) {
    DealingEngine engine(matrix, session.rank());
    PlanRunner runner(plan, engine, session, result);
    for (const std::int64_t plan_step : {collectives[0], collectives[1]})
      runner.run_step(plan_step);
    const std::vector<float> want(session.rank() == Rank{0} ? 2 : 0, 1.0F);
    num_right += engine.output() == want && session.slot().read().sequence == 1;
  });
  CHECK(num_right == 3);
  for (const std::int64_t rank : {0, 1, 2}) {
    REQUIRE(result.rank_record(Rank{rank}).num_collectives == 2);
    const auto* const executed = result.executed(Rank{rank});
    CHECK(executed[1].elems_in == (rank == 1 ? 2 : 0));
    CHECK(executed[1].elems_out == (rank == 0 ? 2 : 0));
    CHECK(executed[1].tag == result.executed(Rank{0})[1].tag);
  }
}

TEST_CASE("steps of a plan are named by what they do, to what, and when") {
  const VerifiedPlan plan =
      verified(fsdp_scenario(modules_model({linear("l0", 4, 5), linear("l1", 5, 2)}), 2));
  std::vector<std::string> names;
  for (std::size_t i = 0; i < plan->steps.size(); ++i) {
    names.push_back(describe_step(*plan, static_cast<std::int64_t>(i)));
  }
  const auto count = [&](const std::string& name) {
    return std::count(names.begin(), names.end(), name);
  };
  CHECK(count("all_gather of unit l0 (forward, step 0)") == 1);
  CHECK(count("forward of l1 (step 0)") == 1);
  CHECK(count("reduce_scatter of unit l1 (backward, step 0)") == 1);
  CHECK(count("optimizer (step 0)") == 1);
  CHECK(describe_step(*plan, -1) == "no step of the plan");
}

}  // namespace
}  // namespace hpsim
