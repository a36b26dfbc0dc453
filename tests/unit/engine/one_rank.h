#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include "engine/rank_memory.h"
#include "plan/build_plan.h"
#include "support/catch.h"
#include "trace/run_result.h"

namespace hpsim {

/// Memory that ranks record into.
inline RunResult result_for(const Plan& plan) {
  ResultLayout layout(plan, true);
  auto* const block =
      static_cast<std::byte*>(std::calloc(1, static_cast<std::size_t>(layout.size_bytes())));
  return {"test", std::move(layout), {block, [](std::byte* data) { std::free(data); }}};
}

/// The memory of one rank of a plan, and the block it records into.
template <class T>
struct OneRankOf {
  OneRankOf(Plan of_plan, Rank rank)
      : plan(std::move(of_plan)),
        result(result_for(plan)),
        record(result.rank_record(rank)),
        memory(plan, rank, result) {
    memory.make_parameters();
  }
  OneRankOf(Scenario scenario, Rank rank) : OneRankOf(build_plan(std::move(scenario)), rank) {}
  OneRankOf(const OneRankOf&) = delete;
  OneRankOf& operator=(const OneRankOf&) = delete;

  /// The backward of a module in a pass.
  [[nodiscard]] const Step& backward(int module = 0, std::int64_t step = 0,
                                     std::int64_t micro_batch = 0) const {
    const auto found = std::find_if(plan.steps.begin(), plan.steps.end(), [&](const Step& each) {
      return each.kind == StepKind::Backward && each.module == module && each.step == step &&
             each.micro_batch == micro_batch;
    });
    REQUIRE(found != plan.steps.end());
    return *found;
  }
  [[nodiscard]] std::int64_t live(MemoryKind kind) const {
    return record.ledger.live()[static_cast<std::size_t>(kind)];
  }

  Plan plan;
  RunResult result;
  RankRecord& record;
  RankMemory<T> memory;
};

}  // namespace hpsim
