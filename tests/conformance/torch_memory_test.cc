// The memory of parameters beside the formulas that PyTorch's test of FSDP2 asserts
// (test/distributed/_composable/fsdp/test_fully_shard_memory.py): upper bounds, of the first step.

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "plan/build_plan.h"
#include "scenario/parse.h"
#include "support/catch.h"
#include "trace/plan_ledger.h"

namespace hpsim {
namespace {

constexpr int kBlocks = 4;
constexpr std::int64_t kRanks = 4;

/// Four equal blocks, units of their own, and a linear in the root unit; adam, float32.
Plan plan_of(std::int64_t features, bool reshards) {
  std::string modules;
  for (int i = 0; i < kBlocks; ++i) {
    modules += fmt::format(
        R"({{"name": "b{}", "type": "linear", "in_features": {}, "out_features": {}, "bias": false}}, )",
        i, features, features);
  }
  const std::string text = fmt::format(
      R"({{"hpsim": 1, "mesh": {{"shape": [{}], "mesh_dim_names": ["fsdp"]}}, "model": [{}
          {{"name": "out", "type": "linear", "in_features": {}, "out_features": {}, "bias": false}}],
          "fully_shard": {{"units": ["b*"], "reshard_after_forward": {}}},
          "training": {{"optimizer": {{"name": "adam", "lr": 0.1}}}}}})",
      kRanks, modules, features, kRanks, reshards);
  return build_plan(parse_scenario(text, "memory.json"));
}

/// Elements of what is padded, as FSDP2 pads too (FSDPParam.padded_sharded_param_size).
struct Sizes {
  std::int64_t block = 0;      ///< "max": the largest group, unsharded
  std::int64_t non_block = 0;  ///< the root's own
  [[nodiscard]] std::int64_t unsharded() const { return kBlocks * block + non_block; }
  [[nodiscard]] std::int64_t sharded() const { return unsharded() / kRanks; }
};

Sizes sizes_of(std::int64_t features) {
  const std::int64_t rows = (features + kRanks - 1) / kRanks * kRanks;
  return {.block = rows * features, .non_block = kRanks * features};
}

std::int64_t activations_of(const BytesByKind& bytes) {
  return bytes[static_cast<std::size_t>(MemoryKind::Activations)];
}

/// The most bytes of parameters, gradients and states that are alive within any step of a phase:
/// where a step leaves activations as they were, its peak without them, else what it leaves. A
/// backward takes the memory of gradients first, and frees none.
std::int64_t peak_without_activations(const Plan& plan, const PlannedMemory& memory, Phase phase) {
  std::int64_t most = 0;
  std::int64_t activations = 0;
  for (std::size_t i = 0; i < plan.steps.size(); ++i) {
    const MemoryEvent& event = memory.events[i];
    const std::int64_t before = std::exchange(activations, activations_of(event.live_after));
    if (plan.steps[i].phase != phase) continue;
    const bool computes =
        plan.steps[i].kind == StepKind::Forward || plan.steps[i].kind == StepKind::Backward ||
        plan.steps[i].kind == StepKind::Loss || plan.steps[i].kind == StepKind::Redistribute;
    if (!computes) CHECK(before == activations);
    most = std::max(most, (computes ? total_of(event.live_after) : event.peak_total) - activations);
  }
  return most;
}

struct Row {
  std::string moment;
  std::int64_t torch = 0;  ///< bytes that its formula allows
  std::int64_t hpsim = 0;
};

/// The moments of one model, for reshard_after_forward true and false.
std::vector<Row> rows_of(std::int64_t features) {
  const Sizes sizes = sizes_of(features);
  const std::int64_t max = sizes.block;
  const std::int64_t non_block = sizes.non_block;
  const std::int64_t sharded = sizes.sharded();
  const std::int64_t unsharded = sizes.unsharded();
  std::vector<Row> rows;
  for (const bool reshards : {true, false}) {
    const Plan plan = plan_of(features, reshards);
    const PlannedMemory memory = planned_memory(plan, {0});
    const auto add = [&](std::string moment, std::int64_t elems, std::int64_t bytes) {
      rows.push_back({std::move(moment), elems * 4, bytes});
    };
    const auto peak = [&](Phase phase) { return peak_without_activations(plan, memory, phase); };
    if (reshards) {
      add("init", sharded + max, memory.init.peak_total());
      add("forward, reshard", 3 * max + non_block + sharded, peak(Phase::Forward));
      add("backward, reshard", 3 * max + non_block + 2 * sharded, peak(Phase::Backward));
      add("optimizer step", 4 * sharded, peak(Phase::Optimizer));
      add("after zero_grad", 3 * sharded, total_of(memory.live_after.at(0)));
    } else {
      add("forward, keep", sharded + unsharded + max, peak(Phase::Forward));
      add("backward, keep", sharded + unsharded + max + max / 2, peak(Phase::Backward));
    }
  }
  return rows;
}

TEST_CASE("memory of parameters stays within the formulas of FSDP2, even and uneven") {
  for (const std::int64_t features : {8, 7, 768, 767}) {
    for (const Row& row : rows_of(features)) {
      CAPTURE(features, row.moment);
      CHECK(row.hpsim <= row.torch);
    }
  }
}

TEST_CASE("where hpsim needs as much as FSDP2 allows, and where less, by hand") {
  // Blocks of 64 elements, out of 32: sharded (4 · 64 + 32) / 4 = 72, unsharded 288.
  const std::vector<Row> rows = rows_of(8);
  const auto bytes_at = [&](const std::string& moment) {
    for (const Row& row : rows) {
      if (row.moment == moment) return row.hpsim;
    }
    FAIL("no " << moment);
    return std::int64_t{0};
  };
  CHECK(bytes_at("init") == (72 + 64) * 4);
  // The root, and one block at a time, gathered in place.
  CHECK(bytes_at("forward, reshard") == (72 + 32 + 64) * 4);
  // The root, a block, and the gradients of both; what three blocks have stored, 3 · 16 elements.
  CHECK(bytes_at("backward, reshard") == (72 + 2 * (32 + 64) + 48) * 4);
  CHECK(bytes_at("optimizer step") == 4 * 72 * 4);
  CHECK(bytes_at("after zero_grad") == 3 * 72 * 4);
  CHECK(bytes_at("forward, keep") == (72 + 288) * 4);
  // Everything is there when the first block computes gradients, beside those of the root.
  CHECK(bytes_at("backward, keep") == (72 + 288 + 32 + 64) * 4);
}

TEST_CASE("the table of both models", "[.table]") {
  for (const std::int64_t features : {768, 767}) {
    fmt::print("{} x {} blocks over {} ranks\n", features, features, kRanks);
    for (const Row& row : rows_of(features))
      fmt::print("  {:<20} {:>12} {:>12} {:>6.2f}\n", row.moment, row.torch, row.hpsim,
                 static_cast<double>(row.hpsim) / static_cast<double>(row.torch));
  }
}

}  // namespace
}  // namespace hpsim
