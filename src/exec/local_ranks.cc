#include "exec/local_ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "base/check.h"
#include "base/error.h"
#include "engine/executed_call.h"
#include "exec/describe_step.h"
#include "exec/group_id.h"
#include "exec/local_collectives.h"
#include "exec/slots.h"
#include "mesh/group.h"

namespace hpsim {
namespace {

/// The last collectives that a rank entered, as many as a process of its own tells.
constexpr std::size_t kRemembered = 16;

}  // namespace

LocalRanks::LocalRanks(const VerifiedPlan& plan, RunResult& result)
    : plan_(*plan), executed_(plan), result_(result), planned_(collective_steps(*plan)) {
  SharedParameters shared(*plan);
  const std::int64_t num_ranks = plan_.mesh().num_ranks();
  states_.resize(static_cast<std::size_t>(num_ranks));
  for (std::int64_t rank = 0; rank < num_ranks; ++rank) {
    engines_.push_back(make_rank_engine(executed_, Rank{rank}, result, &shared));
    state(Rank{rank}).order.emplace(plan_, planned_, Rank{rank});
    state(Rank{rank}).view.status.state = RankState::Computing;
  }
}

void LocalRanks::run(const RunOptions& options) {
  const std::int64_t num_ranks = plan_.mesh().num_ranks();
  std::int64_t told = -1;
  for (bool moves = true; moves && !disagrees_;) {
    moves = false;
    for (std::int64_t rank = 0; rank < num_ranks; ++rank)
      moves = advance(Rank{rank}) || moves;
    const std::int64_t plan_step = state(Rank{num_ranks - 1}).plan_step;
    if (!options.on_progress || plan_step == told || plan_step == num_steps()) continue;
    told = plan_step;
    options.on_progress(plan_.steps[static_cast<std::size_t>(plan_step)].step);
  }
  const bool all_are_done = std::all_of(states_.begin(), states_.end(), [&](const State& each) {
    return each.plan_step == num_steps();
  });
  if (all_are_done) return;
  find_waiting();
  std::vector<RankView> views;
  for (const State& each : states_)
    views.push_back(each.view);
  fail(judge_stuck(views, [&](std::int64_t step) { return describe_step(plan_, step); }));
}

/// A rank that fails of what was planted is told of as one whose process ended.
bool LocalRanks::advance(Rank rank) {
  if (plan_.scenario.faults.empty()) return go_on(rank);
  try {
    return go_on(rank);
  } catch (const InternalError& fault) {
    fail({.root = rank,
          .code = FindingCode::RankDied,
          .message = fmt::format("rank {} failed in {}: {}", rank.value,
                                 describe_step(plan_, state(rank).plan_step), fault.what()),
          .help = {}});
  }
}

/// At most to the end of the step. Whether the rank came any farther.
bool LocalRanks::go_on(Rank rank) {
  State& at = state(rank);
  if (at.plan_step == num_steps()) return false;
  bool moves = false;
  if (at.stage == Stage::Begin) {
    begin(rank);
    moves = true;
  }
  while (at.stage == Stage::InCollective) {
    if (!has_left(rank)) return moves;
    moves = true;
    ask_for_more(rank);
  }
  if (at.stage == Stage::Complete) {
    if (!completes(rank)) return moves;
    at.stage = Stage::Finish;
  }
  finish(rank);
  return true;
}

void LocalRanks::begin(Rank rank) {
  State& at = state(rank);
  const Step& step = step_of(rank);
  const auto call = engines_[static_cast<std::size_t>(rank.value)]->begin(at.plan_step);
  at.view.status.plan_step = at.plan_step;
  if (step.is_async) {
    std::optional<Entry> entry;
    if (call) entry = enter(rank, *call);
    at.view.status.state = RankState::Computing;
    const bool is_new = at.begun.emplace(step.bucket, entry).second;
    HPSIM_CHECK(is_new, "bucket {} is unsharded twice", step.bucket);
    at.stage = Stage::Finish;
  } else if (call) {
    at.entry = enter(rank, *call);
    at.entry->record->completed_in = call->plan_step;
    at.stage = Stage::InCollective;
  } else {
    ask_for_more(rank);
  }
}

void LocalRanks::ask_for_more(Rank rank) {
  State& at = state(rank);
  const auto call = engines_[static_cast<std::size_t>(rank.value)]->more(at.plan_step);
  if (call) {
    at.entry = enter(rank, *call);
    at.entry->record->completed_in = call->plan_step;
    at.stage = Stage::InCollective;
    return;
  }
  at.stage = step_of(rank).kind == StepKind::WaitUnshard ? Stage::Complete : Stage::Finish;
}

/// Whether the collective that the rank is in is done.
bool LocalRanks::has_left(Rank rank) {
  State& at = state(rank);
  if (!is_complete(at.entry->place)) return false;
  leave(at.entry->place);
  at.entry.reset();
  at.view.status.state = RankState::Computing;
  return true;
}

/// Whether what the rank began for its bucket is done. Until a member waits for it, nothing is
/// moved: what would use it too early finds nothing.
bool LocalRanks::completes(Rank rank) {
  State& at = state(rank);
  const auto begun = at.begun.find(step_of(rank).bucket);
  HPSIM_CHECK(begun != at.begun.end(), "no unshard of bucket {} is begun", step_of(rank).bucket);
  if (begun->second) {
    const Entry& entry = *begun->second;
    at.view.status.state = RankState::Communicating;
    at.view.status.plan_step = entry.record->plan_step;
    if (!is_complete(entry.place)) return false;
    leave(entry.place);
    entry.record->completed_in = at.plan_step;
    at.view.status.state = RankState::Computing;
  }
  at.begun.erase(begun);
  return true;
}

void LocalRanks::finish(Rank rank) {
  State& at = state(rank);
  engines_[static_cast<std::size_t>(rank.value)]->finish(at.plan_step);
  at.stage = Stage::Begin;
  if (++at.plan_step < num_steps()) return;
  at.order->end();
  at.view.status.state = RankState::Meeting;
}

const LocalRanks::Groups& LocalRanks::groups_over(const CollectiveSpec& spec) {
  const auto [it, is_new] = groups_.try_emplace({spec.dims, spec.consecutive});
  Groups& groups = it->second;
  if (!is_new) return groups;
  groups.members = groups_along(plan_.mesh(), spec.dims, spec.consecutive);
  groups.of_rank.resize(states_.size());
  for (std::size_t g = 0; g < groups.members.size(); ++g) {
    for (const Rank member : groups.members[g])
      groups.of_rank[static_cast<std::size_t>(member.value)] = static_cast<std::int64_t>(g);
  }
  return groups;
}

LocalRanks::Entry LocalRanks::enter(Rank rank, const CollectiveCall& call) {
  State& at = state(rank);
  const Plan& own = executed_.of(rank);
  const CollectiveSpec& spec =
      own.steps.at(static_cast<std::size_t>(call.plan_step)).collective.value();
  const Groups& groups = groups_over(spec);
  const std::int64_t index = groups.of_rank[static_cast<std::size_t>(rank.value)];
  const std::vector<Rank>& members = groups.members[static_cast<std::size_t>(index)];

  RankRecord& record = result_.rank_record(rank);
  HPSIM_CHECK(record.num_collectives < result_.layout().max_collectives(),
              "more collectives than the plan has: {}", record.num_collectives + 1);
  ExecutedCollective& executed = result_.executed(rank)[record.num_collectives++];
  executed = executed_call(own, call, index);
  at.order->enter(executed);

  const std::uint64_t id = group_id(spec.dims, spec.consecutive, index);
  const Place place{id, at.entered[id]++};
  announce(rank, place, static_cast<std::int64_t>(members.size()), executed);
  Meeting& meeting = meetings_[place];
  if (meeting.num_entered == 0) {
    meeting.members = &members;
    meeting.calls.resize(members.size());
    meeting.tag = executed.tag;
  }
  meeting.disagrees = meeting.disagrees || executed.tag != meeting.tag;
  const auto member = std::find(members.begin(), members.end(), rank) - members.begin();
  meeting.calls[static_cast<std::size_t>(member)] = call;
  if (++meeting.num_entered == members.size() && meeting.disagrees) disagrees_ = true;
  return {place, &executed};
}

/// What the judge of failures is told, as a rank over Gloo tells it.
void LocalRanks::announce(Rank rank, const Place& place, std::int64_t group_size,
                          const ExecutedCollective& entered) {
  RankView& view = state(rank).view;
  const EnteredCollective what{.group = place.first,
                               .group_size = group_size,
                               .sequence = place.second,
                               .tag = entered.tag,
                               .plan_step = entered.plan_step,
                               .elems_in = entered.elems_in,
                               .elems_out = entered.elems_out};
  if (view.entered.size() == kRemembered) view.entered.erase(view.entered.begin());
  view.entered.push_back(what);
  view.status.state = RankState::Communicating;
  view.status.plan_step = what.plan_step;
}

/// Carries it out, if that is not done yet and all members have entered the same.
bool LocalRanks::is_complete(const Place& place) {
  Meeting& meeting = meetings_.at(place);
  if (meeting.num_entered < meeting.members->size() || meeting.disagrees) return false;
  if (!std::exchange(meeting.is_carried_out, true)) carry_out(meeting);
  return true;
}

void LocalRanks::leave(const Place& place) {
  const auto meeting = meetings_.find(place);
  if (++meeting->second.num_done == meeting->second.members->size()) meetings_.erase(meeting);
}

void LocalRanks::carry_out(Meeting& meeting) {
  calls_of_group_.clear();
  for (const auto& call : meeting.calls)
    calls_of_group_.push_back(&*call);
  // What TP leaves of a bucket, or what is routed, may be nothing: then there is nothing to send.
  const auto is_empty = [](const CollectiveCall* call) {
    return call->elems_in == 0 && call->elems_out == 0;
  };
  if (std::all_of(calls_of_group_.begin(), calls_of_group_.end(), is_empty)) return;
  require_counts(meeting);
  const std::vector<std::size_t> rounded = exchange_in_process(calls_of_group_);
  if (!plan_.scenario.is_exact()) return;
  for (const std::size_t member : rounded) {
    const Rank rank = (*meeting.members)[member];
    result_.step_record(rank, step_of(rank).step).inexact = 1;
  }
}

/// \throws Error (RankFailure) if one sends another more or less than that one expects
void LocalRanks::require_counts(const Meeting& meeting) const {
  if (calls_of_group_[0]->counts_in.empty()) return;
  const std::vector<Rank>& members = *meeting.members;
  for (std::size_t from = 0; from < members.size(); ++from) {
    for (std::size_t to = 0; to < members.size(); ++to) {
      const std::int64_t sent = calls_of_group_[from]->counts_in[to];
      const std::int64_t expected = calls_of_group_[to]->counts_out[from];
      if (sent == expected) continue;
      fail({.root = members[from],
            .code = FindingCode::CommShape,
            .message = fmt::format("{}: rank {} sends {} elements to rank {}, which expects {}",
                                   describe_step(plan_, calls_of_group_[from]->plan_step),
                                   members[from].value, sent, members[to].value, expected),
            .help = {}});
    }
  }
}

/// Whom each rank waits for, and where it left the plan.
void LocalRanks::find_waiting() {
  for (State& at : states_) {
    if (const auto& difference = at.order->difference()) {
      at.view.status.difference = static_cast<std::int64_t>(difference->code);
      at.view.status.difference_planned = difference->planned;
      at.view.status.difference_entered = difference->entered;
    }
    if (at.view.status.state != RankState::Communicating) continue;
    const std::optional<Entry>& entry =
        at.entry ? at.entry
                 : at.begun.at(plan_.steps[static_cast<std::size_t>(at.plan_step)].bucket);
    const Meeting& meeting = meetings_.at(entry->place);
    for (std::size_t i = 0; i < meeting.calls.size() && at.view.waiting_for < 0; ++i) {
      if (!meeting.calls[i]) at.view.waiting_for = (*meeting.members)[i].value;
    }
  }
}

void LocalRanks::fail(const Failure& failure) const {
  throw Error(ErrorKind::RankFailure, {Diagnostic{.message = failure.message,
                                                  .help = failure.help,
                                                  .code = std::string(name_of(failure.code))}});
}

}  // namespace hpsim
