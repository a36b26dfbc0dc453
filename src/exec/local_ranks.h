#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "engine/rank_engine.h"
#include "exec/executor.h"
#include "exec/gloo/failure.h"
#include "plan/faults/executed_plan.h"
#include "plan/plan.h"
#include "trace/planned_collectives.h"
#include "trace/run_result.h"

namespace hpsim {

/// All ranks of a run in this process. Each goes on until it needs others, in turn, a step of the
/// plan at a time; a collective is carried out when all members of its group have entered it. Where
/// ranks agree they are in lockstep.
///
/// Collectives of a group are numbered as each member enters them, as over Gloo: ranks that enter
/// different ones under one number disagree, and a rank that leaves one out is waited for.
class LocalRanks {
 public:
  /// Both must outlive the object.
  LocalRanks(const VerifiedPlan& plan, RunResult& result);

  /// \throws Error (RankFailure) if ranks disagree, or one fails of a planted fault; InternalError
  ///         if one fails of none
  void run(const RunOptions& options);

 private:
  /// The groups along mesh dims, and in which of them each rank is.
  struct Groups {
    std::vector<std::vector<Rank>> members;
    std::vector<std::int64_t> of_rank;
  };
  /// Along which dims, and in what runs.
  using GroupKey = std::pair<MeshDims, std::int64_t>;
  /// A collective of a group, until it is done with.
  struct Meeting {
    const std::vector<Rank>* members = nullptr;
    std::vector<std::optional<CollectiveCall>> calls;  ///< like members
    std::uint64_t tag = 0;                             ///< of the first that entered
    std::size_t num_entered = 0;
    std::size_t num_done = 0;  ///< members that went on from it
    bool disagrees = false;
    bool is_carried_out = false;
  };
  /// A group, and a number among its collectives.
  using Place = std::pair<std::uint64_t, std::int64_t>;
  /// Where a rank is in its step.
  enum class Stage { Begin, InCollective, Complete, Finish };
  /// A collective that a rank entered and has not gone on from.
  struct Entry {
    Place place;
    ExecutedCollective* record = nullptr;
  };
  struct State {
    std::int64_t plan_step = 0;
    Stage stage = Stage::Begin;
    std::optional<Entry> entry;                     ///< that it is in
    std::map<int, std::optional<Entry>> begun;      ///< by bucket; nothing: it entered none
    std::map<std::uint64_t, std::int64_t> entered;  ///< collectives, by group
    RankView view;
    std::optional<PlannedOrder> order;
  };

  [[nodiscard]] std::int64_t num_steps() const {
    return static_cast<std::int64_t>(plan_.steps.size());
  }
  [[nodiscard]] State& state(Rank rank) { return states_[static_cast<std::size_t>(rank.value)]; }
  [[nodiscard]] const Step& step_of(Rank rank) const {
    return plan_
        .steps[static_cast<std::size_t>(states_[static_cast<std::size_t>(rank.value)].plan_step)];
  }
  [[nodiscard]] const Groups& groups_over(const CollectiveSpec& spec);
  bool advance(Rank rank);
  bool go_on(Rank rank);
  void begin(Rank rank);
  void ask_for_more(Rank rank);
  [[nodiscard]] bool has_left(Rank rank);
  [[nodiscard]] bool completes(Rank rank);
  void finish(Rank rank);
  Entry enter(Rank rank, const CollectiveCall& call);
  void announce(Rank rank, const Place& place, std::int64_t group_size,
                const ExecutedCollective& entered);
  [[nodiscard]] bool is_complete(const Place& place);
  void leave(const Place& place);
  void carry_out(Meeting& meeting);
  void require_counts(const Meeting& meeting) const;
  void find_waiting();
  [[noreturn]] void fail(const Failure& failure) const;

  const Plan& plan_;
  ExecutedPlan executed_;
  RunResult& result_;
  std::vector<std::int64_t> planned_;  ///< plan steps with a collective
  std::vector<std::unique_ptr<RankEngine>> engines_;
  std::vector<State> states_;
  std::map<GroupKey, Groups> groups_;
  std::map<Place, Meeting> meetings_;
  bool disagrees_ = false;  ///< all of a group have entered different collectives
  std::vector<const CollectiveCall*> calls_of_group_;
};

}  // namespace hpsim
