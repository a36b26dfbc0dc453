#include "exec/gloo/failure.h"

#include <fmt/format.h>

#include <utility>

#include "base/check.h"
#include "exec/gloo/judge.h"

namespace hpsim {
namespace {

// Ranks that all wait so long, some of them where the plan does not have them, wait for ever.
constexpr double kStuck_s = 1;

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
  if (auto failure = judge.different_dims()) judgement.failure = std::move(failure);
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
  if (!failure) failure = judge.different_dims();
  if (!failure) failure = judge.different_tags(true).failure;
  if (!failure) failure = judge.stuck();
  HPSIM_CHECK(failure.has_value(), "no rank can go on, and none waits for another");
  return *std::move(failure);
}

}  // namespace hpsim
