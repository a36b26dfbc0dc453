// Mistakes of passes, planted in plans: where they have a place, what finds them, and how they are
// aimed.

#include <fmt/format.h>

#include <map>
#include <set>
#include <string>

#include "fault_cases.h"
#include "plan/build_plan.h"
#include "plan/faults/plan_faults.h"
#include "plan/verify_plan.h"
#include "support/catch.h"
#include "support/planted_plans.h"

namespace hpsim::test {
namespace {

/// Cases (fault_cases) in which a fault has a place, by hand:
///
///   fully_shard cuts in all but G, unevenly in A, B, D, E, F, H, and ceil and balanced chunks
///   differ for 5 rows over 4 only: 2, 2, 1, 0 and 2, 1, 1, 1. TP or EP cut the same dim in D, E
///   and F. One mesh dim has A alone. Several buckets have B, E, F, H. Along rep lie replicas in B,
///   C, E, H, whose members are no neighbours, as along fsdp in D, E, F. G sends the average of
///   weights alone.
const std::map<std::string, std::string> kPlaces = {
    {"plan_offset_shifted", "ABCDEFGH"},
    {"plan_empty_offset_zero", "A"},
    {"plan_floor_chunk", "ABDEFH"},
    {"plan_units_do_not_fit", "ABCDEFH"},
    {"plan_chunk_rule", "A"},
    {"plan_split_factor", "DEF"},
    {"plan_cut_order", "DEF"},
    {"plan_replicate_for_shard", "ABCDEFH"},
    {"plan_placement_dropped", "BCDEFGH"},
    {"plan_padding_exposed", "ABDEFH"},
    {"plan_group_wrong_dim", "BCDEFGH"},
    {"plan_group_extra_dim", "BCDEFGH"},
    {"plan_group_consecutive", "BCDEFH"},
    {"plan_group_dropped_dim", "BCEGH"},
    {"plan_skip_all_gather", "ABCDEFH"},
    {"plan_skip_reduce_scatter", "ABCDEFH"},
    {"plan_skip_all_reduce", "BCEFH"},
    {"plan_skip_average", "G"},
    {"plan_all_gather_twice", "ABCDEFH"},
    {"plan_wrong_op", "ABCDEFGH"},
    {"plan_max_for_sum", "ABCDEFGH"},
    {"plan_wrong_dtype", "ABCDEFGH"},
    {"plan_wrong_elems", "ABCDEFGH"},
    {"plan_wrong_bucket", "BEFH"},
    {"plan_scale_twice", "ABCDEFH"},
    {"plan_scale_missing", "ABCDEFH"},
    {"plan_expert_divisor", "F"},
    {"plan_scale_all_reduce_again", "BCEFH"},
    {"plan_missing_tp_sync", "EF"},
    {"plan_missing_ep_sync", "F"},
    {"plan_missing_replica_sync", "BCEH"},
    {"plan_extra_sync", "BCEFGH"},
    {"plan_activation_not_reduced", "EF"},
    {"plan_gradient_of_input_not_reduced", "EF"},
    {"plan_replicate_on_partial", "EF"},
    {"plan_ignore_sync_flag", "B"},
    {"plan_sync_last_only", "C"},
    {"plan_sync_first", "B"},
    {"plan_all_reduce_each_micro_batch", "C"},
    {"plan_store_before_reduce", "ABCDEFH"},
    {"plan_reshard_before_use", "ABCDEFH"},
    {"plan_update_before_reduce", "ABCDEFH"},
    {"plan_wait_missing", "E"},
    {"plan_second_reduce_of_recomputed", "E"},
    {"plan_second_gather_of_recomputed", "E"},
};

/// Plants every fault in every case; the cases in which it had a place.
void check_places(bool with_many) {
  std::map<std::string, std::string> places;
  for (const FaultCase& each : fault_cases()) {
    const Plan plan = plan_of(with_many ? each.many : each.few);
    CAPTURE(each.about);
    CHECK_NOTHROW(verify_plan(plan));
    if (with_many) CHECK(plan.mesh().num_ranks() == 131072);
    for (const std::string& name : plan_faults()) {
      CAPTURE(name);
      const Planted planted = plant(plan, {unaimed(name)});
      if (!planted.has_place) continue;
      places[name] += each.letter;
      INFO(planted.told());
      CHECK_FALSE(planted.of(name).empty());
    }
  }
  for (const std::string& name : plan_faults()) {
    CAPTURE(name);
    REQUIRE(kPlaces.count(name) == 1);
    CHECK(places[name] == kPlaces.at(name));
  }
}

TEST_CASE("every fault of a plan is found by a check of its own wherever it has a place") {
  check_places(false);
}

TEST_CASE("on 131072 ranks faults of a plan have the same places, and are found there") {
  check_places(true);
}

TEST_CASE("a fault without a place leaves the plan as it was") {
  for (const FaultCase& each : fault_cases()) {
    for (const std::string& name : plan_faults()) {
      CAPTURE(each.about, name);
      Plan plan = plan_of(each.few);
      if (find_plan_fault(name)(plan, unaimed(name))) continue;
      CHECK_NOTHROW(verify_plan(plan));
      CHECK(plan.steps.size() == build_plan(plan.scenario).steps.size());
    }
  }
}

TEST_CASE("a fault aimed at one parameter is found, of that parameter where it is about one") {
  for (const FaultCase& each : fault_cases()) {
    const Plan plan = plan_of(each.few);
    for (const std::string& name : plan_faults()) {
      if (!takes_params(name) || !plant(plan, {unaimed(name)}).has_place) continue;
      CAPTURE(each.about, name);
      int num_places = 0;
      for (int p = 0; p < static_cast<int>(plan.parameters.size()); ++p) {
        FaultSpec fault = unaimed(name);
        fault.params = {p};
        const Planted planted = plant(plan, {fault});
        if (!planted.has_place) continue;
        ++num_places;
        CAPTURE(plan.parameter(p).name);
        INFO(planted.told());
        const std::vector<Finding> own = planted.of(name);
        REQUIRE_FALSE(own.empty());
        // A step is about all parameters of its bucket; a slot that is shifted shifts those behind.
        if (is_about_placement(name)) CHECK(own.front().param == plan.parameter(p).name);
      }
      CHECK(num_places > 0);
    }
  }
}

TEST_CASE("a fault aimed at a unit is found there and nowhere else") {
  const Plan plan = plan_of(case_json('E'));
  for (const std::string& name : plan_faults()) {
    if (!takes_unit(name) || !plant(plan, {unaimed(name)}).has_place) continue;
    // What is taken for the first unit's is said of that one; shifted slots shift those behind.
    if (name == "plan_wrong_bucket") continue;
    std::set<int> found_in;
    int num_places = 0;
    for (int unit = 0; unit < static_cast<int>(plan.scenario.units.size()); ++unit) {
      FaultSpec fault = unaimed(name);
      fault.unit = unit;
      const Planted planted = plant(plan, {fault});
      if (!planted.has_place) continue;
      ++num_places;
      CAPTURE(name, plan.scenario.units[static_cast<std::size_t>(unit)].name);
      INFO(planted.told());
      CHECK_FALSE(planted.of(name).empty());
      for (const Finding& finding : planted.of(name)) {
        for (const PlannedParameter& parameter : plan.parameters) {
          if (parameter.name == finding.param) found_in.insert(plan.bucket(parameter.bucket).unit);
        }
        CHECK((finding.param.empty() || found_in.count(unit) == 1));
      }
    }
    CAPTURE(name);
    CHECK(num_places > 0);
    CHECK(static_cast<int>(found_in.size()) <= num_places);
  }
}

TEST_CASE("a fault aimed at an optimizer step is found in that one first") {
  for (const FaultCase& each : fault_cases()) {
    Scenario scenario = plan_of(each.few).scenario;
    scenario.training.steps = 3;
    const Plan plan = build_plan(scenario);
    for (const std::string& name : plan_faults()) {
      if (!takes_step(name) || !plant(plan, {unaimed(name)}).has_place) continue;
      CAPTURE(each.about, name);
      FaultSpec fault = unaimed(name);
      fault.step = 1;
      const Planted planted = plant(plan, {fault});
      INFO(planted.told());
      CHECK(planted.has_place);
      const std::vector<Finding> own = planted.of(name);
      REQUIRE_FALSE(own.empty());
      // What nothing waits for in that step stays pending in the next one.
      CHECK(own.front().step == 1);
      for (const Finding& finding : own)
        CHECK(finding.step.value_or(0) >= 1);
    }
  }
}

}  // namespace
}  // namespace hpsim::test
