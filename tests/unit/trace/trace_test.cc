#include <algorithm>
#include <vector>

#include "base/check.h"
#include "plan/build_plan.h"
#include "support/catch.h"
#include "support/scenarios.h"
#include "trace/ledger.h"
#include "trace/run_result.h"

namespace hpsim {
namespace {

TEST_CASE("the ledger keeps peaks by kind and of the sum at one moment") {
  Ledger ledger;
  ledger.allocate(MemoryKind::Gradients, 10);
  ledger.allocate(MemoryKind::Padding, 5);
  ledger.release(MemoryKind::Gradients, 10);
  ledger.allocate(MemoryKind::Padding, 6);
  CHECK(ledger.peak()[static_cast<std::size_t>(MemoryKind::Gradients)] == 10);
  CHECK(ledger.peak()[static_cast<std::size_t>(MemoryKind::Padding)] == 11);
  CHECK(ledger.live()[static_cast<std::size_t>(MemoryKind::Gradients)] == 0);
  CHECK(ledger.peak_total() == 15);
  CHECK_THROWS_AS(ledger.release(MemoryKind::Gradients, 1), InternalError);
}

TEST_CASE("the ledger tells of events: what is left, and the most within") {
  Ledger ledger;
  ledger.allocate(MemoryKind::Gradients, 10);
  ledger.begin_event();
  CHECK(ledger.event() == MemoryEvent{ledger.live(), 10});
  ledger.allocate(MemoryKind::Padding, 5);
  ledger.release(MemoryKind::Gradients, 10);
  CHECK(ledger.event().peak_total == 15);
  CHECK(total_of(ledger.event().live_after) == 5);
  ledger.begin_event();
  ledger.release(MemoryKind::Padding, 5);
  // Of what was alive when it began, too.
  CHECK(ledger.event().peak_total == 5);
  CHECK(ledger.peak_total() == 15);
  ledger.allocate(MemoryKind::Padding, 1);
  ledger.restart_peaks();
  CHECK(ledger.peak_total() == 1);
  CHECK(ledger.peak() == ledger.live());
}

struct Region {
  std::int64_t begin = 0, end = 0;
};

TEST_CASE("what ranks record lies apart, aligned, inside the block, on any mesh") {
  Scenario scenario = test::hsdp_scenario(
      test::modules_model({test::linear("l0", 3, 5), test::linear("l1", 5, 2)}), 2, 4);
  scenario.training.steps = 3;
  scenario.training.optimizer.kind = OptimizerSpec::Kind::Adam;
  const Plan plan = build_plan(scenario);
  const ResultLayout layout(plan, true);
  std::vector<Region> regions;
  const auto add = [&](std::int64_t begin, std::int64_t bytes) {
    CHECK(begin % 64 == 0);
    regions.push_back({begin, begin + bytes});
  };
  const auto num_parameters = static_cast<int>(plan.parameters.size());
  for (std::int64_t r = 0; r < 8; ++r) {
    const Rank rank{r};
    add(layout.rank_record(rank), sizeof(RankRecord));
    add(layout.executed(rank),
        layout.max_collectives() * static_cast<std::int64_t>(sizeof(ExecutedCollective)));
    CHECK(layout.num_events() == static_cast<std::int64_t>(plan.steps.size()));
    add(layout.memory_events(rank),
        layout.num_events() * static_cast<std::int64_t>(sizeof(MemoryEvent)));
    for (int p = 0; p < num_parameters; ++p) {
      // Number of boxes and of dims, then offset and shape of one box.
      const auto num_dims = static_cast<std::int64_t>(plan.parameter(p).shape.size());
      regions.push_back(
          {layout.held_boxes(rank, p), layout.held_boxes(rank, p) + (2 + 2 * num_dims) * 8});
    }
    for (std::int64_t step = 0; step < 3; ++step) {
      add(layout.step_record(rank, step), sizeof(StepRecord));
      add(layout.losses(rank, step), layout.num_loss_terms() * 8);
    }
    for (int p = 0; p < num_parameters; ++p) {
      const std::int64_t bytes = layout.shard_elems(rank, p) * 4;
      for (std::int64_t time = 0; time <= 3; ++time)
        add(layout.parameter(rank, time, p), bytes);
      for (std::int64_t step = 0; step < 3; ++step) {
        add(layout.gradient(rank, step, p), bytes);
        for (int s = 0; s < 2; ++s)
          add(layout.state(rank, step, s, p), bytes);
      }
    }
  }
  std::sort(regions.begin(), regions.end(), [](const Region& a, const Region& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
  });
  for (std::size_t i = 1; i < regions.size(); ++i)
    CHECK(regions[i - 1].end <= regions[i].begin);
  CHECK(regions.back().end <= layout.size_bytes());
  CHECK_THROWS_AS(layout.gradient(Rank{0}, 3, 0), InternalError);
  CHECK_THROWS_AS(ResultLayout(plan, false).parameter(Rank{0}, 0, 0), InternalError);
  const ResultLayout without(plan, Recording{.tensors = true, .events = false});
  CHECK_THROWS_AS(without.memory_events(Rank{0}), InternalError);
  CHECK(without.size_bytes() < layout.size_bytes());
}

TEST_CASE("where only some ranks record, events are left out if there would be too many") {
  Scenario scenario = test::fsdp_scenario(test::elementwise_model({{"w", {7}}}), 4);
  const Plan plan = build_plan(scenario);
  const auto num_steps = static_cast<std::int64_t>(plan.steps.size());
  const std::int64_t most = ResultLayout::kMostEvents / num_steps;
  std::vector<Rank> recording(static_cast<std::size_t>(most), Rank{0});
  CHECK(ResultLayout(plan, recording).records_events());
  recording.push_back(Rank{1});
  CHECK_FALSE(ResultLayout(plan, recording).records_events());
  // All ranks of a run always do.
  CHECK(ResultLayout(plan, true).records_events());
}

TEST_CASE("tags tell apart what must not be exchanged") {
  Scenario scenario = test::hsdp_scenario(
      test::modules_model({test::linear("l0", 4, 4), test::linear("l1", 4, 4)}), 2, 2);
  const Plan plan = build_plan(scenario);
  std::vector<std::int64_t> steps;
  for (std::size_t i = 0; i < plan.steps.size(); ++i) {
    if (plan.steps[i].collective) steps.push_back(static_cast<std::int64_t>(i));
  }
  // Units of equal size, groups side by side, one element more: all are different things.
  std::vector<std::uint64_t> tags;
  for (const std::int64_t step : steps) {
    for (std::int64_t group = 0; group < 2; ++group) {
      tags.push_back(collective_tag(plan, step, group, 8, 16));
      tags.push_back(collective_tag(plan, step, group, 9, 16));
    }
  }
  std::sort(tags.begin(), tags.end());
  CHECK(std::adjacent_find(tags.begin(), tags.end()) == tags.end());
  CHECK(collective_tag(plan, steps[0], 0, 8, 16) == collective_tag(plan, steps[0], 0, 8, 16));
}

}  // namespace
}  // namespace hpsim
