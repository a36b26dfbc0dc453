#include "exec/gloo/gloo_executor.h"

#include <utility>

#include "engine/rank_engine.h"
#include "exec/gloo/plan_runner.h"
#include "exec/gloo/supervisor.h"
#include "exec/limits.h"
#include "exec/shared_memory.h"

namespace hpsim {

namespace {

class GlooExecutor : public Executor {
 public:
  RunResult run(const VerifiedPlan& plan, const RunOptions& options) override {
    const std::int64_t num_ranks = plan->mesh().num_ranks();
    require_ranks(Backend::Gloo, num_ranks);
    ResultLayout layout(*plan, options.records_tensors);
    require_memory_for_results(layout.size_bytes());
    auto block = map_shared(layout.size_bytes());
    RunResult result("gloo", std::move(layout), std::move(block));
    const auto describe = [&](std::int64_t plan_step) { return describe_step(*plan, plan_step); };
    const RanksRun ranks = run_ranks(num_ranks, options, describe, [&](RankSession& session) {
      const auto engine = make_rank_engine(plan, session.rank(), result);
      PlanRunner(*plan, *engine, session, result).run_all();
    });
    result.connect_time_s = ranks.connect_s;
    result.run_time_s = ranks.steps_s;
    return result;
  }
};

}  // namespace

std::unique_ptr<Executor> make_gloo_executor() {
  return std::make_unique<GlooExecutor>();
}

}  // namespace hpsim
