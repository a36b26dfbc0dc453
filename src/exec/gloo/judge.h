#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "exec/gloo/failure.h"

namespace hpsim {

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

}  // namespace hpsim
