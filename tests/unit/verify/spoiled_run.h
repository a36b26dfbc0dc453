#pragma once

#include <functional>

#include "engine/rank_engine.h"
#include "plan/plan.h"
#include "trace/run_result.h"

namespace hpsim::test {

/// What a test does to the numbers of a rank: to those that it sends, once the engine has looked at
/// them, or to those that it got; and to its parameters, once they are made, or before an optimizer
/// step.
struct Spoiling {
  using Spoil = std::function<void(const Step&, Rank, const CollectiveCall&)>;
  Spoil sent;
  Spoil got;
  std::function<void(std::int64_t step, Rank, RankEngine&)> before_step;
};

/// Runs a plan as the local executor does, but spoils numbers on their way. \pre no step is_async
[[nodiscard]] RunResult run_spoiled(const VerifiedPlan& plan, const Spoiling& spoiling);

}  // namespace hpsim::test
