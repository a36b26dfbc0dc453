#pragma once

#include <cstdint>
#include <memory>

#include "engine/rank_engine.h"
#include "exec/gloo/plan_runner.h"
#include "exec/shared_memory.h"
#include "plan/verify_plan.h"

namespace hpsim::bench {

/// The engine of one rank with what it needs; each call runs one optimizer step.
class EngineSteps {
 public:
  /// `records_events`: as runs do, memory around every step of the plan.
  EngineSteps(const VerifiedPlan& plan, RankSession& session, bool records_events = true)
      : EngineSteps(plan, session, Recording{.tensors = false, .events = records_events}) {}

  EngineSteps(const VerifiedPlan& plan, RankSession& session, Recording what)
      : plan_(*plan),
        result_("bench", ResultLayout(*plan, what),
                map_shared(ResultLayout(*plan, what).size_bytes())),
        engine_(make_rank_engine(plan, session.rank(), result_)),
        runner_(plan_, *engine_, session, result_) {}

  void run_one() {
    const std::int64_t step = plan_.steps[static_cast<std::size_t>(next_)].step;
    while (next_ < runner_.num_steps() &&
           plan_.steps[static_cast<std::size_t>(next_)].step == step) {
      runner_.run_step(next_++);
    }
  }

 private:
  const Plan& plan_;
  RunResult result_;
  std::unique_ptr<RankEngine> engine_;
  PlanRunner runner_;
  std::int64_t next_ = 0;
};

}  // namespace hpsim::bench
