// What a judge says of ranks.

#include <fmt/format.h>
#include <string.h>

#include <algorithm>

#include "base/units.h"
#include "exec/gloo/judge.h"

namespace hpsim {
namespace {

std::string signal_name(int signal) {
  const char* const name = sigabbrev_np(signal);
  return name == nullptr ? fmt::format("signal {}", signal) : fmt::format("SIG{}", name);
}

}  // namespace

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

}  // namespace hpsim
