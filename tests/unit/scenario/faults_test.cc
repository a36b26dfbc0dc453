#include "scenario_text.h"
#include "support/catch.h"

namespace hpsim {
namespace {

TEST_CASE("faults have ranks in order, and no step or seq unless given") {
  const Scenario scenario = parsed(minimal_with(
      R"("training": {"steps": 3}, "faults": [{"fault": "kill", "ranks": [3, 1]},)"
      R"({"fault": "throw", "ranks": [0], "step": 2}, {"fault": "stall", "ranks": [2], "seq": 7}])"));
  REQUIRE(scenario.faults.size() == 3);
  const FaultSpec& kill = scenario.faults[0];
  CHECK(kill.name == "kill");
  CHECK(kill.ranks == std::vector<Rank>{{1}, {3}});
  CHECK_FALSE(kill.step);
  CHECK_FALSE(kill.seq);
  CHECK(kill.pointer == "/faults/0");
  CHECK(scenario.faults[1].name == "throw");
  CHECK(scenario.faults[1].step == 2);
  CHECK(scenario.faults[2].name == "stall");
  CHECK(scenario.faults[2].seq == 7);
  CHECK(scenario.faults[2].pointer == "/faults/2");
  CHECK(parsed(minimal_with(R"("faults": [])")).faults.empty());
  CHECK(parsed(minimal_with("")).faults.empty());
}

TEST_CASE("all mistakes of all faults are told at once") {
  CHECK(messages_of(
            minimal_with(R"("training": {"steps": 2}, "faults": [)"
                         R"({"fault": "kill", "ranks": [4, 2, 2], "step": 2, "params": "*"}, 3,)"
                         R"({"fault": "stall", "ranks": [0, 1, 2, 3]}, {"ranks": []}])")) ==
        "rank 4 at position 0 is outside 0..3\n"
        "rank 2 is listed twice\n"
        "optimizer step 2 is outside 0..1\n"
        "fault \"kill\" takes no \"params\"\n"
        "expected an object, found 3\n"
        "4 of 4 ranks stall: none is left that would wait for them until the timeout\n"
        "key \"fault\" is missing\n"
        "no rank is listed\n");
}

TEST_CASE("what a fault refers to is not judged where that is wrong itself") {
  CHECK(messages_of(minimal_with(R"("training": {"steps": 0},)"
                                 R"("faults": [{"fault": "kill", "ranks": [3], "step": 9}])")) ==
        "expected an integer of at least 1, found 0\n");
  CHECK(messages_of(
            on_mesh("[0]", R"(["fsdp"])", R"("faults": [{"fault": "kill", "ranks": [9]}])")) ==
        "expected an integer of at least 1, found 0\n");
}

TEST_CASE("one rank that does not stall is enough, whatever else befalls it") {
  CHECK_NOTHROW(parsed(minimal_with(
      R"("faults": [{"fault": "stall", "ranks": [0, 1]}, {"fault": "stall", "ranks": [2]},)"
      R"({"fault": "kill", "ranks": [3]}])")));
}

}  // namespace
}  // namespace hpsim
