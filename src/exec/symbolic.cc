#include "exec/symbolic.h"

#include <cstdlib>
#include <map>
#include <new>
#include <vector>

#include "exec/limits.h"
#include "trace/plan_ledger.h"

namespace hpsim {

RunResult SymbolicExecutor::run(const VerifiedPlan& plan, const RunOptions& /*options*/) {
  require_ranks(Backend::Symbolic, plan->mesh().num_ranks());
  ResultLayout layout(*plan, /*records_tensors=*/false);
  const std::int64_t bytes = layout.size_bytes();
  std::shared_ptr<std::byte> block(
      static_cast<std::byte*>(std::calloc(1, static_cast<std::size_t>(bytes))),
      [](std::byte* data) { std::free(data); });
  if (!block) throw std::bad_alloc();
  RunResult result("symbolic", std::move(layout), std::move(block));

  // Ranks with the same shard indices hold the same rows: one replay for all of them.
  std::map<std::vector<std::int64_t>, PlannedMemory> memory_of;
  for (std::int64_t r = 0; r < plan->mesh().num_ranks(); ++r) {
    const Rank rank{r};
    const Coordinate coordinate = plan->mesh().coordinate_of(rank);
    std::vector<std::int64_t> indices;
    for (const Bucket& bucket : plan->buckets) {
      indices.push_back(plan->mesh().index_along(bucket.sharded_group.dims, coordinate));
    }
    auto it = memory_of.find(indices);
    if (it == memory_of.end()) {
      it = memory_of.emplace(indices, planned_memory(*plan, coordinate)).first;
    }
    const PlannedMemory& memory = it->second;
    RankRecord& record = result.rank_record(rank);
    record.ledger = memory.ledger;
    record.pad_allocations = memory.pad_allocations;
    record.pad_copies = memory.pad_copies;
    record.done = 1;
    for (std::size_t step = 0; step < memory.live_after.size(); ++step) {
      result.step_record(rank, static_cast<std::int64_t>(step)).live_after =
          memory.live_after[step];
    }
    for (int p = 0; p < static_cast<int>(plan->parameters.size()); ++p) {
      const PlannedParameter& parameter = plan->parameters[static_cast<std::size_t>(p)];
      const Interval rows = parameter.rows_of(indices[static_cast<std::size_t>(parameter.bucket)]);
      result.held_rows(rank, p) = {rows.begin, rows.end};
    }
  }
  return result;
}

}  // namespace hpsim
