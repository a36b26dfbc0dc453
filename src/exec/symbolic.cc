#include "exec/symbolic.h"

#include <algorithm>
#include <cstdlib>
#include <new>
#include <vector>

#include "exec/limits.h"
#include "plan/rank_layout.h"
#include "trace/plan_ledger.h"

namespace hpsim {

RunResult SymbolicExecutor::run(const VerifiedPlan& plan, const RunOptions& /*options*/) {
  require_ranks(Backend::Symbolic, plan->mesh().num_ranks());
  require_faults(Backend::Symbolic, plan->scenario);
  require_rank_kinds(*plan);
  // Ranks with shards of the same sizes use the same memory: one record for all of them.
  std::vector<Rank> recording;
  for (const RankClass& each : rank_classes(*plan))
    recording.push_back(plan->mesh().rank_at(each.first));
  ResultLayout layout(*plan, std::move(recording));
  const std::int64_t bytes = layout.size_bytes();
  require_memory_for_results(bytes);
  std::shared_ptr<std::byte> block(
      static_cast<std::byte*>(std::calloc(1, static_cast<std::size_t>(bytes))),
      [](std::byte* data) { std::free(data); });
  if (!block) throw std::bad_alloc();
  RunResult result("symbolic", std::move(layout), std::move(block));
  for (const Rank rank : result.layout().recording()) {
    const Coordinate coordinate = plan->mesh().coordinate_of(rank);
    const PlannedMemory memory = planned_memory(*plan, coordinate);
    RankRecord& record = result.rank_record(rank);
    record.init = memory.init;
    record.ledger = memory.ledger;
    record.pad_allocations = memory.pad_allocations;
    record.pad_copies = memory.pad_copies;
    record.done = 1;
    for (std::size_t step = 0; step < memory.live_after.size(); ++step) {
      result.step_record(rank, static_cast<std::int64_t>(step)).live_after =
          memory.live_after[step];
    }
    if (result.layout().records_events()) {
      std::copy(memory.events.begin(), memory.events.end(), result.memory_events(rank).begin());
    }
    for (int p = 0; p < static_cast<int>(plan->parameters.size()); ++p)
      result.record_held(rank, p, held_shard(plan->mesh(), plan->parameter(p), coordinate).boxes);
  }
  return result;
}

}  // namespace hpsim
