#include <gloo/common/error.h>
#include <sys/resource.h>

#include <atomic>
#include <csignal>
#include <functional>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "exec/gloo/gloo_executor.h"
#include "exec/gloo/supervisor.h"
#include "exec/local.h"
#include "exec/shared_memory.h"
#include "exec/stopwatch.h"
#include "exec/symbolic.h"
#include "plan/build_plan.h"
#include "plan/verify_plan.h"
#include "support/catch.h"
#include "support/scenarios.h"
#include "unit/exec/leftovers.h"

namespace hpsim {
namespace {

using Catch::Matchers::Contains;

// FSDP of one parameter over 4 ranks in two steps: collectives 0 to 5, all_gather twice and
// reduce_scatter in each step.
constexpr const char* kCollectives[] = {"all_gather of unit (root) (forward, step 0)",
                                        "all_gather of unit (root) (backward, step 0)",
                                        "reduce_scatter of unit (root) (backward, step 0)",
                                        "all_gather of unit (root) (forward, step 1)",
                                        "all_gather of unit (root) (backward, step 1)",
                                        "reduce_scatter of unit (root) (backward, step 1)"};

VerifiedPlan plan_with(const std::string& name, const std::vector<Rank>& ranks, std::int64_t seq) {
  Scenario scenario = test::fsdp_scenario(test::elementwise_model({{"weight", {7, 8}}}), 4);
  scenario.training.steps = 2;
  scenario.units = assign_units(scenario.model, scenario.parameters, {}, true);
  FaultSpec spec;
  spec.name = name;
  spec.ranks = ranks;
  spec.seq = seq;
  spec.pointer = "/faults/0";
  scenario.faults = {spec};
  return verify_plan(build_plan(std::move(scenario)));
}

struct Outcome {
  std::string message;
  std::string help;
  double time_s = 0;
};

/// A run that must fail and leave nothing behind.
Outcome fail(const std::function<void()>& run) {
  const PrivateDirectory directory;
  const std::string before = leftovers();
  const Stopwatch watch;
  Outcome outcome;
  try {
    run();
    FAIL("the run did not fail");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::RankFailure);
    REQUIRE(error.diagnostics().size() == 1);
    outcome = {error.diagnostics()[0].message, error.diagnostics()[0].help, watch.elapsed_s()};
  }
  CHECK(leftovers() == before);
  return outcome;
}

Outcome fail(const VerifiedPlan& plan, double timeout_s) {
  RunOptions options;
  options.timeout_s = timeout_s;
  return fail([&] { (void)make_gloo_executor()->run(plan, options); });
}

TEST_CASE("a rank that fails at an activation's collective is told of by the activation's name") {
  Scenario scenario = test::fsdp_scenario(
      test::modules_model({test::linear("up", 4, 6), test::linear("down", 6, 2)}), 2);
  scenario.mesh = Mesh({2, 2}, {"fsdp", "tp"});
  scenario.roles.tp_dim = 1;
  scenario.styles = {ParallelStyle::Colwise, ParallelStyle::Rowwise};
  const Placement copy = Replicate{};
  scenario.placements = {{copy, Shard{0}}, {copy, Shard{0}}, {copy, Shard{1}}, {copy, copy}};
  FaultSpec spec;
  spec.name = "kill";
  spec.ranks = {Rank{1}};
  spec.seq = 2;  // behind the gathers of "up" and "down"
  spec.pointer = "/faults/0";
  scenario.faults = {spec};
  const std::string place = "all_reduce of the output of \"down\" (forward, step 0)";
  const Outcome killed = fail(verify_plan(build_plan(scenario)), 60);
  CHECK_THAT(killed.message,
             Catch::StartsWith("rank 1 was killed by SIGKILL while about to enter " + place));
  CHECK_THAT(killed.help, Contains("the scenario plants \"kill\" of rank 1 before " + place));
  scenario.faults[0].name = "stall";
  const Outcome stalled = fail(verify_plan(build_plan(scenario)), 1);
  CHECK_THAT(stalled.message, Catch::StartsWith("rank 1 has been about to enter " + place));
  // Its neighbour along tp waits for it there, the one along fsdp where both gather next.
  CHECK_THAT(stalled.message, Contains("ranks 0, 3 waited for it"));
  CHECK_THAT(stalled.help, Contains("rank 0 was in " + place));
}

TEST_CASE("a planted fault names its rank, the collective before it, and who waited where") {
  for (const std::int64_t seq : {0, 3, 5}) {
    const std::string place = std::string("about to enter ") + kCollectives[seq];
    const std::string others = std::string("in ") + kCollectives[seq];
    CAPTURE(place);

    const Outcome killed = fail(plan_with("kill", {Rank{2}}, seq), 60);
    CHECK_THAT(killed.message, Catch::StartsWith("rank 2 was killed by SIGKILL while " + place));
    CHECK_THAT(killed.help, Contains("the scenario plants \"kill\" of rank 2 before " +
                                     std::string(kCollectives[seq])));

    const Outcome threw = fail(plan_with("throw", {Rank{0}}, seq), 60);
    CHECK_THAT(threw.message, Catch::StartsWith("rank 0 failed while " + place +
                                                ": this is the planted fault \"throw\""));

    const Outcome stalled = fail(plan_with("stall", {Rank{3}}, seq), 1);
    CHECK_THAT(stalled.message, Catch::StartsWith("rank 3 has been " + place + " for "));
    CHECK_THAT(stalled.message, Contains("ranks 0, 1, 2 waited for it"));
    CHECK_THAT(stalled.help, Contains("ranks 0, 1, 2 were " + others));
    CHECK(stalled.time_s >= 1);
    // Far less than anything else that could end it.
    CHECK(stalled.time_s < 20);
    CHECK(killed.time_s < 20);
    CHECK(threw.time_s < 20);
  }
}

TEST_CASE("a fault before a gather that is only begun strikes there; others wait where it ends") {
  Scenario scenario = test::fsdp_scenario(
      test::modules_model({test::linear("l0", 4, 6), test::linear("l1", 6, 6)}), 4);
  scenario.fully_shard.forward_prefetch = 1;
  FaultSpec spec;
  spec.name = "kill";
  spec.ranks = {Rank{2}};
  spec.seq = 1;  // l0 is gathered at once, l1 is begun before l0 computes
  spec.pointer = "/faults/0";
  scenario.faults = {spec};
  const std::string place = "all_gather of unit l1 (forward, step 0)";
  const Outcome killed = fail(verify_plan(build_plan(scenario)), 60);
  CHECK_THAT(killed.message,
             Catch::StartsWith("rank 2 was killed by SIGKILL while about to enter " + place));
  CHECK_THAT(killed.help, Contains("the scenario plants \"kill\" of rank 2 before " + place));
  scenario.faults[0].name = "stall";
  const Outcome stalled = fail(verify_plan(build_plan(scenario)), 1);
  CHECK_THAT(stalled.message, Catch::StartsWith("rank 2 has been about to enter " + place));
  CHECK_THAT(stalled.message, Contains("ranks 0, 1, 3 waited for it"));
  CHECK_THAT(stalled.help, Contains("ranks 0, 1, 3 were in " + place));
}

TEST_CASE("of several ranks with a fault one is named, and the others are told of") {
  const std::vector<Rank> ranks = {Rank{1}, Rank{2}};
  const std::string place = std::string("about to enter ") + kCollectives[1];
  const Outcome stalled = fail(plan_with("stall", ranks, 1), 1);
  CHECK_THAT(stalled.message, Contains("has been " + place + " for "));
  CHECK_THAT(stalled.message + stalled.help,
             (Contains("rank 1 has been") && Contains("rank 2 was " + place)) ||
                 (Contains("rank 2 has been") && Contains("rank 1 was " + place)));
  const Outcome killed = fail(plan_with("kill", ranks, 1), 60);
  CHECK_THAT(killed.message, Contains("killed by SIGKILL while " + place));
  CHECK_THAT(killed.help, Contains("\"kill\" of ranks 1, 2 before"));
}

TEST_CASE("a rank alone can be killed before its first step") {
  Scenario scenario = test::fsdp_scenario(test::elementwise_model({{"weight", {7, 8}}}), 1);
  FaultSpec spec;
  spec.name = "kill";
  spec.ranks = {Rank{0}};
  scenario.faults = {spec};
  const Outcome outcome = fail(verify_plan(build_plan(std::move(scenario))), 60);
  CHECK_THAT(outcome.message, Contains("rank 0 was killed by SIGKILL while at work on"));
}

TEST_CASE("a rank killed while others still connect is the cause, not whom it leaves") {
  for (int i = 0; i < 3; ++i) {
    Scenario scenario = test::fsdp_scenario(test::elementwise_model({{"weight", {7, 8}}}), 16);
    FaultSpec spec;
    spec.name = "kill";
    spec.ranks = {Rank{5}};
    scenario.faults = {spec};
    const Outcome outcome = fail(verify_plan(build_plan(std::move(scenario))), 60);
    CHECK_THAT(outcome.message, Catch::StartsWith("rank 5 was killed by SIGKILL"));
  }
}

TEST_CASE("a seq outside the plan is refused before any rank starts") {
  try {
    (void)make_gloo_executor()->run(plan_with("kill", {Rank{0}}, 6), {});
    FAIL("no error");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::InvalidScenario);
    CHECK_THAT(error.what(), Contains("/faults/0/seq") && Contains("outside 0..5"));
  }
}

