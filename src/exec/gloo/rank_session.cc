#include "exec/gloo/rank_session.h"

#include <gloo/common/error.h>

#include "base/check.h"
#include "exec/gloo/announced_counts.h"
#include "exec/gloo/connect.h"
#include "exec/shared_memory.h"

namespace hpsim {

namespace {

/// Ranks that enter the same collectives in another order exchange nothing, as those that enter
/// other ones: by tag alone, two that were begun would meet.
std::uint64_t tag_in_order(const EnteredCollective& entered) {
  return entered.tag + static_cast<std::uint64_t>(entered.sequence) * 0xD6E8FEB86659FD93;
}

}  // namespace

RankSession::RankSession(const ControlBlock& control, Rank rank, double timeout_s)
    : control_(control), rank_(rank), timeout_s_(timeout_s), slot_(control.slot(rank)) {
  enter(RankState::Starting);
}

void RankSession::enter(RankState state) {
  status_.state = state;
  status_.since_ns = now_ns();
  slot_.write(status_);
}

void RankSession::connect() {
  enter(RankState::Connecting);
  collectives_.emplace(connect_mesh(control_, rank_, timeout_s_), rank_, slot_.waiting_for);
  slot_.connected_ns.store(now_ns());
  enter(RankState::Computing);
}

void RankSession::enter_step(std::int64_t plan_step) {
  status_.plan_step = plan_step;
  enter(RankState::Computing);
}

void RankSession::prepare_collective(std::int64_t plan_step) {
  status_.plan_step = plan_step;
  enter(RankState::Preparing);
}

EnteredCollective RankSession::announce(const CollectiveCall& call, RankGroup& group,
                                        std::uint64_t tag) {
  HPSIM_CHECK(collectives_.has_value(), "rank {} is not connected", rank_.value);
  const EnteredCollective entered{.group = group.id,
                                  .group_size = static_cast<std::int64_t>(group.members.size()),
                                  .sequence = group.sequence++,
                                  .tag = tag,
                                  .plan_step = call.plan_step,
                                  .elems_in = call.elems_in,
                                  .elems_out = call.elems_out};
  slot_.remember(entered);
  enter_collective(entered);
  return entered;
}

void RankSession::enter_collective(const EnteredCollective& entered) {
  status_.plan_step = entered.plan_step;
  status_.group = entered.group;
  status_.group_size = entered.group_size;
  status_.sequence = entered.sequence;
  status_.tag = entered.tag;
  status_.elems_in = entered.elems_in;
  status_.elems_out = entered.elems_out;
  enter(RankState::Communicating);
}

bool RankSession::communicate(const CollectiveCall& call, RankGroup& group, std::uint64_t tag) {
  const EnteredCollective entered = announce(call, group, tag);
  if (!call.counts_in.empty()) announce_counts(control_, call, group.members, rank_, tag);
  const bool rounded = collectives_->run(call, group.members, tag_in_order(entered));
  enter(RankState::Computing);
  return rounded;
}

BegunCollective RankSession::begin(const CollectiveCall& call, RankGroup& group,
                                   std::uint64_t tag) {
  const EnteredCollective entered = announce(call, group, tag);
  BegunCollective begun{entered, collectives_->begin(call, group.members, tag_in_order(entered))};
  enter(RankState::Computing);
  return begun;
}

void RankSession::complete(BegunCollective& begun) {
  enter_collective(begun.what);
  GlooCollectives::complete(*begun.exchange);
  enter(RankState::Computing);
}

void RankSession::meet() {
  enter(RankState::Meeting);
  const Deadline deadline = deadline_after(timeout_s_);
  control_.met().fetch_add(1, std::memory_order_acq_rel);
  wake_all(control_.met());
  while (!control_.all_met()) {
    const std::uint32_t met = control_.met().load(std::memory_order_acquire);
    if (control_.all_met()) return;
    if (!wait_while_equal(control_.met(), met, deadline)) {
      throw gloo::IoException("the other ranks did not finish in time");
    }
  }
}

void RankSession::note_difference(const std::optional<PlanDifference>& difference) {
  if (!difference) return;
  status_.difference = static_cast<std::int64_t>(difference->code);
  status_.difference_planned = difference->planned;
  status_.difference_entered = difference->entered;
}

void RankSession::fail(FailureKind kind, std::string_view text) {
  slot_.write_text(text);
  status_.failed_in = status_.state;
  status_.failure = kind;
  enter(RankState::Failed);
}

}  // namespace hpsim
