#include <fmt/format.h>
#include <gloo/common/error.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <numeric>
#include <vector>

#include "base/interval.h"
#include "exec/gloo/supervisor.h"
#include "exec/shared_memory.h"
#include "support/catch.h"
#include "tensor/fill.h"
#include "unit/exec/mesh_groups.h"

namespace hpsim {
namespace {

/// One element; odd; even; an all-reduce in two rounds. Up to four ranks: several messages of a
/// reduce-scatter, the last one short.
std::vector<std::int64_t> sizes_for(std::int64_t num_ranks) {
  return {1, 7, 64, num_ranks <= 4 ? 140'003 : 20'011};
}

struct Tally {
  std::atomic<std::int64_t> compared{0};
  std::atomic<std::int64_t> wrong{0};
  std::atomic<std::int64_t> depends_on_order{0};  ///< sums that another order changes
};

/// Elements [begin, begin + elems) of a rank's input. Thirds of random numbers have no short sums.
template <class T>
std::vector<T> input_of(Rank rank, std::int64_t case_number, Interval range) {
  std::vector<T> values(static_cast<std::size_t>(range.length()));
  const std::uint64_t key = fill_key(fmt::format("{}/{}", rank.value, case_number), 1);
  fill(values.data(), range.length(), key, range.begin, FillSpec{});
  for (T& value : values)
    value /= T(3);
  return values;
}

/// The sum of the terms, first to last or last to first.
template <class T>
std::vector<T> sum_of(std::vector<std::vector<T>> terms, bool reversed) {
  if (reversed) std::reverse(terms.begin(), terms.end());
  std::vector<T> sum = terms.front();
  for (std::size_t m = 1; m < terms.size(); ++m) {
    for (std::size_t i = 0; i < sum.size(); ++i)
      sum[i] = sum[i] + terms[m][i];
  }
  return sum;
}

template <class T>
std::vector<T> joined(const std::vector<std::vector<T>>& parts) {
  std::vector<T> all;
  for (const auto& part : parts)
    all.insert(all.end(), part.begin(), part.end());
  return all;
}

template <class T>
void run_case(RankSession& session, RankGroup& group, CollectiveOp op, DType dtype,
              std::int64_t elems, std::int64_t case_number, Tally& tally) {
  const auto size = static_cast<std::int64_t>(group.members.size());
  const std::int64_t me =
      std::find(group.members.begin(), group.members.end(), session.rank()) - group.members.begin();
  const std::int64_t elems_in = op == CollectiveOp::ReduceScatter ? size * elems : elems;
  const std::int64_t elems_out = op == CollectiveOp::AllGather ? size * elems : elems;
  const Interval used = op == CollectiveOp::ReduceScatter ? Interval{me * elems, (me + 1) * elems}
                                                          : Interval{0, elems};
  std::vector<std::vector<T>> parts;
  for (const Rank rank : group.members)
    parts.push_back(input_of<T>(rank, case_number, used));

  const std::vector<T> own = input_of<T>(session.rank(), case_number, {0, elems_in});
  std::vector<T> input = own;
  std::vector<T> output(static_cast<std::size_t>(elems_out), T(-99));
  const bool in_place = op == CollectiveOp::AllReduce;
  const CollectiveCall call{
      0, op, dtype, input.data(), in_place ? input.data() : output.data(), elems_in, elems_out};
  (void)session.communicate(call, group, static_cast<std::uint64_t>(case_number));
  const std::vector<T>& got = in_place ? input : output;

  const bool sums = op != CollectiveOp::AllGather;
  const auto want = sums ? sum_of(parts, false) : joined(parts);
  const auto other = sums ? sum_of(parts, true) : want;
  for (std::size_t i = 0; i < want.size(); ++i) {
    tally.compared += 1;
    tally.wrong += std::memcmp(&got[i], &want[i], sizeof(T)) != 0;
    tally.depends_on_order += want[i] != other[i];
  }
  if (!in_place) tally.wrong += input != own;
}

void check_all_collectives(const Mesh& mesh) {
  const auto block = map_shared(sizeof(Tally));
  Tally& tally = *new (block.get()) Tally;
  const std::int64_t n = mesh.num_ranks();
  const auto describe = [](std::int64_t) { return std::string("a case"); };
  RunOptions options;
  options.timeout_s = 60;
  const RanksRun run = run_ranks(n, options, describe, [&](RankSession& session) {
    std::int64_t case_number = 0;
    for (RankGroup& group : groups_in(mesh, session.rank())) {
      for (const auto op :
           {CollectiveOp::AllGather, CollectiveOp::ReduceScatter, CollectiveOp::AllReduce}) {
        for (const std::int64_t elems : sizes_for(n)) {
          run_case<float>(session, group, op, DType::Float32, elems, ++case_number, tally);
          run_case<double>(session, group, op, DType::Float64, elems, ++case_number, tally);
        }
      }
    }
  });

  // Two dtypes; all-gather leaves size * elems on each rank, the others elems.
  std::int64_t expected_count = 0;
  const std::vector<std::int64_t> sizes = sizes_for(n);
  const std::int64_t all_sizes = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
  for (const RankGroup& group : groups_in(mesh, Rank{0})) {
    expected_count += 2 * n * all_sizes * (static_cast<std::int64_t>(group.members.size()) + 2);
  }
  CHECK(tally.compared == expected_count);
  CHECK(tally.wrong == 0);
  CHECK(run.output == "");  // where a sanitizer would report
  // Sums of three and more depend on the order, or equality would prove nothing about it.
  if (n >= 3) CHECK(tally.depends_on_order > expected_count / 100);
}

TEST_CASE("collectives equal a sum in group order, bit for bit, on 1 to 8 ranks") {
  for (std::int64_t n = 1; n <= 8; ++n) {
    CAPTURE(n);
    check_all_collectives(Mesh({n}, {"fsdp"}));
  }
}

TEST_CASE("collectives of sub-groups follow the order of the mesh, not of rank numbers") {
  check_all_collectives(Mesh({2, 2}, {"rep", "fsdp"}, {3, 0, 2, 1}));
  check_all_collectives(Mesh({2, 3}, {"rep", "fsdp"}, {5, 1, 0, 4, 2, 3}));
  check_all_collectives(Mesh({2, 4}, {"rep", "fsdp"}, {7, 2, 5, 0, 1, 6, 3, 4}));
}

constexpr std::array<CollectiveOp, 4> kOps = {CollectiveOp::AllGather, CollectiveOp::ReduceScatter,
                                              CollectiveOp::AllReduce, CollectiveOp::AllToAll};
constexpr std::int64_t kTrio = 3;
constexpr std::int64_t kSlot = 5;
using Slots = std::array<float, kTrio * kSlot>;

constexpr bool moves_slots(CollectiveOp op) {
  return op == CollectiveOp::AllGather || op == CollectiveOp::AllToAll;
}

/// What a rank of three was left with; it sent ones.
struct Entered {
  std::atomic<bool> failed;
  Slots output;

