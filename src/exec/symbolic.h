#pragma once

#include "exec/executor.h"

namespace hpsim {

/// Runs nothing: what every rank would hold, and how much memory it would use, as the plan says.
/// Coverage, sync sets and order were proved by verify_plan. The result has no numbers.
class SymbolicExecutor : public Executor {
 public:
  [[nodiscard]] RunResult run(const VerifiedPlan& plan, const RunOptions& options) override;
};

}  // namespace hpsim
