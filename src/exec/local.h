#pragma once

#include "exec/executor.h"

namespace hpsim {

/// All ranks in this process, one step of the plan after the other, sums in group order: fully
/// deterministic, up to 1,024 ranks.
class LocalExecutor : public Executor {
 public:
  [[nodiscard]] RunResult run(const VerifiedPlan& plan, const RunOptions& options) override;
};

}  // namespace hpsim
