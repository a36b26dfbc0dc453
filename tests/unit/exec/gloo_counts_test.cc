#include <gloo/common/error.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "exec/gloo/connect.h"
#include "exec/gloo/supervisor.h"
#include "exec/shared_memory.h"
#include "exec/stopwatch.h"
#include "support/catch.h"
#include "unit/exec/uneven_counts.h"

namespace hpsim {
namespace {

using Catch::Matchers::Contains;

const DescribeStep kDescribe = [](std::int64_t step) { return "step " + std::to_string(step); };

/// What one of three ranks enters an all-to-all with.
struct Entry {
  std::vector<std::int64_t> sent, expected;
};

/// A rank sends what `sent` says, and expects what `believed` says.
Entry entry_of(Rank rank, const CountMatrix& sent, const CountMatrix& believed) {
  const auto place = static_cast<std::size_t>(rank.value);
  return {sent.sent_by(place), believed.sent_to(place)};
}

template <class Communicate>
std::vector<float> exchange(const Entry& entry, const Communicate& communicate) {
  const auto sum = [](const std::vector<std::int64_t>& counts) {
    return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  };
  const std::vector<float> input(static_cast<std::size_t>(sum(entry.sent)), 1.0F);
  std::vector<float> output(static_cast<std::size_t>(sum(entry.expected)), 9.0F);
  communicate(CollectiveCall{.op = CollectiveOp::AllToAll,
                             .input = input.data(),
                             .output = output.data(),
                             .elems_in = sum(entry.sent),
                             .elems_out = sum(entry.expected),
                             .counts_in = entry.sent,
                             .counts_out = entry.expected});
  return output;
}

struct Disagreement {
  CountMatrix sent, believed;
  std::string text;  ///< of the one disagreement
};

/// Rank 0 sends to rank 1 what it does not expect.
std::vector<Disagreement> disagreements() {
  const auto with = [](std::int64_t count) {
    return CountMatrix{"", {{1, count, 2}, {2, 0, 4}, {5, 3, 0}}};
  };
  return {
      {with(3), with(2), "rank 0 sends 3 elements to rank 1, which expects 2"},
      {with(2), with(3), "rank 0 sends 2 elements to rank 1, which expects 3"},
      {with(3), with(0), "rank 0 sends 3 elements to rank 1, which expects 0"},
      {with(0), with(2), "rank 0 sends 0 elements to rank 1, which expects 2"},
  };
}

const std::vector<Rank> kTrio = {Rank{0}, Rank{1}, Rank{2}};

/// The message of three ranks that must fail, soon after the timeout at most.
std::string failure_of(double timeout_s, const std::function<void(RankSession&)>& body) {
  RunOptions options;
  options.timeout_s = timeout_s;
  const Stopwatch watch;
  std::string message = "no failure";
  try {
    (void)run_ranks(3, options, kDescribe, body);
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::RankFailure);
    message = error.diagnostics().at(0).message;
  }
  CHECK(watch.elapsed_s() < 10);
  return message;
}

TEST_CASE(
    "ranks that disagree how much one sends to the other are named at once, with both counts") {
  for (const Disagreement& each : disagreements()) {
    const std::string message = failure_of(60, [&](RankSession& session) {
      RankGroup group{kTrio, 1, 0};
      session.enter_step(3);
      (void)exchange(entry_of(session.rank(), each.sent, each.believed), [&](CollectiveCall call) {
        call.plan_step = 3;
        (void)session.communicate(call, group, 7);
      });
    });
    CHECK_THAT(message, Contains("failed while in step 3") && Contains(each.text));
  }
}

TEST_CASE("a rank that expects the counts of two others swapped is found") {
  const CountMatrix sent{"", {{0, 3, 1}, {1, 0, 1}, {1, 2, 0}}};
  const CountMatrix believed{"", {{0, 2, 1}, {1, 0, 1}, {1, 3, 0}}};
  const std::string message = failure_of(60, [&](RankSession& session) {
    RankGroup group{kTrio, 1, 0};
    (void)exchange(entry_of(session.rank(), sent, believed),
                   [&](const CollectiveCall& call) { (void)session.communicate(call, group, 7); });
  });
  CHECK_THAT(message, Contains("rank 0 sends 3 elements to rank 1, which expects 2") ||
                          Contains("rank 2 sends 2 elements to rank 1, which expects 3"));
}

TEST_CASE(
    "a rank that has gone on, for it expected nothing, is awaited no longer than the timeout") {
  const CountMatrix sent{"", {{0, 3, 0}, {0, 0, 0}, {0, 0, 0}}};
  const CountMatrix believed{"", {{0, 0, 0}, {0, 0, 0}, {0, 0, 0}}};
  const CountMatrix next{"", {{0, 1, 1}, {1, 0, 1}, {1, 1, 0}}};
  const std::string message = failure_of(1, [&](RankSession& session) {
    RankGroup group{kTrio, 1, 0};
    if (session.rank() == Rank{0}) usleep(200'000);
    (void)exchange(entry_of(session.rank(), sent, believed),
                   [&](const CollectiveCall& call) { (void)session.communicate(call, group, 7); });
    (void)exchange(entry_of(session.rank(), next, next),
                   [&](const CollectiveCall& call) { (void)session.communicate(call, group, 8); });
  });
  CHECK_THAT(message, Contains("rank 0") && Contains("waited for it"));
}

/// What became of three ranks that nobody ends and that announced nothing.
struct Alone {
  std::atomic<int> num_failed;
  std::atomic<std::int64_t> got_of_rank_0;  ///< elements that rank 1 got of it
};

void enter_alone(const ControlBlock& control, Rank rank, const Disagreement& disagreement,
                 Alone& alone) {
  constexpr double kTimeout_s = 4;
  const Rank place{rank.value % 3};
  const Rank first{rank.value - place.value};
  std::atomic<std::int64_t> waiting_for{-1};
  GlooCollectives collectives(connect_mesh(control, rank, kTimeout_s), rank, waiting_for);
  bool has_failed = false;
  const auto output = exchange(
      entry_of(place, disagreement.sent, disagreement.believed), [&](const CollectiveCall& call) {
        try {
          (void)collectives.run(call, {first, Rank{first.value + 1}, Rank{first.value + 2}}, 7);
        } catch (const gloo::Exception&) {
          has_failed = true;
        }
      });
  const std::span<const float> of_rank_0(
      output.data(), static_cast<std::size_t>(disagreement.believed.counts[0][1]));
  if (place == Rank{1}) {
    alone.got_of_rank_0 += std::count(of_rank_0.begin(), of_rank_0.end(), 1.0F);
  }
  alone.num_failed += has_failed;
  if (!has_failed) sleep(5);  // or others would fail for want of this rank
}

TEST_CASE("messages of another size than expected never meet, announced or not") {
  const std::vector<Disagreement> all = disagreements();
  const auto num_ranks = static_cast<std::int64_t>(3 * all.size());
  const auto block = map_shared(static_cast<std::int64_t>(all.size() * sizeof(Alone)));
  auto* const alone = reinterpret_cast<Alone*>(block.get());
  const ControlBlock control(num_ranks);
  RankProcesses processes(num_ranks, [&](Rank rank) {
    const auto trio = static_cast<std::size_t>(rank.value / 3);
    enter_alone(control, rank, all[trio], alone[trio]);
  });
  const auto has_ended = [](const ProcessState& state) { return state.ended(); };
  while (!std::all_of(processes.states().begin(), processes.states().end(), has_ended))
    processes.wait(std::chrono::milliseconds(100));
  for (std::size_t i = 0; i < all.size(); ++i) {
    CAPTURE(all[i].text);
    CHECK(alone[i].num_failed >= 1);
    CHECK(alone[i].got_of_rank_0 == 0);
  }
}

}  // namespace
}  // namespace hpsim