TEST_CASE("backends without processes refuse faults and name the one that has them") {
  const VerifiedPlan plan = plan_with("throw", {Rank{0}}, 0);
  const auto refusal = [&](Executor&& executor) {
    try {
      (void)executor.run(plan, {});
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::Usage);
      return std::string(error.what());
    }
    return std::string("no error");
  };
  for (const std::string& text : {refusal(LocalExecutor()), refusal(SymbolicExecutor())}) {
    CHECK_THAT(text, Contains("/faults/0") && Contains("fault \"throw\"") &&
                         Contains("use --backend gloo"));
  }
}

const DescribeStep kDescribe = [](std::int64_t step) { return "step " + std::to_string(step); };

/// Four ranks, of which rank 1 does `fault` in step 3 while the others wait.
Outcome fail_with(const std::function<void()>& fault) {
  return fail([&] {
    RunOptions options;
    options.timeout_s = 60;
    (void)run_ranks(4, options, kDescribe, [&](RankSession& session) {
      session.enter_step(3);
      if (session.rank() == Rank{1}) fault();
    });
  });
}

TEST_CASE("a connection that Gloo's own thread finds lost is no fault of its rank") {
  const auto block = map_shared(sizeof(std::atomic<int>));
  auto& num_connected = *new (block.get()) std::atomic<int>(0);
  const Outcome outcome = fail([&] {
    RunOptions options;
    options.timeout_s = 60;
    (void)run_ranks(2, options, kDescribe, [&](RankSession& session) {
      session.enter_step(3);
      ++num_connected;
      while (num_connected < 2)
        usleep(1000);
      if (session.rank() == Rank{0}) {
        std::thread([] { throw gloo::IoException("reset by peer"); }).join();
      }
      usleep(100'000);
      raise(SIGKILL);
    });
  });
  CHECK_THAT(outcome.message,
             Catch::StartsWith("rank 1 was killed by SIGKILL while at work on step 3"));
}

TEST_CASE("anything else that ends a thread of a rank ends the rank, with its words") {
  const Outcome outcome =
      fail_with([] { std::thread([] { throw std::runtime_error("no such shard"); }).join(); });
  CHECK_THAT(outcome.message, Contains("rank 1 was killed by SIGABRT while at work on step 3"));
  CHECK_THAT(outcome.help, Contains("the ranks wrote: ") && Contains("no such shard"));
}

TEST_CASE("a rank that runs out of memory is named, with the way out") {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  const auto run_out = [] { throw std::bad_alloc(); };  // their allocators would end the process
#else
  const auto run_out = [] {
    constexpr rlim_t kBytes = rlim_t{1} << 30;
    const rlimit limit{kBytes, kBytes};
    setrlimit(RLIMIT_AS, &limit);
    std::vector<char> memory(std::size_t{2} << 30);
    static_cast<volatile char*>(memory.data())[0] = 1;  // or the compiler leaves it out
  };
#endif
  const Outcome outcome = fail_with(run_out);
  CHECK_THAT(outcome.message, Contains("rank 1 failed while at work on step 3: out of memory; ") &&
                                  Contains("--backend symbolic"));
}

TEST_CASE("when the parent runs out of memory, no rank outlives it") {
  const PrivateDirectory directory;
  const std::string before = leftovers();
  RunOptions options;
  options.timeout_s = 60;
  options.on_progress = [](std::int64_t) { throw std::bad_alloc(); };
  const Stopwatch watch;
  CHECK_THROWS_AS(run_ranks(4, options, kDescribe, [](RankSession&) { sleep(60); }),
                  std::bad_alloc);
  CHECK(watch.elapsed_s() < 20);
  CHECK(leftovers() == before);
}

}  // namespace
}  // namespace hpsim
