#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "engine/rank_engine.h"
#include "exec/gloo/collectives.h"
#include "exec/gloo/control_block.h"
#include "trace/planned_collectives.h"

namespace hpsim {

/// Ranks that communicate, as one of them sees it.
struct RankGroup {
  std::vector<Rank> members;  ///< in group order
  std::uint64_t id = 0;       ///< the same on all members, another for every other set of members
  std::int64_t sequence = 0;  ///< collectives that the group has begun
};

/// A collective that was begun, and not awaited yet.
struct BegunCollective {
  EnteredCollective what;
  std::unique_ptr<Exchange> exchange;
};

/// A rank at work in its own process: connected to all others, telling its parent what it does.
class RankSession {
 public:
  RankSession(const ControlBlock& control, Rank rank, double timeout_s);

  [[nodiscard]] Rank rank() const { return rank_; }
  [[nodiscard]] RankSlot& slot() const { return slot_; }

  /// \throws gloo::IoException if another rank did not come in time
  void connect();
  /// From here on this rank computes what step `plan_step` says; -1 before the first.
  void enter_step(std::int64_t plan_step);
  /// The same for a step with a collective, which the rank has yet to enter.
  void prepare_collective(std::int64_t plan_step);
  /// Carries out the collective of the step, and returns whether a sum rounded. Of one with counts,
  /// every member tells, even one that sends and gets nothing: the group counts its collectives.
  /// \throws as GlooCollectives::run, announce_counts
  [[nodiscard]] bool communicate(const CollectiveCall& call, RankGroup& group, std::uint64_t tag);
  /// Begins an all_gather and returns at once, see GlooCollectives::begin: for whoever watches, the
  /// rank has entered it, and computes. \throws as GlooCollectives::begin
  [[nodiscard]] BegunCollective begin(const CollectiveCall& call, RankGroup& group,
                                      std::uint64_t tag);
  /// Waits for it: the rank is in that very collective again. \throws as GlooCollectives::run
  void complete(BegunCollective& begun);
  /// Waits until all ranks have come here. \throws gloo::IoException after the timeout
  void meet();
  /// Tells with the next collective, or at the end, where the rank left the plan.
  void note_difference(const std::optional<PlanDifference>& difference);
  /// Tells why this rank is about to end.
  void fail(FailureKind kind, std::string_view text);

 private:
  void enter(RankState state);
  EnteredCollective announce(const CollectiveCall& call, RankGroup& group, std::uint64_t tag);
  void enter_collective(const EnteredCollective& entered);

  const ControlBlock& control_;
  Rank rank_;
  double timeout_s_;
  RankSlot& slot_;
  RankStatus status_;
  std::optional<GlooCollectives> collectives_;
};

}  // namespace hpsim
