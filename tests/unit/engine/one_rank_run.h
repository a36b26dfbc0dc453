#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "engine/rank_engine.h"
#include "one_rank.h"
#include "plan/verify_plan.h"

namespace hpsim {

/// A whole training of a plan for one rank, in float64, and what it recorded.
struct OneRankRun {
  explicit OneRankRun(Scenario scenario)
      : plan(verify_plan(build_plan(in_float64(std::move(scenario))))), result(result_for(*plan)) {
    const std::unique_ptr<RankEngine> engine = make_rank_engine(plan, Rank{0}, result);
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(plan->steps.size()); ++i) {
      REQUIRE_FALSE(engine->begin(i).has_value());
      engine->finish(i);
    }
  }

  static Scenario in_float64(Scenario scenario) {
    scenario.numerics.dtype = DType::Float64;
    return scenario;
  }
  [[nodiscard]] std::vector<double> values(const TensorView& view) const {
    std::vector<double> all;
    for (std::int64_t i = 0; i < view.elems; ++i)
      all.push_back(view.at(i));
    return all;
  }
  [[nodiscard]] std::vector<double> parameter(int p, std::int64_t time) const {
    return values(result.parameter(Rank{0}, time, p));
  }
  [[nodiscard]] std::vector<double> gradient(int p, std::int64_t step = 0) const {
    return values(result.gradient(Rank{0}, step, p));
  }
  [[nodiscard]] std::vector<double> state(int p, std::int64_t step, int state) const {
    return values(result.state(Rank{0}, step, state, p));
  }
  [[nodiscard]] double loss(std::int64_t step = 0) const { return result.losses(Rank{0}, step)[0]; }

  VerifiedPlan plan;
  RunResult result;
};

}  // namespace hpsim
