#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "engine/rank_engine.h"
#include "exec/gloo/planted_faults.h"
#include "exec/gloo/rank_session.h"
#include "plan/plan.h"
#include "trace/planned_collectives.h"
#include "trace/run_result.h"

namespace hpsim {

/// Drives the engine of one rank through the plan, carrying out over the session what it asks for
/// and recording what was carried out. The faults of the scenario befall the rank on the way.
class PlanRunner {
 public:
  /// `verified`: the plan that all ranks should carry out; null: `plan`, the one that this rank
  /// does.
  PlanRunner(const Plan& plan, RankEngine& engine, RankSession& session, RunResult& result,
             const Plan* verified = nullptr);

  [[nodiscard]] std::int64_t num_steps() const {
    return static_cast<std::int64_t>(plan_.steps.size());
  }
  /// \throws gloo::IoException if another rank is lost or late; std::runtime_error by a fault
  void run_step(std::int64_t plan_step);
  /// All steps, with their times in the session's slot.
  void run_all();

 private:
  struct Member {
    RankGroup group;
    std::int64_t group_index = 0;  ///< of this rank's group among those along the same dims
  };
  /// What an Unshard that is_async has begun.
  struct Begun {
    std::optional<BegunCollective> collective;  ///< none: there is nothing to send
    ExecutedCollective* record = nullptr;       ///< null: the rank entered none
  };
  [[nodiscard]] Member& member_of(const CollectiveSpec& spec);
  [[nodiscard]] bool is_sent(const CollectiveCall& call) const;
  ExecutedCollective& record(const CollectiveCall& call, const Member& member);
  void carry_out(const Step& step, const CollectiveCall& call);
  void begin_unshard(const Step& step, const std::optional<CollectiveCall>& call);
  void complete(int bucket, std::int64_t plan_step);

  const Plan& plan_;
  RankEngine& engine_;
  RankSession& session_;
  RunResult& result_;
  PlantedFaults faults_;
  std::vector<std::int64_t> planned_;  ///< plan steps with a collective
  PlannedOrder order_;
  std::map<std::pair<MeshDims, std::int64_t>, Member> members_;  ///< by dims and consecutive
  std::map<int, Begun> begun_;                                   ///< by bucket
};

}  // namespace hpsim
