#include "plan/faults/process_faults.h"

#include <string>
#include <vector>

#include "base/error.h"
#include "plan/build_plan.h"
#include "support/catch.h"
#include "support/scenarios.h"

namespace hpsim {
namespace {

using Places = std::vector<std::int64_t>;
using Texts = std::vector<std::string>;

/// FSDP of one parameter over `num_ranks`, two optimizer steps: all_gather, all_gather and
/// reduce_scatter in each, so that collectives 0, 1, 2 are of step 0 and 3, 4, 5 of step 1.
Plan plan_with(std::vector<FaultSpec> faults, std::int64_t num_ranks = 4) {
  Scenario scenario = test::fsdp_scenario(test::elementwise_model({{"weight", {7, 8}}}), num_ranks);
  scenario.training.steps = 2;
  for (std::size_t i = 0; i < faults.size(); ++i) {
    faults[i].ranks = {Rank{0}};
    faults[i].pointer = "/faults/" + std::to_string(i);
  }
  scenario.faults = std::move(faults);
  return build_plan(std::move(scenario));
}

FaultSpec fault(std::optional<std::int64_t> step, std::optional<std::int64_t> seq) {
  FaultSpec spec;
  spec.name = "kill";
  spec.step = step;
  spec.seq = seq;
  return spec;
}

/// Plan steps with a collective, counted by hand: seq -> plan step.
Places collectives_of(const Plan& plan) {
  Places places;
  for (std::size_t i = 0; i < plan.steps.size(); ++i) {
    if (plan.steps[i].collective) places.push_back(static_cast<std::int64_t>(i));
  }
  return places;
}

Places places_of(const Plan& plan) {
  Places places;
  for (const PlacedFault& placed : place_faults(plan))
    places.push_back(placed.plan_step);
  return places;
}

TEST_CASE("faults strike before the collective that step and seq name") {
  const Plan plan = plan_with(
      {fault({}, {}), fault(1, {}), fault({}, 5), fault(1, 5), fault(0, 2), fault({}, 0)});
  const Places at = collectives_of(plan);
  REQUIRE(at.size() == 6);
  CHECK(places_of(plan) == Places{at[0], at[3], at[5], at[5], at[2], at[0]});
  CHECK(plan.steps[static_cast<std::size_t>(at[3])].step == 1);
  CHECK(plan.steps[static_cast<std::size_t>(at[2])].kind == StepKind::ReduceScatter);
}

TEST_CASE("ranks and kinds are those of the scenario") {
  FaultSpec spec = fault({}, {});
  spec.name = "stall";
  const std::vector<PlacedFault> placed = place_faults(plan_with({spec}));
  REQUIRE(placed.size() == 1);
  CHECK(placed[0].name == "stall");
  CHECK(placed[0].ranks == std::vector<Rank>{Rank{0}});
  CHECK(place_faults(plan_with({})).empty());
}

TEST_CASE("a step without collectives is struck at its begin") {
  const Plan plan = plan_with({fault({}, {}), fault(1, {})}, 1);
  REQUIRE(collectives_of(plan).empty());
  const Places places = places_of(plan);
  REQUIRE(places.size() == 2);
  CHECK(places[0] == 0);
  CHECK(plan.steps.at(static_cast<std::size_t>(places[1])).step == 1);
  CHECK(plan.steps.at(static_cast<std::size_t>(places[1] - 1)).step == 0);
}

Texts refusals_of(const Plan& plan) {
  try {
    (void)place_faults(plan);
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::InvalidScenario);
    Texts texts;
    for (const Diagnostic& diagnostic : error.diagnostics())
      texts.push_back(to_string(diagnostic));
    return texts;
  }
  return {};
}

TEST_CASE("a seq outside the run, or of another step, is refused with its place") {
  CHECK(refusals_of(plan_with({fault({}, 6), fault(1, {}), fault(0, 3)})) ==
        Texts{"built.json: /faults/0/seq: error: collective 6 is outside 0..5\n"
              "  help: the run has 6 collectives; the report lists them, without the faults, under "
              "\"collectives\"",
              "built.json: /faults/2/seq: error: collective 3 is of optimizer step 1, but step is "
              "0\n  help: write \"step\": 1, or leave one of the two out"});
  CHECK(refusals_of(plan_with({fault({}, 0)}, 1)) ==
        Texts{"built.json: /faults/0/seq: error: no collective has the number 0: the run has 0 of "
              "them\n  help: leave \"seq\" out: the fault then strikes at the begin of the step"});
}

}  // namespace
}  // namespace hpsim