  /// Numbers that need another tag than one's own: of the first two what the last one sends, of the
  /// last one what the others send; sums, of everybody.
  [[nodiscard]] std::vector<float> foreign(CollectiveOp op, std::int64_t place) const {
    Interval range{0, kSlot};
    if (moves_slots(op)) {
      range = place < 2 ? Interval{2 * kSlot, 3 * kSlot} : Interval{0, 2 * kSlot};
    }
    return {output.begin() + range.begin, output.begin() + range.end};
  }
};

/// Enters `op` with one tag, the last of the three perhaps with another one.
void enter(RankSession& session, CollectiveOp op, bool same_tags, Entered& entered) {
  const bool in_place = op == CollectiveOp::AllReduce;
  const std::int64_t place = session.rank().value % kTrio;
  const Rank first{session.rank().value - place};
  RankGroup trio;
  trio.members = {first, Rank{first.value + 1}, Rank{first.value + 2}};
  Slots input;
  input.fill(1);
  entered.output.fill(in_place ? 1.0F : 9.0F);
  const CollectiveCall call{
      .op = op,
      .input = in_place ? entered.output.data() : input.data(),
      .output = entered.output.data(),
      .elems_in = op == CollectiveOp::AllGather || in_place ? kSlot : kTrio * kSlot,
      .elems_out = moves_slots(op) ? kTrio * kSlot : kSlot};
  try {
    (void)session.communicate(call, trio, place == 2 && !same_tags ? 8 : 7);
    session.meet();
  } catch (const gloo::Exception&) {
    entered.failed = true;
  }
}

/// Three ranks for each op, all at once, with no parent that would end them at the first
/// difference.
std::shared_ptr<std::byte> enter_in_trios(bool same_tags) {
  constexpr auto kNumRanks = kTrio * static_cast<std::int64_t>(kOps.size());
  const double timeout_s = same_tags ? 60 : 5;
  auto block = map_shared(kNumRanks * static_cast<std::int64_t>(sizeof(Entered)));
  auto* const entered = reinterpret_cast<Entered*>(block.get());
  const ControlBlock control(kNumRanks);
  RankProcesses processes(kNumRanks, [&](Rank rank) {
    RankSession session(control, rank, timeout_s);
    session.connect();
    enter(session, kOps.at(static_cast<std::size_t>(rank.value / kTrio)), same_tags,
          entered[rank.value]);
  });
  const auto has_ended = [](const ProcessState& state) { return state.ended(); };
  while (!std::all_of(processes.states().begin(), processes.states().end(), has_ended))
    processes.wait(std::chrono::milliseconds(100));
  for (const ProcessState& state : processes.states())
    CHECK(state == ProcessState{ProcessState::Kind::Exited, 0});
  return block;
}

TEST_CASE("ranks that enter with different tags exchange nothing, whatever the collective") {
  for (const bool same_tags : {true, false}) {
    const auto block = enter_in_trios(same_tags);
    const auto* const entered = reinterpret_cast<const Entered*>(block.get());
    for (std::size_t i = 0; i < kOps.size() * kTrio; ++i) {
      const CollectiveOp op = kOps.at(i / kTrio);
      const auto place = static_cast<std::int64_t>(i % kTrio);
      CAPTURE(same_tags, name_of(op), place);
      CHECK(entered[i].failed == !same_tags);
      const float untouched = op == CollectiveOp::AllReduce ? 1 : 9;
      const float received = moves_slots(op) ? 1 : 3;
      for (const float value : entered[i].foreign(op, place))
        CHECK(value == (same_tags ? received : untouched));
    }
  }
}

TEST_CASE("a rank learns whether a sum that it made rounded") {
  const auto block = map_shared(2 * sizeof(std::atomic<int>));
  auto* const rounded = reinterpret_cast<std::atomic<int>*>(block.get());
  const auto describe = [](std::int64_t) { return std::string("a case"); };
  run_ranks(2, RunOptions{}, describe, [&](RankSession& session) {
    RankGroup group{{Rank{0}, Rank{1}}, 1, 0};
    for (int i = 0; i < 2; ++i) {
      // 1 + 2^-24 is no float32; 1 + 2^-23 is.
      float value = session.rank() == Rank{0} ? 1.0F : (i == 0 ? 0x1p-24F : 0x1p-23F);
      const CollectiveCall call{0, CollectiveOp::AllReduce, DType::Float32, &value, &value, 1, 1};
      rounded[i] += session.communicate(call, group, 5 + static_cast<std::uint64_t>(i));
    }
  });
  CHECK(rounded[0] == 2);
  CHECK(rounded[1] == 0);
}

}  // namespace
}  // namespace hpsim
