// Ranks of their own processes that do not do the same end the run soon, as ranks of one process
// do, and leave nothing behind.

#include <string>

#include "base/error.h"
#include "exec/gloo/gloo_executor.h"
#include "exec/stopwatch.h"
#include "support/catch.h"
#include "unit/exec/disagreements.h"
#include "unit/exec/leftovers.h"

namespace hpsim {
namespace {

using Catch::Matchers::Contains;
using test::Disagreement;

/// Of a run that must fail long before its timeout.
Diagnostic failure_of(const VerifiedPlan& plan) {
  const PrivateDirectory directory;
  const std::string before = leftovers();
  const Stopwatch watch;
  RunOptions options;
  options.timeout_s = 60;
  Diagnostic failure;
  try {
    static_cast<void>(make_gloo_executor()->run(plan, options));
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::RankFailure);
    failure = error.diagnostics().at(0);
  }
  CHECK(watch.elapsed_s() < 20);
  CHECK(leftovers() == before);
  return failure;
}

TEST_CASE("ranks that disagree over Gloo are told as in one process") {
  for (const Disagreement& each : test::disagreements()) {
    CAPTURE(each.fault);
    const Diagnostic failure = failure_of(test::disagreeing_plan(each));
    CAPTURE(failure.message, failure.help);
    CHECK(failure.code == each.code);
    CHECK_THAT(failure.message, Catch::StartsWith(each.begins));
  }
}

TEST_CASE("a rank that leaves out its last collective does not hold up the others to the timeout") {
  Scenario scenario = test::disagreeing_scenario();
  FaultSpec fault;
  fault.name = "skip_all_reduce";
  fault.ranks = {Rank{2}};
  fault.unit = 0;
  fault.step = 1;
  fault.pointer = "/faults/0";
  scenario.faults = {fault};
  const Diagnostic failure = failure_of(verify_plan(build_plan(std::move(scenario))));
  CHECK(failure.code == "COMM_COUNT");
  CHECK_THAT(failure.message, Catch::StartsWith("rank 2 never entered") &&
                                  Contains("it left out all_reduce of unit l0"));
}

TEST_CASE("ranks that leave the plan together run to the end over Gloo") {
  for (const char* name : {"skip_all_gather", "double_all_reduce", "reorder_collectives",
                           "extra_row_on_rank", "wrong_group_dim"}) {
    CAPTURE(name);
    const VerifiedPlan plan = test::disagreeing_plan({name, {}, std::nullopt, "", ""});
    CHECK_NOTHROW(static_cast<void>(make_gloo_executor()->run(plan, {})));
  }
}

}  // namespace
}  // namespace hpsim
