#include "exec/gloo/judge.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>

#include "base/units.h"
#include "exec/group_id.h"

namespace hpsim {

std::optional<Rank> Judge::first(const std::function<bool(const RankView&)>& holds) const {
  const auto found = std::find_if(ranks_.begin(), ranks_.end(), holds);
  if (found == ranks_.end()) return std::nullopt;
  return Rank{found - ranks_.begin()};
}

std::map<Judge::Place, EnteredCollective> Judge::all_entered(Rank rank) const {
  std::map<Place, EnteredCollective> all;
  for (const EnteredCollective& each : view(rank).entered)
    all.emplace(Place{each.group, each.sequence}, each);
  const RankStatus& status = view(rank).status;
  if (status.sequence >= 0) {
    all.emplace(Place{status.group, status.sequence},
                EnteredCollective{status.group, status.group_size, status.sequence, status.tag,
                                  status.plan_step, status.elems_in, status.elems_out});
  }
  return all;
}

std::optional<Rank> Judge::awaited_by(Rank rank) const {
  const RankView& waiter = view(rank);
  switch (activity(waiter)) {
    case RankState::Communicating:
      if (waiter.waiting_for < 0) return std::nullopt;
      return Rank{waiter.waiting_for};
    case RankState::Connecting:
    case RankState::Meeting: {
      // Any rank that is not as far; best one that cannot get there.
      const auto behind = [&](const RankView& other) { return activity(other) < activity(waiter); };
      const auto stuck =
          first([&](const RankView& other) { return behind(other) && cannot_go_on(other); });
      return stuck ? stuck : first(behind);
    }
    default:
      return std::nullopt;
  }
}

Rank Judge::end_of_chain(Rank rank) const {
  std::vector<Rank> chain;
  for (;;) {
    if (cannot_go_on(view(rank)) && view(rank).status.failure != FailureKind::Transport) {
      return rank;
    }
    const auto seen = std::find(chain.begin(), chain.end(), rank);
    if (seen != chain.end()) return most_awaited({seen, chain.end()});
    chain.push_back(rank);
    const std::optional<Rank> next = awaited_by(rank);
    if (!next) return rank;
    rank = *next;
  }
}

Rank Judge::most_awaited(const std::vector<Rank>& circle) const {
  return *std::max_element(circle.begin(), circle.end(), [&](Rank a, Rank b) {
    return waiting_for(a).size() < waiting_for(b).size();
  });
}

/// Where the chain from `waiter` ends, or, if that rank waits too, one that left the plan where
/// others did not.
Rank Judge::cause_of_waiting(Rank waiter) const {
  const Rank end = end_of_chain(waiter);
  if (left_plan(end) || cannot_go_on(view(end)) || !waits(activity(view(end)))) return end;
  const auto leaver = first([](const RankView& rank) { return rank.status.difference >= 0; });
  return leaver ? *leaver : end;
}

FindingCode Judge::code_of_waiting(Rank root) const {
  const RankView& rank = view(root);
  if (rank.process.ended() || rank.status.state == RankState::Failed) return FindingCode::RankDied;
  return left_plan(root) && waits(activity(rank)) ? static_cast<FindingCode>(rank.status.difference)
                                                  : FindingCode::Hang;
}

/// Those that are taken for right first: the most that kept to the plan, of equals the earlier.
void Judge::sort_camps(Camps& camps) const {
  const auto has_left = [&](const std::vector<Rank>& camp) {
    return std::any_of(camp.begin(), camp.end(), [&](Rank rank) { return left_plan(rank); });
  };
  std::sort(camps.begin(), camps.end(), [&](const auto& a, const auto& b) {
    if (has_left(a) != has_left(b)) return has_left(b);
    return a.size() != b.size() ? a.size() > b.size() : a.front() < b.front();
  });
}

FindingCode Judge::code_of(Rank root, const EnteredCollective& entered,
                           const EnteredCollective& other) const {
  if (left_plan(root)) return static_cast<FindingCode>(view(root).status.difference);
  if (entered.plan_step != other.plan_step) return FindingCode::CommOrder;
  const bool has_same_elems =
      entered.elems_in == other.elems_in && entered.elems_out == other.elems_out;
  return has_same_elems ? FindingCode::CommOrder : FindingCode::CommShape;
}

std::vector<Rank> Judge::waiting_for(Rank root) const {
  std::vector<Rank> waiting;
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(ranks_.size()); ++i) {
    if (Rank{i} != root && awaited_by(Rank{i}) == root) waiting.push_back(Rank{i});
  }
  return waiting;
}

Judgement Judge::different_tags(bool patience_over) const {
  std::map<Place, std::map<Rank, EnteredCollective>> entered_together;
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(ranks_.size()); ++i) {
    for (const auto& [place, what] : all_entered(Rank{i}))
      entered_together[place].emplace(Rank{i}, what);
  }
  Judgement judgement;
  for (const auto& [place, members] : entered_together) {
    std::map<std::uint64_t, std::vector<Rank>> by_tag;
    for (const auto& [rank, what] : members)
      by_tag[what.tag].push_back(rank);
    if (by_tag.size() < 2) continue;
    judgement.is_suspicious = true;
    const auto num_members = static_cast<std::int64_t>(members.size());
    if (num_members < members.begin()->second.group_size && !patience_over) continue;
    Camps camps;
    for (const auto& [tag, camp] : by_tag)
      camps.push_back(camp);
    sort_camps(camps);
    const Rank root = camps.back().front();
    const Rank other = camps.front().front();
    judgement.failure = make_failure(root, code_of(root, members.at(root), members.at(other)),
                                     fmt::format("{}, but {} as collective {} of the same group",
                                                 entered(root, members.at(root)),
                                                 entered(other, members.at(other)), place.second));
    break;
  }
  return judgement;
}

