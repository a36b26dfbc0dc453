// Memory of experts, counted by hand, and where counts of positions are recorded.

#include <string>

#include "plan/build_plan.h"
#include "scenario/parse.h"
#include "support/catch.h"
#include "trace/plan_ledger.h"
#include "trace/run_result.h"

namespace hpsim {
namespace {

/// Two vectors of 4 on each rank, one of two experts of hidden 3 for each; nothing before them, so
/// their input has no gradient.
Plan plan_on(const std::string& mesh, const std::string& more = "") {
  return build_plan(parse_scenario(R"({"hpsim": 1, "mesh": )" + mesh + R"(, "model": [
          {"name": "moe", "type": "moe", "dim": 4, "hidden": 3, "experts": 2, "top_k": 1}],
          "data": {"sample_shape": [4]})" +
                                       more + "}",
                                   "experts.json"));
}

std::int64_t peak_elems(const PlannedMemory& memory) {
  return memory.ledger.peak()[static_cast<std::size_t>(MemoryKind::Activations)] / 4;
}

TEST_CASE("experts on one rank: their scratch in backward is the peak") {
  const Plan plan = plan_on(R"({"shape": [1], "mesh_dim_names": ["fsdp"]})");
  // Input 8, logits 4, gradient of the output 8; two rows sorted 8, kept inside 12, gradients of
  // the outputs 8, scratch 12.
  CHECK(peak_elems(planned_memory(plan, {0})) == 60);
}

TEST_CASE("all positions to one expert: its rank holds them, the other one nothing but its own") {
  const Plan plan = plan_on(R"({"shape": [2], "mesh_dim_names": ["ep"]})",
                            R"(, "parallelize": {"moe": "expert"})");
  const Routing routing = [](const Coordinate&, std::int64_t, int) { return RoutedCounts{0, 2}; };
  // Rank 0: input 8, logits 4, gradient 8, outputs that came back 8, what it sends in backward 8.
  CHECK(peak_elems(planned_memory(plan, {0}, routing)) == 36);
  // Rank 1 gets four rows: input 8, logits 4, gradient 8; sorted 16, kept inside 24, gradients of
  // the outputs 16, scratch 24.
  CHECK(peak_elems(planned_memory(plan, {1}, routing)) == 100);
  // Balanced, two rows: input 8, logits 4, sorted 8, kept inside 12, outputs that came back 8,
  // gradient 8, what is sent and what arrives in backward 16.
  CHECK(peak_elems(planned_memory(plan, {0})) == 64);
}

TEST_CASE("counts of positions lie apart for every rank, step and experts module") {
  const Plan plan = build_plan(parse_scenario(
      R"({"hpsim": 1, "mesh": {"shape": [2], "mesh_dim_names": ["ep"]}, "model": [
          {"name": "a", "type": "moe", "dim": 4, "hidden": 3, "experts": 2, "top_k": 1},
          {"name": "b", "type": "moe", "dim": 4, "hidden": 3, "experts": 10, "top_k": 1}],
          "data": {"sample_shape": [4]}, "training": {"steps": 2}})",
      "experts.json"));
  const ResultLayout layout(plan, true);
  for (const Rank rank : {Rank{0}, Rank{1}}) {
    std::int64_t end = layout.losses(rank, 1) + 8;
    for (std::int64_t step = 0; step < 2; ++step) {
      for (int index = 0; index < 2; ++index) {
        CHECK(layout.routed(rank, step, index) >= end);
        end = layout.routed(rank, step, index) + (index == 0 ? 2 : 10) * 8;
      }
    }
    CHECK(layout.executed(rank) >= end);
  }
  CHECK(layout.executed(Rank{0}) < layout.routed(Rank{1}, 0, 0));
}

}  // namespace
}  // namespace hpsim
