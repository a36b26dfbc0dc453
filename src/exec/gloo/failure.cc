#include "exec/gloo/failure.h"

#include <fmt/format.h>
#include <string.h>

#include <algorithm>
#include <csignal>
#include <map>
#include <utility>

#include "base/units.h"

namespace hpsim {

namespace {

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
  [[nodiscard]] std::optional<Failure> own_fault() const;
  [[nodiscard]] std::optional<Failure> ended_early() const;
  [[nodiscard]] std::optional<Failure> waited_too_long() const;
  [[nodiscard]] std::optional<Failure> lost() const;

 private:
  [[nodiscard]] const RankView& view(Rank rank) const {
    return ranks_[static_cast<std::size_t>(rank.value)];
  }
  [[nodiscard]] std::optional<Rank> first(const std::function<bool(const RankView&)>& holds) const;
  [[nodiscard]] static RankState activity(const RankView& rank) {
    return rank.status.state == RankState::Failed ? rank.status.failed_in : rank.status.state;
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
  [[nodiscard]] std::vector<Rank> waiting_for(Rank root) const;
  [[nodiscard]] Failure make_failure(Rank root, std::string message) const;
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
  const bool failed = rank.status.state == RankState::Failed;
  if (failed && rank.status.failure == FailureKind::Own) return fmt::format(" ({})", rank.text);
  return {};
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

std::vector<Rank> Judge::waiting_for(Rank root) const {
  std::vector<Rank> waiting;
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(ranks_.size()); ++i) {
    if (Rank{i} != root && awaited_by(Rank{i}) == root) waiting.push_back(Rank{i});
  }
  return waiting;
}

Failure Judge::make_failure(Rank root, std::string message) const {
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
  return {root, std::move(message), std::move(help)};
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
    // The fewest are taken for wrong; of equals, the later ones.
    std::vector<std::vector<Rank>> camps;
    for (const auto& [tag, camp] : by_tag)
      camps.push_back(camp);
    std::sort(camps.begin(), camps.end(), [](const auto& a, const auto& b) {
      return a.size() != b.size() ? a.size() > b.size() : a.front() < b.front();
    });
    const Rank root = camps.back().front();
    const Rank other = camps.front().front();
    judgement.failure =
        make_failure(root, fmt::format("{}, but {} as collective {} of the same group",
                                       entered(root, members.at(root)),
                                       entered(other, members.at(other)), place.second));
    break;
  }
  return judgement;
}

std::optional<Failure> Judge::own_fault() const {
  std::optional<Rank> root;  // the first that failed
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(ranks_.size()); ++i) {
    const RankStatus& status = view(Rank{i}).status;
    if (status.state != RankState::Failed || status.failure != FailureKind::Own) continue;
    if (!root || status.since_ns < view(*root).status.since_ns) root = Rank{i};
  }
  if (!root) return std::nullopt;
  return make_failure(*root, fmt::format("rank {} failed while {}: {}", root->value,
                                         doing(view(*root)), view(*root).text));
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
  return make_failure(*root, what_happened(*root));
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
  const auto waits = [](RankState state) {
    return state == RankState::Connecting || state == RankState::Communicating ||
           state == RankState::Meeting;
  };
  const auto waiter = first([&](const RankView& rank) {
    return waits(rank.status.state) && seconds_in_state(rank) > timeout_s_;
  });
  if (!waiter) return std::nullopt;
  const Rank root = end_of_chain(*waiter);
  return make_failure(
      root, fmt::format("{}; the timeout is {}", what_happened(root), format_seconds(timeout_s_)));
}

std::optional<Failure> Judge::lost() const {
  const auto loser =
      first([](const RankView& rank) { return rank.status.state == RankState::Failed; });
  if (!loser) return std::nullopt;
  const Rank root = end_of_chain(*loser);
  return make_failure(root, fmt::format("{}; rank {} reports: {}", what_happened(root),
                                        loser->value, view(*loser).text));
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
  if (!judgement.failure) judgement.failure = judge.own_fault();
  if (!judgement.failure) judgement.failure = judge.ended_early();
  if (!judgement.failure) judgement.failure = judge.waited_too_long();
  if (!judgement.failure) {
    const std::optional<Failure> lost = judge.lost();
    judgement.is_suspicious = judgement.is_suspicious || lost;
    if (patience_over) judgement.failure = lost;
  }
  return judgement;
}

}  // namespace hpsim
