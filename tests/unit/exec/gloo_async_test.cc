// All-gathers that are only begun: they go on while the rank computes, and others run meanwhile.

#include <atomic>
#include <cstring>
#include <numeric>
#include <vector>

#include "exec/gloo/supervisor.h"
#include "exec/shared_memory.h"
#include "exec/stopwatch.h"
#include "support/catch.h"

namespace hpsim {
namespace {

const DescribeStep kDescribe = [](std::int64_t step) { return "step " + std::to_string(step); };

RankGroup everyone(std::int64_t num_ranks) {
  RankGroup group;
  for (std::int64_t i = 0; i < num_ranks; ++i)
    group.members.push_back(Rank{i});
  return group;
}

/// Element i of what a rank sends in gather number `number`.
float sent(std::int64_t rank, std::int64_t number, std::int64_t i) {
  return static_cast<float>(1 + rank + 10 * number + 100 * (i % 1000));
}

/// The buffers of one gather of one rank.
class Gather {
 public:
  Gather(Rank rank, std::int64_t num_ranks, std::int64_t number, std::int64_t elems)
      : num_ranks_(num_ranks), number_(number) {
    for (std::int64_t i = 0; i < elems; ++i)
      input_.push_back(sent(rank.value, number, i));
    output_.assign(static_cast<std::size_t>(elems * num_ranks), 0.0F);
  }

  [[nodiscard]] CollectiveCall call() {
    const auto elems = static_cast<std::int64_t>(input_.size());
    return {0,     CollectiveOp::AllGather, DType::Float32, input_.data(), output_.data(),
            elems, elems * num_ranks_};
  }

  /// Whether all that comes from others is there, seen without waiting for it: Gloo's thread may
  /// be writing it.
  [[nodiscard]] bool has_all() const {
    const auto elems = static_cast<std::int64_t>(input_.size());
    for (std::int64_t i = 0; i < elems * num_ranks_; ++i) {
      const float want = sent(i / elems, number_, i % elems);
      std::uint32_t bits = 0;
      std::memcpy(&bits, &want, sizeof(bits));
      const auto* const at = reinterpret_cast<const std::uint32_t*>(output_.data() + i);
      if (__atomic_load_n(at, __ATOMIC_RELAXED) != bits) return false;
    }
    return true;
  }

 private:
  std::int64_t num_ranks_;
  std::int64_t number_;
  std::vector<float> input_;
  std::vector<float> output_;
};

/// Counts of all ranks together.
struct Tally {
  std::atomic<int> arrived{0};
  std::atomic<int> right{0};
  std::atomic<int> ended{0};
};

RunOptions within(double timeout_s) {
  RunOptions options;
  options.timeout_s = timeout_s;
  return options;
}

TEST_CASE("what was begun arrives while the rank computes, without anyone waiting for it") {
  // 4 MiB are more than the sockets hold: somebody has to go on sending them.
  for (const std::int64_t elems : {std::int64_t{1}, std::int64_t{1} << 20}) {
    CAPTURE(elems);
    const auto block = map_shared(sizeof(Tally));
    Tally& tally = *new (block.get()) Tally;
    run_ranks(3, within(60), kDescribe, [&](RankSession& session) {
      RankGroup group = everyone(3);
      Gather gather(session.rank(), 3, 0, elems);
      session.enter_step(0);
      BegunCollective begun = session.begin(gather.call(), group, 7);
      // The rank goes on: it is seen to compute, in no collective.
      tally.right += session.slot().read().state == RankState::Computing ? 1 : 0;
      session.enter_step(1);
      const Stopwatch watch;
      volatile double work = 0;
      while (!gather.has_all() && watch.elapsed_s() < 10)
        work = work + 1;
      tally.arrived += gather.has_all() ? 1 : 0;
      // Nobody completes it before all have seen it.
      ++tally.ended;
      while (tally.ended < 3 && watch.elapsed_s() < 20) {
      }
      session.complete(begun);
      tally.right += gather.has_all() ? 1 : 0;
    });
    CHECK(tally.arrived == 3);
    CHECK(tally.right == 2 * 3);
  }
}

TEST_CASE("several are pending at a time, others run in between, and any may be completed first") {
  const auto block = map_shared(sizeof(Tally));
  Tally& tally = *new (block.get()) Tally;
  constexpr std::int64_t kRanks = 4;
  run_ranks(kRanks, within(60), kDescribe, [&](RankSession& session) {
    RankGroup group = everyone(kRanks);
    std::vector<Gather> gathers;
    for (const std::int64_t elems : {5, 300'000, 70'000})
      gathers.emplace_back(session.rank(), kRanks, static_cast<std::int64_t>(gathers.size()),
                           elems);
    std::vector<BegunCollective> begun;
    for (Gather& gather : gathers)
      begun.push_back(session.begin(gather.call(), group, 7 + begun.size()));
    // Sums use the scratch of the rank; what is pending lies elsewhere.
    std::vector<float> sum(100'000, static_cast<float>(session.rank().value));
    const auto elems = static_cast<std::int64_t>(sum.size());
    const CollectiveCall reduce{
        0, CollectiveOp::AllReduce, DType::Float32, sum.data(), sum.data(), elems, elems};
    (void)session.communicate(reduce, group, 20);
    const std::int64_t last = session.slot().read().sequence;
    for (const std::size_t i : {2U, 0U, 1U}) {
      session.complete(begun[i]);
      tally.right += gathers[i].has_all() ? 1 : 0;
      // The rank was in that very collective again.
      tally.right += session.slot().read().sequence == static_cast<std::int64_t>(i) ? 1 : 0;
    }
    tally.right += last == 3 && sum.front() == 6 && sum.back() == 6 ? 1 : 0;
  });
  CHECK(tally.right == kRanks * 7);
}

TEST_CASE("what is only begun is an all_gather") {
  const auto block = map_shared(sizeof(Tally));
  Tally& tally = *new (block.get()) Tally;
  run_ranks(2, within(60), kDescribe, [&](RankSession& session) {
    RankGroup group = everyone(2);
    float value = 1;
    const CollectiveCall call{0, CollectiveOp::AllReduce, DType::Float32, &value, &value, 1, 1};
    try {
      (void)session.begin(call, group, 7);
    } catch (const std::exception& error) {
      const bool says_so =
          std::string(error.what()).find("no all_reduce is only begun") != std::string::npos;
      tally.right += says_so ? 1 : 0;
    }
  });
  CHECK(tally.right == 2);
}

}  // namespace
}  // namespace hpsim
