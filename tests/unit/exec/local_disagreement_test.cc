// Ranks of one process that do not do the same end the run, and it says which one, and why.

#include <string>

#include "base/error.h"
#include "exec/local.h"
#include "support/catch.h"
#include "unit/exec/disagreements.h"

namespace hpsim {
namespace {

using Catch::Matchers::Contains;
using test::Disagreement;

Diagnostic failure_of(const VerifiedPlan& plan) {
  try {
    static_cast<void>(LocalExecutor().run(plan, {}));
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::RankFailure);
    return error.diagnostics().at(0);
  }
  return {};
}

TEST_CASE("ranks that disagree are told, with the one that left the plan") {
  for (const Disagreement& each : test::disagreements()) {
    CAPTURE(each.fault);
    const Diagnostic failure = failure_of(test::disagreeing_plan(each));
    CHECK(failure.code == each.code);
    CHECK_THAT(failure.message, Catch::StartsWith(each.begins));
  }
}

TEST_CASE("a rank that leaves out its last collective is waited for in vain") {
  // The last collective of the run is the all-reduce of l0 in step 1: rank 2 is the other one.
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
  CHECK_THAT(failure.message,
             Catch::StartsWith("rank 2 never entered all_reduce of unit l0 (backward, step 1): it "
                               "was done with all steps; it left out all_reduce of unit l0"));
  CHECK_THAT(failure.message, Contains("rank 0 waited for it"));
  CHECK_THAT(failure.help, Contains("rank 0 was in all_reduce of unit l0 (backward, step 1)"));
}

TEST_CASE("ranks that leave the plan together run to the end") {
  // What they left is told by the checks of the run.
  for (const char* name : {"skip_all_gather", "skip_all_reduce", "double_all_reduce",
                           "reorder_collectives", "wrong_unit_gathered", "extra_row_on_rank",
                           "wrong_group_dim", "wrong_group_stride", "wrong_wire_dtype"}) {
    CAPTURE(name);
    const Diagnostic failure = failure_of(test::disagreeing_plan({name, {}, std::nullopt, "", ""}));
    CHECK(failure.message.empty());
  }
}

TEST_CASE("a group that leaves a collective out together is no disagreement") {
  const VerifiedPlan plan =
      test::disagreeing_plan({"skip_all_reduce", {Rank{1}, Rank{3}}, 2, "", ""});
  const RunResult run = LocalExecutor().run(plan, {});
  // Per step 6 gathers, 3 reduce-scatters and 3 all-reduces; ranks 1 and 3 leave out one of them.
  CHECK(run.rank_record(Rank{0}).num_collectives == 24);
  CHECK(run.rank_record(Rank{1}).num_collectives == 22);
}

}  // namespace
}  // namespace hpsim
