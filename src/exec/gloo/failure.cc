#include "exec/gloo/failure.h"

#include <fmt/format.h>
#include <string.h>

#include <algorithm>
#include <csignal>
#include <map>
#include <utility>

#include "base/check.h"
#include "base/units.h"
#include "exec/group_id.h"

namespace hpsim {

namespace {

// Ranks that all wait so long, some of them where the plan does not have them, wait for ever.
constexpr double kStuck_s = 1;

std::string signal_name(int signal) {
  const char* const name = sigabbrev_np(signal);
  return name == nullptr ? fmt::format("signal {}", signal) : fmt::format("SIG{}", name);
}

/// The judge: all functions see the same ranks.
class Judge {
 public:
  Judge(const std::vector<RankView>& ranks, const DescribeStep& describe, double timeout_s,
        std::int64_t now_ns)
      : ranks_(ranks), describe_(describe), timeout_s_(timeout_s), now_ns_(now_ns) {}

  [[nodiscard]] Judgement different_tags(bool patience_over) const;
  [[nodiscard]] std::optional<Failure> different_dims() const;
  [[nodiscard]] std::optional<Failure> own_fault() const;
  [[nodiscard]] std::optional<Failure> ended_early() const;
  [[nodiscard]] std::optional<Failure> waited_too_long() const;
  [[nodiscard]] std::optional<Failure> lost() const;
  [[nodiscard]] std::optional<Failure> stuck() const;
  [[nodiscard]] bool all_wait_since(double seconds) const;
  [[nodiscard]] bool some_left_plan() const;

 private:
  [[nodiscard]] const RankView& view(Rank rank) const {
    return ranks_[static_cast<std::size_t>(rank.value)];
  }
  [[nodiscard]] std::optional<Rank> first(const std::function<bool(const RankView&)>& holds) const;
  [[nodiscard]] static RankState activity(const RankView& rank) {
    return rank.status.state == RankState::Failed ? rank.status.failed_in : rank.status.state;
  }
  [[nodiscard]] static bool waits(RankState state) {
    return state == RankState::Connecting || state == RankState::Communicating ||
           state == RankState::Meeting;
  }
  [[nodiscard]] static bool cannot_go_on(const RankView& rank) {
    return rank.process.kind != ProcessState::Kind::Running;
  }
  [[nodiscard]] double seconds_in_state(const RankView& rank) const {
    return static_cast<double>(now_ns_ - rank.status.since_ns) * 1e-9;
  }
  [[nodiscard]] std::string doing(const RankView& rank) const;
  [[nodiscard]] static std::string fate(const RankView& rank);
  /// A collective of a group: its group, and its number within that.
  using Place = std::pair<std::uint64_t, std::int64_t>;
  [[nodiscard]] std::map<Place, EnteredCollective> all_entered(Rank rank) const;
  [[nodiscard]] std::string entered(Rank rank, const EnteredCollective& what) const;
  [[nodiscard]] std::optional<Rank> awaited_by(Rank rank) const;
  [[nodiscard]] Rank end_of_chain(Rank rank) const;
  [[nodiscard]] Rank most_awaited(const std::vector<Rank>& circle) const;
  [[nodiscard]] bool left_plan(Rank rank) const { return view(rank).status.difference >= 0; }
  [[nodiscard]] Rank cause_of_waiting(Rank waiter) const;
  [[nodiscard]] FindingCode code_of_waiting(Rank root) const;
  [[nodiscard]] std::string where_it_left(Rank root) const;
  using Camps = std::vector<std::vector<Rank>>;
  void sort_camps(Camps& camps) const;
  [[nodiscard]] FindingCode code_of(Rank root, const EnteredCollective& entered,
                                    const EnteredCollective& other) const;
  [[nodiscard]] std::vector<Rank> waiting_for(Rank root) const;
  [[nodiscard]] Failure make_failure(Rank root, FindingCode code, std::string message) const;
  [[nodiscard]] std::string what_happened(Rank root) const;

