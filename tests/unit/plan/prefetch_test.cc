// The order in which unshards are begun and awaited, against fsdp2.md section 11 (PyTorch's
// test_fully_shard_comm.py), and plans in which it is broken.

#include <fstream>
#include <sstream>

#include "plan/overlap.h"
#include "plan/passes/unshard_order.h"
#include "plan/plan_checks.h"
#include "planted_plan.h"
#include "scenario/parse.h"

namespace hpsim::test {
namespace {

using Units = std::vector<int>;

TEST_CASE("of the units of a pass the next ones are begun, each once") {
  // The rows of the table in the header; -1 separates what follows one unit from the next.
  const auto begun = [](const Units& units, std::int64_t ahead) {
    UnshardOrder order(units, ahead);
    Units all;
    for (const int unit : units) {
      for (const int next : order.ask_for(unit))
        all.push_back(next);
      all.push_back(-1);
    }
    return all;
  };
  CHECK(begun({9, 2, 1, 0}, 1) == Units{2, -1, 1, -1, 0, -1, -1});
  CHECK(begun({3, 2, 1, 0}, 2) == Units{2, 1, -1, 0, -1, -1, -1});
  CHECK(begun({0, 1}, 0) == Units{-1, -1});
  CHECK(begun({0, 1, 2}, std::int64_t{1} << 62) == Units{1, 2, -1, -1, -1});
  CHECK(begun({}, 1).empty());
  UnshardOrder order({0, 1}, 1);
  CHECK_THROWS(order.ask_for(1));
}

Scenario shipped(const std::string& name) {
  const std::string file = std::string(HPSIM_SOURCE_DIR) + "/scenarios/" + name + ".json";
  std::ifstream stream(file);
  REQUIRE(stream.good());
  std::stringstream text;
  text << stream.rdbuf();
  return parse_scenario(text.str(), file);
}

/// "unshard l0" where it is begun or done at once, "wait l0", "forward l0", "post l0" where its
/// gradients are scattered, of one phase of optimizer step 0.
Texts events(const Plan& plan, Phase phase, std::int64_t micro_batch = 0) {
  Texts events;
  for (const Step& step : plan.steps) {
    if (step.step != 0 || step.phase != phase || step.micro_batch != micro_batch) continue;
    const std::string module =
        step.module < 0 ? std::string() : module_name(plan.scenario.model, step.module);
    const std::string unit =
        step.bucket < 0 ? std::string() : plan.unit_name(plan.bucket(step.bucket));
    if (step.kind == StepKind::Unshard)
      events.push_back((step.is_async ? "begin " : "unshard ") + unit);
    if (step.kind == StepKind::WaitUnshard) events.push_back("wait " + unit);
    if (step.kind == StepKind::ReduceScatter) events.push_back("post " + unit);
    if (step.kind == StepKind::Forward) events.push_back("forward " + module);
    if (step.kind == StepKind::Backward) events.push_back("backward " + module);
  }
  return events;
}

/// As PyTorch records them: a unit is unshard where that is begun, and nothing but unshards and
/// post-backwards counts.
Texts torch_events(const Plan& plan, Phase phase, std::int64_t micro_batch = 0) {
  Texts kept;
  for (std::string event : events(plan, phase, micro_batch)) {
    if (event.starts_with("begin ")) event.replace(0, 5, "unshard");
    if (event.starts_with("unshard ") || event.starts_with("post ")) kept.push_back(event);
  }
  return kept;
}

TEST_CASE("backward_prefetch 1 is FSDP2's own order: three layers, a root that is resharded") {
  const Plan plan = build_plan(shipped("training/prefetch_backward_1"));
  CHECK_NOTHROW(verify_plan(plan));
  CHECK(torch_events(plan, Phase::Forward) ==
        Texts{"unshard (root)", "unshard l0", "unshard l1", "unshard l2"});
  CHECK(torch_events(plan, Phase::Backward) == Texts{"unshard (root)", "unshard l2", "unshard l1",
                                                     "post l2", "unshard l0", "post l1", "post l0",
                                                     "post (root)"});
  // The root's "out" comes first in backward, beside the unshard of l2.
  CHECK(events(plan, Phase::Backward) ==
        Texts{"unshard (root)", "begin l2", "backward out", "wait l2", "begin l1", "backward l2",
              "post l2", "wait l1", "begin l0", "backward l1", "post l1", "wait l0", "backward l0",
              "post l0", "backward in", "post (root)"});
}

TEST_CASE("backward_prefetch 2 of four layers: two are begun, then one for each that is done") {
  // reshard_after_forward null: no unshard of the root.
  const Plan plan = build_plan(shipped("training/prefetch_backward_2"));
  CHECK_NOTHROW(verify_plan(plan));
  CHECK(torch_events(plan, Phase::Backward) == Texts{"unshard l3", "unshard l2", "unshard l1",
                                                     "post l3", "unshard l0", "post l2", "post l1",
                                                     "post l0", "post (root)"});
  CHECK(events(plan, Phase::Backward) ==
        Texts{"begin l3", "begin l2", "backward out", "wait l3", "begin l1", "backward l3",
              "post l3", "wait l2", "begin l0", "backward l2", "post l2", "wait l1", "backward l1",
              "post l1", "wait l0", "backward l0", "post l0", "backward in", "post (root)"});
}

TEST_CASE("forward_prefetch 2: right after its own unshard a unit begins those of its list") {
  const Plan plan = build_plan(shipped("training/prefetch_forward_2"));
  CHECK_NOTHROW(verify_plan(plan));
  CHECK(events(plan, Phase::Forward) ==
        Texts{"unshard (root)", "begin l0", "begin l1", "forward in", "wait l0", "begin l2",
              "forward l0", "wait l1", "begin l3", "forward l1", "wait l2", "forward l2", "wait l3",
              "forward l3", "forward out"});
  // backward_prefetch 0: as without.
  CHECK(torch_events(plan, Phase::Backward) ==
        Texts{"unshard (root)", "unshard l3", "post l3", "unshard l2", "post l2", "unshard l1",
              "post l1", "unshard l0", "post l0", "post (root)"});
}

TEST_CASE("what forward leaves whole is not unshard in backward, whatever is prefetched") {
  const Plan kept = build_plan(shipped("training/prefetch_reshard_false"));
  CHECK_NOTHROW(verify_plan(kept));
  CHECK(torch_events(kept, Phase::Backward) ==
        Texts{"post l2", "post l1", "post l0", "post (root)"});
  const Plan root = build_plan(shipped("training/prefetch_reshard_null"));
  CHECK_NOTHROW(verify_plan(root));
  CHECK(torch_events(root, Phase::Backward) == Texts{"unshard l2", "unshard l1", "post l2",
                                                     "unshard l0", "post l1", "post l0",
                                                     "post (root)"});
}

TEST_CASE("no unit is gathered twice: D9, M + 1 gathers of each in M micro-batches") {
  // Backward leaves parameters whole, but for the last one: only the first forward gathers.
  const Plan plan = build_plan(shipped("training/prefetch_gathers_once"));
  CHECK_NOTHROW(verify_plan(plan));
  const Texts whole = {"forward l0", "forward l1", "forward l2"};
  CHECK(events(plan, Phase::Forward, 0) == Texts{"unshard l0", "begin l1", "begin l2", "forward l0",
                                                 "wait l1", "forward l1", "wait l2", "forward l2"});
  CHECK(events(plan, Phase::Forward, 1) == whole);
  CHECK(events(plan, Phase::Forward, 2) == whole);
  for (const std::int64_t m : {0, 1, 2}) {
    CHECK(torch_events(plan, Phase::Backward, m) ==
          Texts{"unshard l2", "unshard l1", "post l2", "unshard l0", "post l1", "post l0"});
  }
  std::vector<std::int64_t> gathers(plan.buckets.size(), 0);
  for (const Step& step : plan.steps) {
    if (step.kind == StepKind::Unshard) ++gathers.at(static_cast<std::size_t>(step.bucket));
  }
  CHECK(gathers == std::vector<std::int64_t>(3, 3 + 1));
}

/// Layers l0, l1, ... of 6 features over 4 ranks, each a unit.
Scenario layers(int count) {
  std::vector<ModuleSpec> modules;
  for (int i = 0; i < count; ++i)
    modules.push_back(linear(fmt::format("l{}", i), 6, 6));
  return fsdp_scenario(modules_model(std::move(modules)), 4);
}

TEST_CASE("0 units ahead leaves the plan as it is") {
  Scenario scenario = layers(3);
  const Plan plan = build_plan(scenario);
  CHECK(count_kind(plan, StepKind::WaitUnshard) == 0);
  CHECK(
      std::none_of(plan.steps.begin(), plan.steps.end(), [](const Step& s) { return s.is_async; }));
  scenario.fully_shard.forward_prefetch = scenario.fully_shard.backward_prefetch = 1;
  const Plan ahead = build_plan(scenario);
  // The same collectives in the same number, only some of them begun before.
  CHECK(collectives_of(ahead, StepKind::Unshard) == collectives_of(plan, StepKind::Unshard));
  CHECK(count_kind(ahead, StepKind::WaitUnshard) == 2 * 2);
}

TEST_CASE("units in units are asked for outer before inner, and counted so") {
  Scenario scenario = layers(3);
  scenario.model.groups = {{"g", 0, 2}};
  scenario.parameters = list_parameters(scenario.model);
  scenario.units = assign_units(scenario.model, scenario.parameters, {"g", "l1", "l2"}, true);
  scenario.fully_shard.forward_prefetch = scenario.fully_shard.backward_prefetch = 1;
  const Plan plan = build_plan(scenario);
  CHECK_NOTHROW(verify_plan(plan));
  CHECK(events(plan, Phase::Forward) == Texts{"unshard g", "begin l1", "forward l0", "wait l1",
                                              "begin l2", "forward l1", "wait l2", "forward l2"});
  // l2, then the group g, then l1 in it.
  CHECK(events(plan, Phase::Backward) == Texts{"unshard l2", "begin g", "backward l2", "post l2",
                                               "wait g", "begin l1", "wait l1", "backward l1",
                                               "post l1", "backward l0", "post g"});
}

TEST_CASE("every bucket of a unit is begun; what is only cast is so at once") {
  Scenario scenario = layers(2);
  scenario.fully_shard.replicate_params = {3};  // the bias of l1
  scenario.fully_shard.mp_policy.param_dtype = DType::BFloat16;
  scenario.fully_shard.forward_prefetch = 1;
  const Plan plan = build_plan(scenario);
  CHECK_NOTHROW(verify_plan(plan));
  const Texts events_of_plan = events(plan, Phase::Forward);
  CHECK(events_of_plan ==
        Texts{"unshard l0", "begin l1", "unshard l1", "forward l0", "wait l1", "forward l1"});
  scenario.fully_shard.replicate_params.clear();
  scenario.fully_shard.fuses_collectives = false;
  CHECK(events(build_plan(scenario), Phase::Forward) == Texts{"unshard l0", "unshard l0",
                                                              "begin l1", "begin l1", "forward l0",
                                                              "wait l1", "wait l1", "forward l1"});
}

TEST_CASE("parts that are kept between forward and backward are gathered ahead, too") {
  Scenario scenario = layers(3);
  scenario.fully_shard.post_forward_size = 2;
  scenario.fully_shard.backward_prefetch = 1;
  const Plan plan = build_plan(scenario);
  CHECK_NOTHROW(verify_plan(plan));
  for (const Step& step : plan.steps) {
    if (step.kind != StepKind::Unshard) continue;
    CHECK(step.collective->consecutive == (step.phase == Phase::Forward ? 0 : 2));
    CHECK(step.is_async ==
          (step.phase == Phase::Backward && plan.unit_name(plan.bucket(step.bucket)) != "l2"));
  }
}

TEST_CASE("what compute an unshard runs beside") {
  Scenario scenario = layers(2);
  scenario.fully_shard.forward_prefetch = 1;
  const Plan plan = build_plan(scenario);
  // 0 unshard l0, 1 begin l1, 2 forward l0, 3 reshard l0, 4 wait l1, 5 forward l1
  const auto overlaps = overlaps_of(plan);
  REQUIRE(overlaps.size() == 1);
  const Overlap begun = overlaps.at(1);
  CHECK(begun.completed_in == 4);
  CHECK(begun.first == 2);
  CHECK(begun.last == 2);
  CHECK(begun.before == 5);
  CHECK(compute_text(plan, 2) == "forward of l0");
  CHECK(compute_text(plan, 7) == "loss");
  CHECK_THROWS(compute_text(plan, 4));
  // Nothing is computed beside it, or several; the same bucket again in backward.
  const Plan two = build_plan(shipped("training/prefetch_backward_2"));
  std::vector<std::int64_t> num_computed;
  for (const auto& [begin, overlap] : overlaps_of(two)) {
    REQUIRE(overlap.first >= 0);
    std::int64_t count = 0;
    for (std::int64_t i = overlap.first; i <= overlap.last; ++i)
      count += two.steps[static_cast<std::size_t>(i)].kind == StepKind::Backward ? 1 : 0;
    num_computed.push_back(count);
  }
  CHECK(num_computed == std::vector<std::int64_t>{1, 2, 2, 2});
  Scenario nested = scenario;
  nested.units = assign_units(nested.model, nested.parameters, {"l1"}, true);
  nested.fully_shard.backward_prefetch = 1;
  // Backward: unshard root, begin l1, wait l1, backward l1.
  const Plan at_once = build_plan(nested);
  const Overlap none = overlaps_of(at_once).rbegin()->second;
  CHECK(none.first == -1);
  CHECK(none.last == -1);
  CHECK(compute_text(at_once, none.before) == "backward of l1");
}

/// "CODE message" of what check_agreement finds in a plan of two layers, both 1 unit ahead, that is
/// right before; verify_plan refuses it.
Texts found(const std::function<void(Plan&)>& plant) {
  Scenario scenario = layers(2);
  scenario.fully_shard.forward_prefetch = scenario.fully_shard.backward_prefetch = 1;
  Plan plan = build_plan(scenario);
  CHECK_NOTHROW(verify_plan(plan));
  plant(plan);
  Texts texts;
  for (const Finding& finding : check_agreement(plan).findings)
    texts.push_back(std::string(name_of(finding.code)) + " " + finding.message);
  CHECK_THROWS_AS(verify_plan(std::move(plan)), PlanRejected);
  return texts;
}

/// Moves the `number`-th step of a kind behind the first one of another kind that follows it.
void move_behind(Plan& plan, StepKind kind, StepKind other, std::int64_t number) {
  const std::ptrdiff_t at = find_step(plan, kind, number);
  const auto moved = plan.steps.begin() + at;
  const auto target =
      std::find_if(moved, plan.steps.end(), [&](const Step& step) { return step.kind == other; });
  REQUIRE(target != plan.steps.end());
  std::rotate(moved, moved + 1, target + 1);
}

// Unshards 0 to 3: l0 in forward, l1 begun; l1 in backward, l0 begun. Waits 0 and 1.

TEST_CASE("planted: a wait is lost") {
  // In forward: l1 computes with what is not there, is freed, and nothing has waited at the loss.
  CHECK(found([](Plan& p) { drop(p, StepKind::WaitUnshard, 0); }) ==
        Texts{"COMM_ORDER forward of \"l1\": its unshard is begun, and nothing waits for it",
              "COMM_ORDER reshard of unit \"l1\": its unshard is begun, and nothing waits for it",
              "COMM_ORDER loss of the model: nothing waits for the unshard of bucket 1 that was "
              "begun before",
              "COMM_ORDER unshard of unit \"l1\": its unshard is begun, and nothing waits for it",
              "COMM_ORDER optimizer of the model: nothing waits for the unshard of bucket 1 that "
              "was begun before"});
  const Texts backward = found([](Plan& p) { drop(p, StepKind::WaitUnshard, 1); });
  REQUIRE_FALSE(backward.empty());
  CHECK(backward[0] ==
        "COMM_ORDER backward of \"l0\": its unshard is begun, and nothing waits for it");
}

TEST_CASE("planted: an unshard comes twice") {
  const Texts twice = {
      "COMM_ORDER unshard of unit \"l1\": its unshard is begun, and nothing waits for it"};
  CHECK(found([](Plan& p) { repeat(p, StepKind::Unshard, 1); }) == twice);
  // Or once more, and at once, while it is pending: the wait then finds nothing.
  CHECK(found([](Plan& p) {
          Step again = step_of(p, StepKind::Unshard, 1);
          again.is_async = false;
          p.steps.insert(p.steps.begin() + find_step(p, StepKind::Unshard, 1) + 1, again);
        }) == Texts{twice[0],
                    "COMM_ORDER forward of \"l0\": the unshard of unit \"l1\" is done before it is "
                    "needed; forward_prefetch is 1"});
  // After the wait.
  CHECK(found([](Plan& p) {
          const Step again = step_of(p, StepKind::Unshard, 1);
          p.steps.insert(p.steps.begin() + find_step(p, StepKind::WaitUnshard, 0) + 1, again);
        })[0] == "COMM_ORDER unshard of unit \"l1\": it is gathered already");
}

TEST_CASE("planted: a wait comes before its unshard, or twice, or for one that is done at once") {
  CHECK(found([](Plan& p) { move_behind(p, StepKind::Unshard, StepKind::WaitUnshard, 1); })[1] ==
        "COMM_ORDER wait_unshard of unit \"l1\": no unshard of it is begun");
  CHECK(found([](Plan& p) { repeat(p, StepKind::WaitUnshard, 0); }) ==
        Texts{"COMM_ORDER wait_unshard of unit \"l1\": no unshard of it is begun"});
  CHECK(
      found([](Plan& p) { step_of(p, StepKind::Unshard, 1).is_async = false; }) ==
      Texts{"COMM_ORDER forward of \"l0\": the unshard of unit \"l1\" is done before it is needed; "
            "forward_prefetch is 1",
            "COMM_ORDER wait_unshard of unit \"l1\": no unshard of it is begun"});
}

TEST_CASE("planted: a unit computes, or is freed, while its unshard is pending") {
  CHECK(found([](Plan& p) { move_behind(p, StepKind::WaitUnshard, StepKind::Forward, 0); }) ==
        Texts{"COMM_ORDER forward of \"l1\": its unshard is begun, and nothing waits for it"});
  CHECK(found([](Plan& p) { move_behind(p, StepKind::WaitUnshard, StepKind::Backward, 1); }) ==
        Texts{"COMM_ORDER backward of \"l0\": its unshard is begun, and nothing waits for it"});
}

TEST_CASE("planted: what is begun in forward is awaited in backward") {
  const Texts texts =
      found([](Plan& p) { move_behind(p, StepKind::WaitUnshard, StepKind::Loss, 0); });
  CHECK(
      std::find(texts.begin(), texts.end(),
                "COMM_ORDER loss of the model: nothing waits for the unshard of bucket 1 that was "
                "begun before") != texts.end());
}

TEST_CASE("planted: another step than an all_gather is begun") {
  CHECK(found([](Plan& p) { step_of(p, StepKind::ReduceScatter).is_async = true; }) ==
        Texts{"COMM_COUNT reduce_scatter of unit \"l1\": it is begun, and has no all_gather"});
  const Texts texts = found([](Plan& p) { step_of(p, StepKind::Unshard, 1).collective.reset(); });
  CHECK(std::find(texts.begin(), texts.end(),
                  "COMM_COUNT unshard of unit \"l1\": it is begun, and has no all_gather") !=
        texts.end());
}

TEST_CASE("before the first unit is asked for nothing is begun") {
  // Without a root unit; a0 computes before l0 in forward, a1 before l1 in backward.
  Scenario scenario =
      fsdp_scenario(modules_model({activation("a0", ModuleType::Relu), linear("l0", 6, 6),
                                   linear("l1", 6, 6), activation("a1", ModuleType::Relu)}),
                    4);
  scenario.fully_shard.forward_prefetch = scenario.fully_shard.backward_prefetch = 1;
  const Plan plan = build_plan(scenario);
  CHECK(check_agreement(plan).findings.empty());
  CHECK(events(plan, Phase::Forward) == Texts{"forward a0", "unshard l0", "begin l1", "forward l0",
                                              "wait l1", "forward l1", "forward a1"});
  // Moved before a0, it is begun too early.
  Plan early = plan;
  const Step begun = step_of(early, StepKind::Unshard, 1);
  early.steps.erase(early.steps.begin() + find_step(early, StepKind::Unshard, 1));
  early.steps.insert(early.steps.begin(), begun);
  const std::vector<Finding> findings = check_agreement(early).findings;
  REQUIRE(findings.size() == 1);
  CHECK(findings[0].message ==
        "forward of \"a0\": the unshard of unit \"l1\" is begun already; forward_prefetch is 1");
}

/// Takes the async steps of a phase for ones that gather at once where the unit is needed.
void begin_nothing(Plan& plan, Phase phase) {
  for (std::size_t i = 0; i < plan.steps.size(); ++i) {
    const Step begun = plan.steps[i];
    if (!begun.is_async || begun.phase != phase) continue;
    for (std::size_t j = i; j < plan.steps.size(); ++j) {
      Step& wait = plan.steps[j];
      if (wait.kind != StepKind::WaitUnshard || wait.bucket != begun.bucket) continue;
      wait = begun;
      wait.is_async = false;
      break;
    }
    plan.steps.erase(plan.steps.begin() + static_cast<std::ptrdiff_t>(i--));
  }
}

TEST_CASE("planted: what is ahead is not begun, or too late") {
  CHECK(found([](Plan& p) { begin_nothing(p, Phase::Forward); }) ==
        Texts{"COMM_ORDER forward of \"l0\": the unshard of unit \"l1\" is not begun; "
              "forward_prefetch is 1"});
  CHECK(found([](Plan& p) { begin_nothing(p, Phase::Backward); }) ==
        Texts{"COMM_ORDER backward of \"l1\": the unshard of unit \"l0\" is not begun; "
              "backward_prefetch is 1"});
  CHECK(found([](Plan& p) {
          begin_nothing(p, Phase::Forward);
          begin_nothing(p, Phase::Backward);
        }).size() == 2);
  CHECK(found([](Plan& p) { move_behind(p, StepKind::Unshard, StepKind::Forward, 1); }) ==
        Texts{"COMM_ORDER forward of \"l0\": the unshard of unit \"l1\" is not begun; "
              "forward_prefetch is 1"});
}

TEST_CASE("planted: it is begun further ahead than asked for, or awaited before it is needed") {
  CHECK(found([](Plan& p) { p.scenario.fully_shard.forward_prefetch = 0; }) ==
        Texts{"COMM_ORDER forward of \"l0\": the unshard of unit \"l1\" is begun already; "
              "forward_prefetch is 0"});
  CHECK(found([](Plan& p) {
          const Step wait = step_of(p, StepKind::WaitUnshard);
          p.steps.erase(p.steps.begin() + find_step(p, StepKind::WaitUnshard));
          p.steps.insert(p.steps.begin() + find_step(p, StepKind::Unshard, 1) + 1, wait);
        }) == Texts{"COMM_ORDER forward of \"l0\": the unshard of unit \"l1\" is done before it is "
                    "needed; forward_prefetch is 1"});
}

TEST_CASE("planted: placements of what is begun and never awaited") {
  Scenario scenario = layers(2);
  scenario.fully_shard.forward_prefetch = 1;
  const auto placements_after = [&](const std::function<void(Plan&)>& plant) {
    Plan plan = build_plan(scenario);
    CHECK(check_placements(plan).findings.empty());
    plant(plan);
    Texts texts;
    for (const Finding& finding : check_placements(plan).findings)
      texts.push_back(finding.message);
    return texts;
  };
  // 6 rows over 4 ranks.
  CHECK(placements_after([](Plan& p) { drop(p, StepKind::WaitUnshard); }) ==
        Texts{"at forward \"l1.weight\" is RaggedShard((0,), (2, 2, 2, 0)) along fsdp, expected "
              "Replicate",
              "at forward \"l1.bias\" is RaggedShard((0,), (2, 2, 2, 0)) along fsdp, expected "
              "Replicate"});
  const Texts early = placements_after(
      [](Plan& p) { move_behind(p, StepKind::Unshard, StepKind::WaitUnshard, 1); });
  REQUIRE(early.size() == 2);
  CHECK(early[0] ==
        "at wait_unshard \"l1.weight\" is RaggedShard((0,), (2, 2, 2, 0)) along fsdp, expected "
        "Replicate");
}

}  // namespace
}  // namespace hpsim::test
