#include "exec/gloo/failure.h"

#include <algorithm>
#include <csignal>
#include <functional>
#include <string>
#include <vector>

#include "exec/group_id.h"
#include "support/catch.h"

namespace hpsim {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;

const DescribeStep kDescribe = [](std::int64_t step) { return "step " + std::to_string(step); };

/// `count` ranks in collective `sequence` of one group, each waiting for the next.
std::vector<RankView> in_collective(std::int64_t count, std::int64_t since_ns = 0) {
  std::vector<RankView> ranks(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) {
    RankView& rank = ranks[static_cast<std::size_t>(i)];
    rank.status.state = RankState::Communicating;
    rank.status.plan_step = 5;
    rank.status.group = 9;
    rank.status.group_size = count;
    rank.status.sequence = 3;
    rank.status.tag = 77;
    rank.status.since_ns = since_ns;
    rank.waiting_for = (i + 1) % count;
  }
  return ranks;
}

Judgement judgement_of(const std::vector<RankView>& ranks, double now_s = 0,
                       bool patience_over = false) {
  constexpr double kTimeout_s = 2;
  return judge_ranks(ranks, kDescribe, kTimeout_s, patience_over,
                     static_cast<std::int64_t>(now_s * 1e9));
}

std::optional<Failure> judge(const std::vector<RankView>& ranks, double now_s = 0,
                             bool patience_over = false) {
  return judgement_of(ranks, now_s, patience_over).failure;
}

using Catch::Matchers::Contains;

TEST_CASE("ranks that wait within the timeout are no failure") {
  CHECK_FALSE(judge(in_collective(4), 1.9));
  CHECK_FALSE(judgement_of(in_collective(4), 1.9).is_suspicious);
}

TEST_CASE("different tags are judged by the majority, once all have come or patience is over") {
  auto ranks =
      in_collective(4);  // rank 0 differs; ranks 2 and 3 are still at the collective before
  ranks[0].status.tag = 78;
  ranks[2].status.sequence = 2;
  ranks[3].status.sequence = 2;
  CHECK_FALSE(judge(ranks));
  CHECK(judgement_of(ranks).is_suspicious);
  REQUIRE(judge(ranks, 0, true));
  CHECK(judge(ranks, 0, true)->root == Rank{1});  // one against one: the later
  ranks[2].status.sequence = 3;
  ranks[3].status.sequence = 3;
  REQUIRE(judge(ranks));
  CHECK(judge(ranks)->root == Rank{0});
}

TEST_CASE("different tags at the same place are a failure at once, and name both") {
  auto ranks = in_collective(4);
  ranks[2].status.tag = 78;
  ranks[2].status.plan_step = 6;
  ranks[2].status.elems_in = 10;
  ranks[2].status.elems_out = 40;
  const auto failure = judge(ranks);
  REQUIRE(failure);
  CHECK(failure->root == Rank{2});
  CHECK_THAT(failure->message, Contains("rank 2 entered step 6 with 10 -> 40 elements"));
  CHECK_THAT(failure->message, Contains("rank 0 entered step 5"));
}

TEST_CASE("tags are compared only within a group and at the same sequence number") {
  auto ranks = in_collective(4);
  ranks[2].status.tag = 78;
  ranks[2].status.sequence = 4;
  CHECK_FALSE(judge(ranks));
  ranks[2].status.sequence = 3;
  ranks[2].status.group = 8;
  CHECK_FALSE(judge(ranks));
  ranks[2].status.group = 9;
  CHECK(judge(ranks));
}

TEST_CASE("a rank that has gone on to compute is still compared by its last tag") {
  auto ranks = in_collective(2);
  ranks[1].status.tag = 78;
  ranks[1].status.state = RankState::Computing;
  REQUIRE(judge(ranks));
  CHECK(judge(ranks)->root == Rank{1});
}

TEST_CASE("a collective that a rank began, and went on from, is still compared") {
  // Ranks 0 and 2 wait in collective 3; rank 1 began another one there, and is two further.
  auto ranks = in_collective(3);
  ranks[1].status.sequence = 5;
  ranks[1].status.tag = 90;
  ranks[1].status.plan_step = 8;
  const auto began = [](std::int64_t sequence, std::uint64_t tag, std::int64_t plan_step) {
    return EnteredCollective{.group = 9,
                             .group_size = 3,
                             .sequence = sequence,
                             .tag = tag,
                             .plan_step = plan_step,
                             .elems_in = 2,
                             .elems_out = 6};
  };
  ranks[1].entered = {began(5, 90, 8), began(4, 89, 7)};
  CHECK_FALSE(judgement_of(ranks).is_suspicious);
  ranks[1].entered.push_back(began(3, 77, 5));
  CHECK_FALSE(judgement_of(ranks).is_suspicious);
  ranks[1].entered.back() = began(3, 78, 6);
  const auto failure = judge(ranks);
  REQUIRE(failure);
  CHECK(failure->root == Rank{1});
  CHECK_THAT(failure->message, Contains("rank 1 entered step 6 with 2 -> 6 elements, but rank 0 "
                                        "entered step 5") &&
                                   Contains("as collective 3 of the same group"));
}

TEST_CASE("a rank remembers the last collectives that it entered") {
  const ControlBlock control(1);
  RankSlot& slot = control.slot(Rank{0});
  CHECK(slot.entered().empty());
  for (std::int64_t i = 0; i < 20; ++i)
    slot.remember({.group = 4, .group_size = 2, .sequence = i, .tag = 100 + std::uint64_t(i)});
  std::vector<std::int64_t> sequences;
  for (const EnteredCollective& entered : slot.entered()) {
    CHECK(entered.tag == 100 + static_cast<std::uint64_t>(entered.sequence));
    sequences.push_back(entered.sequence);
  }
  std::sort(sequences.begin(), sequences.end());
  REQUIRE(sequences.size() == 16);
  CHECK(sequences.front() == 4);
  CHECK(sequences.back() == 19);
}

TEST_CASE("a fault of a rank's own comes before the connections lost because of it") {
  auto ranks = in_collective(3);
  for (RankView& rank : ranks) {
    rank.status.state = RankState::Failed;
    rank.status.failed_in = RankState::Communicating;
    rank.status.failure = FailureKind::Transport;
    rank.text = "connection closed";
    rank.process = {ProcessState::Kind::Exited, 1};
  }
  CHECK_FALSE(judge(ranks));
  ranks[1].status.failure = FailureKind::Own;
  ranks[1].status.failed_in = RankState::Computing;
  ranks[1].text = "out of range";
  const auto failure = judge(ranks);
  REQUIRE(failure);
  CHECK(failure->root == Rank{1});
  CHECK_THAT(failure->message, Contains("rank 1 failed while at work on step 5: out of range"));
  CHECK_THAT(failure->message, Contains("rank 0 waited for it"));
}

TEST_CASE("a rank that has yet to enter its collective is told from one that has left it") {
  auto ranks = in_collective(3);
  ranks[1].status.state = RankState::Preparing;
  ranks[1].waiting_for = -1;
  const auto before = judge(ranks, 2.1);
  REQUIRE(before);
  CHECK(before->root == Rank{1});
  CHECK_THAT(before->message, Contains("rank 1 has been about to enter step 5 for 2.10 s"));
  CHECK_THAT(before->message, Contains("rank 0 waited for it"));
  ranks[1].status.state = RankState::Computing;
  REQUIRE(judge(ranks, 2.1));
  CHECK_THAT(judge(ranks, 2.1)->message, Contains("rank 1 has been at work on step 5"));
}

TEST_CASE("of several faults the first is the cause, and the fate of the others is told") {
  auto ranks = in_collective(5);
  for (const std::size_t rank : {1U, 3U}) {
    ranks[rank].status.state = RankState::Failed;
    ranks[rank].status.failed_in = RankState::Preparing;
    ranks[rank].status.failure = FailureKind::Own;
    ranks[rank].status.since_ns = rank == 1 ? 200 : 100;
    ranks[rank].text = "out of range";
  }
  ranks[0].process = {ProcessState::Kind::Killed, SIGKILL};
  ranks[4].process = {ProcessState::Kind::Stopped, SIGSTOP};
  const auto failure = judge(ranks);
  REQUIRE(failure);
  CHECK(failure->root == Rank{3});
  CHECK(
      failure->help ==
      "rank 0 was in step 5 (killed by SIGKILL); rank 1 was about to enter step 5 (out of range); "
      "rank 2 was in step 5; rank 4 was in step 5 (stopped by SIGSTOP)");
}

TEST_CASE("a killed process is the cause, whoever reports a lost connection") {
  auto ranks = in_collective(4);
  ranks[0].status.state = RankState::Failed;
  ranks[0].status.failed_in = RankState::Communicating;
  ranks[0].status.failure = FailureKind::Transport;
  ranks[3].process = {ProcessState::Kind::Killed, SIGKILL};
  const auto failure = judge(ranks);
  REQUIRE(failure);
  CHECK(failure->root == Rank{3});
  CHECK_THAT(failure->message, Contains("rank 3 was killed by SIGKILL while in step 5"));
  CHECK_THAT(failure->message, Contains("rank 2 waited for it"));
}

TEST_CASE("after the timeout the chain of waiting leads to the rank that waits for nobody") {
  auto ranks = in_collective(4);  // 0 -> 1 -> 2, and 2 computes; 3 -> 0
  ranks[2].status.state = RankState::Computing;
  ranks[2].waiting_for = -1;
  const auto failure = judge(ranks, 2.1);
  REQUIRE(failure);
  CHECK(failure->root == Rank{2});
  CHECK_THAT(failure->message, Contains("rank 2 has been at work on step 5 for 2.10 s"));
  CHECK_THAT(failure->message, Contains("the timeout is 2.00 s"));
}

TEST_CASE("the chain ends at a stopped rank, even if that waits too") {
  auto ranks = in_collective(4);
  ranks[1].process = {ProcessState::Kind::Stopped, SIGSTOP};
  CHECK_FALSE(judge(ranks, 1.0));
  const auto failure = judge(ranks, 2.1);
  REQUIRE(failure);
  CHECK(failure->root == Rank{1});
  CHECK_THAT(failure->message, Contains("rank 1 is stopped by SIGSTOP while in step 5"));
}

TEST_CASE("in a circle the rank most wait for is named") {
  auto ranks = in_collective(4);
  ranks[0].waiting_for = 2;
  ranks[1].waiting_for = 2;
  ranks[2].waiting_for = 3;
  ranks[3].waiting_for = 2;
  REQUIRE(judge(ranks, 2.1));
  CHECK(judge(ranks, 2.1)->root == Rank{2});
}

TEST_CASE("ranks that met wait for those that are behind") {
  auto ranks = in_collective(3);
  ranks[0].status.state = RankState::Meeting;
  ranks[2].status.state = RankState::Meeting;
  ranks[1].status.state = RankState::Computing;
  ranks[1].status.since_ns = kSecond;
  const auto failure = judge(ranks, 2.1);
  REQUIRE(failure);
  CHECK(failure->root == Rank{1});
  CHECK_THAT(failure->message, Contains("ranks 0, 2 waited for it"));
  CHECK_THAT(failure->help, Contains("ranks 0, 2 were done with all steps"));
}

TEST_CASE("a rank that computes for long disturbs nobody while nobody waits") {
  auto ranks = in_collective(2);
  for (RankView& rank : ranks)
    rank.status.state = RankState::Computing;
  CHECK_FALSE(judge(ranks, 100));
}

TEST_CASE("lost connections without a cause are a failure once patience is over") {
  auto ranks = in_collective(2);
  ranks[0].status.state = RankState::Failed;
  ranks[0].status.failed_in = RankState::Communicating;
  ranks[0].status.failure = FailureKind::Transport;
  ranks[0].text = "reset by peer";
  ranks[1].status.state = RankState::Computing;
  CHECK_FALSE(judge(ranks, 0.1, false));
  CHECK(judgement_of(ranks, 0.1, false).is_suspicious);
  const auto failure = judge(ranks, 0.1, true);
  REQUIRE(failure);
  CHECK(failure->root == Rank{1});
  CHECK_THAT(failure->message, Contains("rank 0 reports: reset by peer"));
}

TEST_CASE("a crash of Gloo while connecting is not the root if another rank was lost") {
  auto ranks = in_collective(3);
  ranks[0].status.state = RankState::Connecting;
  ranks[0].process = {ProcessState::Kind::Killed, SIGSEGV};
  ranks[1].status.state = RankState::Computing;
  ranks[1].process = {ProcessState::Kind::Killed, SIGKILL};
  const auto failure = judge(ranks);
  REQUIRE(failure);
  CHECK(failure->root == Rank{1});
  CHECK_THAT(failure->help, Contains("killed by SIGSEGV"));
  ranks[1].process = {};
  REQUIRE(judge(ranks));
  CHECK(judge(ranks)->root == Rank{0});
}

TEST_CASE("a failure has the code of what differs in what ranks entered") {
  const auto code_of = [](const std::function<void(RankStatus&)>& change) {
    auto ranks = in_collective(4);
    ranks[2].status.tag = 78;
    change(ranks[2].status);
    const auto failure = judge(ranks);
    REQUIRE(failure);
    CHECK(failure->root == Rank{2});
    return failure->code;
  };
  CHECK(code_of([](RankStatus& status) { status.plan_step = 6; }) == FindingCode::CommOrder);
  CHECK(code_of([](RankStatus& status) { status.elems_out = 3; }) == FindingCode::CommShape);
  CHECK(code_of([](RankStatus&) {}) == FindingCode::CommOrder);
  CHECK(code_of([](RankStatus& status) {
          status.difference = static_cast<std::int64_t>(FindingCode::CommDtype);
        }) == FindingCode::CommDtype);
  // Of equals, the one that left the plan, here not the later.
  auto ranks = in_collective(2);
  ranks[0].status.tag = 78;
  ranks[0].status.difference = static_cast<std::int64_t>(FindingCode::CommDtype);
  CHECK(judge(ranks)->root == Rank{0});
}

TEST_CASE("collectives of one step along different mesh dims are a failure at once") {
  auto ranks = in_collective(4);
  // In a group of its own, which waits for nobody yet.
  ranks[3].status.group = group_id({1}, 0, 0);
  const auto failure = judge(ranks);
  REQUIRE(failure);
  CHECK(failure->root == Rank{3});
  CHECK(failure->code == FindingCode::CommGroup);
  CHECK_THAT(failure->message, Contains("rank 3 entered step 5 in another group than ranks 0, 1, 2"));
}

TEST_CASE("ranks that all wait where some left the plan are not waited for until the timeout") {
  auto ranks = in_collective(3);
  ranks[1].status.sequence = 4;
  ranks[1].status.tag = 80;
  ranks[1].status.plan_step = 8;
  CHECK_FALSE(judge(ranks, 1.5));
  ranks[1].status.difference = static_cast<std::int64_t>(FindingCode::CommOrder);
  ranks[1].status.difference_planned = 5;
  ranks[1].status.difference_entered = 8;
  CHECK_FALSE(judge(ranks, 0.5));
  const auto failure = judge(ranks, 1.5);
  REQUIRE(failure);
  CHECK(failure->root == Rank{1});
  CHECK(failure->code == FindingCode::CommOrder);
  CHECK_THAT(failure->message, Contains("it entered step 8 where the plan has step 5"));
  // All left it, and are on their way together.
  for (RankView& rank : ranks)
    rank.status.difference = static_cast<std::int64_t>(FindingCode::CommGroup);
  CHECK_FALSE(judge(ranks, 1.5));
}

TEST_CASE("a rank that failed or ended died, one that is waited for hangs") {
  auto ranks = in_collective(2);
  ranks[1].status.state = RankState::Computing;
  CHECK(judge(ranks, 3)->code == FindingCode::Hang);
  ranks[1].process = {ProcessState::Kind::Killed, SIGKILL};
  CHECK(judge(ranks)->code == FindingCode::RankDied);
  ranks[1].process = {};
  ranks[1].status.state = RankState::Failed;
  ranks[1].status.failure = FailureKind::Own;
  CHECK(judge(ranks)->code == FindingCode::RankDied);
  ranks[1].status.failure = FailureKind::Counts;
  CHECK(judge(ranks)->code == FindingCode::CommShape);
}

}  // namespace
}  // namespace hpsim