  const std::vector<RankView>& ranks_;
  const DescribeStep& describe_;
  double timeout_s_;
  std::int64_t now_ns_;
};

std::optional<Rank> Judge::first(const std::function<bool(const RankView&)>& holds) const {
  const auto found = std::find_if(ranks_.begin(), ranks_.end(), holds);
  if (found == ranks_.end()) return std::nullopt;
  return Rank{found - ranks_.begin()};
}

std::string Judge::doing(const RankView& rank) const {
  switch (activity(rank)) {
    case RankState::Starting:
      return "starting";
    case RankState::Connecting:
      return "connecting to the other ranks";
    case RankState::Computing:
      return rank.status.plan_step < 0 ? "drawing the initial parameters"
                                       : "at work on " + describe_(rank.status.plan_step);
    case RankState::Preparing:
      return "about to enter " + describe_(rank.status.plan_step);
    case RankState::Communicating:
      return "in " + describe_(rank.status.plan_step);
    case RankState::Meeting:
    case RankState::Failed:
      break;
  }
  return "done with all steps";
}

/// What befell a rank besides the root; empty if nothing did but losing others.
std::string Judge::fate(const RankView& rank) {
  if (rank.process.kind == ProcessState::Kind::Killed) {
    return fmt::format(" (killed by {})", signal_name(rank.process.code));
  }
  if (rank.process.kind == ProcessState::Kind::Stopped) {
    return fmt::format(" (stopped by {})", signal_name(rank.process.code));
  }
  if (rank.status.state != RankState::Failed) return {};
  const bool is_own = rank.status.failure != FailureKind::Transport;
  return is_own ? fmt::format(" ({})", rank.text) : std::string();
}

std::string Judge::entered(Rank rank, const EnteredCollective& what) const {
  return fmt::format("rank {} entered {} with {} -> {} elements", rank.value,
                     describe_(what.plan_step), what.elems_in, what.elems_out);
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

/// "; it entered A where the plan has B"; empty if it did not leave the plan.
std::string Judge::where_it_left(Rank root) const {
  const RankStatus& status = view(root).status;
  if (!left_plan(root)) return {};
  if (status.difference_entered < 0)
    return fmt::format("; it left out {}", describe_(status.difference_planned));
  if (status.difference_planned < 0)
    return fmt::format("; it entered {} where the plan has none",
                       describe_(status.difference_entered));
  if (status.difference_planned != status.difference_entered) {
    return fmt::format("; it entered {} where the plan has {}",
                       describe_(status.difference_entered), describe_(status.difference_planned));
  }
  return fmt::format("; it entered {} otherwise than the plan has it: {}",
                     describe_(status.difference_entered),
                     name_of(static_cast<FindingCode>(status.difference)));
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
  if (entered.plan_step != other.plan_step) return FindingCode::CommOrder;
  if (entered.elems_in != other.elems_in || entered.elems_out != other.elems_out)
    return FindingCode::CommShape;
  return left_plan(root) ? static_cast<FindingCode>(view(root).status.difference)
                         : FindingCode::CommOrder;
}

std::vector<Rank> Judge::waiting_for(Rank root) const {
  std::vector<Rank> waiting;
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(ranks_.size()); ++i) {
    if (Rank{i} != root && awaited_by(Rank{i}) == root) waiting.push_back(Rank{i});
  }
  return waiting;
}

Failure Judge::make_failure(Rank root, FindingCode code, std::string message) const {
  const std::vector<Rank> waiting = waiting_for(root);
  if (!waiting.empty()) message += fmt::format("; {} waited for it", list_ranks(waiting));

  std::map<std::string, std::vector<Rank>> others;
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(ranks_.size()); ++i) {
    if (Rank{i} == root) continue;
    others[doing(view(Rank{i})) + fate(view(Rank{i}))].push_back(Rank{i});
  }
  std::vector<std::pair<Rank, std::string>> lines;
  for (const auto& [activity, members] : others) {
    lines.emplace_back(members.front(),
                       fmt::format("{} {} {}", list_ranks(members),
                                   members.size() == 1 ? "was" : "were", activity));
  }
  std::sort(lines.begin(), lines.end());
  std::string help;
  for (const auto& [rank, line] : lines)
    help += (help.empty() ? "" : "; ") + line;
  return {root, code, std::move(message), std::move(help)};
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

std::string Judge::what_happened(Rank root) const {
  const RankView& rank = view(root);
  const std::string place = doing(rank);
  switch (rank.process.kind) {
    case ProcessState::Kind::Killed:
      return fmt::format("rank {} was killed by {} while {}", root.value,
                         signal_name(rank.process.code), place);
    case ProcessState::Kind::Exited:
      if (rank.status.state == RankState::Failed) break;
      return fmt::format("rank {} exited with status {} while {}", root.value, rank.process.code,
                         place);
    case ProcessState::Kind::Stopped:
      return fmt::format("rank {} is stopped by {} while {}", root.value,
                         signal_name(rank.process.code), place);
    case ProcessState::Kind::Running:
      break;
  }
  if (rank.status.state == RankState::Failed) {
    return fmt::format("rank {} gave up while {}: {}", root.value, place, rank.text);
  }
  return fmt::format("rank {} has been {} for {}", root.value, place,
                     format_seconds(seconds_in_state(rank)));
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

}  // namespace

std::string list_ranks(const std::vector<Rank>& ranks) {
  std::vector<std::int64_t> values;
  for (const Rank rank : ranks)
    values.push_back(rank.value);
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", fmt::join(values, ", "));
}

Judgement judge_ranks(const std::vector<RankView>& ranks, const DescribeStep& describe,
                      double timeout_s, bool patience_over, std::int64_t now_ns) {
  const Judge judge(ranks, describe, timeout_s, now_ns);
  Judgement judgement = judge.different_tags(patience_over);
  if (!judgement.failure) judgement.failure = judge.different_dims();
  if (!judgement.failure) judgement.failure = judge.own_fault();
  if (!judgement.failure) judgement.failure = judge.ended_early();
  if (!judgement.failure && judge.some_left_plan() && judge.all_wait_since(kStuck_s))
    judgement.failure = judge.stuck();
  if (!judgement.failure) judgement.failure = judge.waited_too_long();
  if (!judgement.failure) {
    const std::optional<Failure> lost = judge.lost();
    judgement.is_suspicious = judgement.is_suspicious || lost;
    if (patience_over) judgement.failure = lost;
  }
  return judgement;
}

Failure judge_stuck(const std::vector<RankView>& ranks, const DescribeStep& describe) {
  const Judge judge(ranks, describe, 0, 0);
  std::optional<Failure> failure = judge.own_fault();
  if (!failure) failure = judge.different_tags(true).failure;
  if (!failure) failure = judge.different_dims();
  if (!failure) failure = judge.stuck();
  HPSIM_CHECK(failure.has_value(), "no rank can go on, and none waits for another");
  return *std::move(failure);
}

}  // namespace hpsim
