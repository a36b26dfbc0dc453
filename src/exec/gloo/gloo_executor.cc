#include "exec/gloo/gloo_executor.h"

#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/error.h"
#include "engine/faults/engine_fault.h"
#include "engine/rank_engine.h"
#include "exec/describe_step.h"
#include "exec/gloo/plan_runner.h"
#include "exec/gloo/planted_faults.h"
#include "exec/gloo/supervisor.h"
#include "exec/limits.h"
#include "exec/shared_memory.h"
#include "plan/faults/process_faults.h"

namespace hpsim {

namespace {

/// The failure, saying too what the scenario had planted.
Error with_faults(const Error& failure, const std::string& planted) {
  std::vector<Diagnostic> diagnostics = failure.diagnostics();
  std::string& help = diagnostics.front().help;
  help += (help.empty() ? "" : "; ") + ("the scenario plants " + planted);
  return {failure.kind(), std::move(diagnostics)};
}

class GlooExecutor : public Executor {
 public:
  RunResult run(const VerifiedPlan& plan, const RunOptions& options) override {
    const std::int64_t num_ranks = plan->mesh().num_ranks();
    require_ranks(Backend::Gloo, num_ranks);
    ResultLayout layout(*plan, options.records_tensors);
    require_memory_for_results(layout.size_bytes());
    const std::vector<PlacedFault> faults = place_faults(*plan);
    require_places(*plan);
    const ExecutedPlan executed(plan);
    auto block = map_shared(layout.size_bytes());
    RunResult result("gloo", std::move(layout), std::move(block));
    const auto describe = [&](std::int64_t plan_step) { return describe_step(*plan, plan_step); };
    const auto body = [&](RankSession& session) {
      const auto engine = make_rank_engine(executed, session.rank(), result);
      PlanRunner(executed.of(session.rank()), *engine, session, result, &*plan).run_all();
    };
    RanksRun ranks;
    try {
      ranks = run_ranks(num_ranks, options, describe, body);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::RankFailure || faults.empty()) throw;
      throw with_faults(error, describe_faults(*plan, faults));
    }
    HPSIM_CHECK(faults.empty(), "the run did not fail, although {} was planted",
                describe_faults(*plan, faults));
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