std::optional<Failure> Judge::different_dims() const {
  std::map<std::int64_t, std::map<std::uint64_t, std::vector<Rank>>> entered_in;
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(ranks_.size()); ++i) {
    std::map<std::int64_t, std::uint64_t> dims_in;  // of the rank, by plan step
    for (const auto& [place, what] : all_entered(Rank{i}))
      dims_in[what.plan_step] = dims_of_group(what.group);
    for (const auto& [plan_step, dims] : dims_in)
      entered_in[plan_step][dims].push_back(Rank{i});
  }
  for (const auto& [plan_step, by_dims] : entered_in) {
    if (by_dims.size() < 2) continue;
    Camps camps;
    for (const auto& [dims, camp] : by_dims)
      camps.push_back(camp);
    sort_camps(camps);
    const Rank root = camps.back().front();
    return make_failure(root, FindingCode::CommGroup,
                        fmt::format("rank {} entered {} in another group than {}: not along the "
                                    "same mesh dims",
                                    root.value, describe_(plan_step), list_ranks(camps.front())));
  }
  return std::nullopt;
}

std::optional<Failure> Judge::own_fault() const {
  std::optional<Rank> root;  // the first that failed
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(ranks_.size()); ++i) {
    const RankStatus& status = view(Rank{i}).status;
    if (status.state != RankState::Failed || status.failure == FailureKind::Transport) continue;
    if (!root || status.since_ns < view(*root).status.since_ns) root = Rank{i};
  }
  if (!root) return std::nullopt;
  const bool is_of_counts = view(*root).status.failure == FailureKind::Counts;
  return make_failure(*root, is_of_counts ? FindingCode::CommShape : FindingCode::RankDied,
                      fmt::format("rank {} failed while {}: {}", root->value, doing(view(*root)),
                                  view(*root).text));
}

std::optional<Failure> Judge::ended_early() const {
  const auto ended = [](const RankView& rank) {
    return rank.process.ended() && rank.status.state != RankState::Failed;
  };
  // Gloo may crash where a peer is lost while ranks still connect: then that peer is the root.
  const auto crashed_connecting = [](const RankView& rank) {
    return rank.process.kind == ProcessState::Kind::Killed &&
           (rank.process.code == SIGSEGV || rank.process.code == SIGABRT) &&
           rank.status.state == RankState::Connecting;
  };
  auto root = first([&](const RankView& rank) { return ended(rank) && !crashed_connecting(rank); });
  if (!root) root = first(ended);
  if (!root) return std::nullopt;
  return make_failure(*root, FindingCode::RankDied, what_happened(*root));
}

std::optional<Failure> Judge::waited_too_long() const {
  const auto waiter = first([&](const RankView& rank) {
    return waits(rank.status.state) && seconds_in_state(rank) > timeout_s_;
  });
  if (!waiter) return std::nullopt;
  const Rank root = cause_of_waiting(*waiter);
  return make_failure(root, code_of_waiting(root),
                      fmt::format("{}; the timeout is {}{}", what_happened(root),
                                  format_seconds(timeout_s_), where_it_left(root)));
}

std::optional<Failure> Judge::lost() const {
  const auto loser =
      first([](const RankView& rank) { return rank.status.state == RankState::Failed; });
  if (!loser) return std::nullopt;
  const Rank root = end_of_chain(*loser);
  return make_failure(
      root, code_of_waiting(root),
      fmt::format("{}; rank {} reports: {}", what_happened(root), loser->value, view(*loser).text));
}

bool Judge::all_wait_since(double seconds) const {
  return std::all_of(ranks_.begin(), ranks_.end(), [&](const RankView& rank) {
    return waits(rank.status.state) && seconds_in_state(rank) > seconds;
  });
}

/// Some, and others did not.
bool Judge::some_left_plan() const {
  const auto num_left = std::count_if(ranks_.begin(), ranks_.end(), [](const RankView& rank) {
    return rank.status.difference >= 0;
  });
  return num_left > 0 && num_left < static_cast<std::ptrdiff_t>(ranks_.size());
}

std::optional<Failure> Judge::stuck() const {
  const auto waiter =
      first([](const RankView& rank) { return rank.status.state == RankState::Communicating; });
  if (!waiter) return std::nullopt;
  const Rank root = cause_of_waiting(*waiter);
  const std::vector<Rank> waiting = waiting_for(root);
  const Rank other = waiting.empty() ? *waiter : waiting.front();
  return make_failure(
      root, code_of_waiting(root),
      fmt::format("rank {} never entered {}: it was {}{}", root.value,
                  describe_(view(other).status.plan_step), doing(view(root)), where_it_left(root)));
}

}  // namespace hpsim
