#include "spoiled_run.h"

#include <cstdlib>
#include <memory>
#include <utility>
#include <vector>

#include "engine/executed_call.h"
#include "exec/local_collectives.h"
#include "mesh/group.h"

namespace hpsim::test {
namespace {

RunResult empty_result(const Plan& plan) {
  ResultLayout layout(plan, true);
  auto* const block =
      static_cast<std::byte*>(std::calloc(1, static_cast<std::size_t>(layout.size_bytes())));
  return {"local", std::move(layout), {block, [](std::byte* data) { std::free(data); }}};
}

using Calls = std::vector<std::optional<CollectiveCall>>;

void exchange(const Plan& plan, const Step& step, const Calls& calls, const Spoiling& spoiling,
              RunResult& result) {
  const auto groups =
      groups_along(plan.mesh(), step.collective->dims, step.collective->consecutive);
  for (std::size_t g = 0; g < groups.size(); ++g) {
    std::vector<const CollectiveCall*> of_group;
    for (const Rank rank : groups[g]) {
      const CollectiveCall& call = calls[static_cast<std::size_t>(rank.value)].value();
      RankRecord& record = result.rank_record(rank);
      ExecutedCollective& executed = result.executed(rank)[record.num_collectives++];
      executed = executed_call(plan, call, static_cast<std::int64_t>(g));
      executed.completed_in = call.plan_step;
      if (spoiling.sent) spoiling.sent(step, rank, call);
      of_group.push_back(&call);
    }
    const std::vector<std::size_t> rounded = exchange_in_process(of_group);
    for (const std::size_t member : rounded) {
      if (plan.scenario.is_exact()) result.step_record(groups[g][member], step.step).inexact = 1;
    }
    for (std::size_t i = 0; spoiling.got && i < of_group.size(); ++i)
      spoiling.got(step, groups[g][i], *of_group[i]);
  }
}

}  // namespace

RunResult run_spoiled(const VerifiedPlan& plan, const Spoiling& spoiling) {
  RunResult result = empty_result(*plan);
  std::vector<std::unique_ptr<RankEngine>> engines;
  for (std::int64_t rank = 0; rank < plan->mesh().num_ranks(); ++rank)
    engines.push_back(make_rank_engine(plan, Rank{rank}, result));
  for (std::size_t i = 0; i < plan->steps.size(); ++i) {
    const auto plan_step = static_cast<std::int64_t>(i);
    const std::int64_t step = plan->steps[i].step;
    const bool begins = i == 0 || plan->steps[i - 1].step != step;
    for (std::size_t rank = 0; spoiling.before_step && begins && rank < engines.size(); ++rank)
      spoiling.before_step(step, Rank{static_cast<std::int64_t>(rank)}, *engines[rank]);
    Calls calls;
    for (const auto& engine : engines)
      calls.push_back(engine->begin(plan_step));
    if (plan->steps[i].collective) exchange(*plan, plan->steps[i], calls, spoiling, result);
    for (const auto& engine : engines)
      engine->finish(plan_step);
  }
  return result;
}

}  // namespace hpsim::test
