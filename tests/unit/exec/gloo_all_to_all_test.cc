#include <algorithm>
#include <atomic>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "exec/gloo/supervisor.h"
#include "exec/shared_memory.h"
#include "support/catch.h"
#include "unit/exec/mesh_groups.h"
#include "unit/exec/uneven_counts.h"

namespace hpsim {
namespace {

const DescribeStep kDescribe = [](std::int64_t step) { return "step " + std::to_string(step); };

struct Tally {
  std::atomic<std::int64_t> compared{0};
  std::atomic<std::int64_t> wrong{0};
};

/// Bits that tell what a message is and where it begins: 8 ranks, 16 cases, 2^20 elements. Taken as
/// floating point they are no NaN, and copying keeps them.
template <class Bits>
Bits first_label(Rank from, Rank to, std::int64_t case_number) {
  return static_cast<Bits>((case_number % 16 * 8 + from.value) * 8 + to.value) << 20;
}

constexpr std::int64_t kLargestSlotBytes = 4 << 20;

/// One element; odd; a little over 64 KiB; the largest.
template <class Bits>
std::vector<std::size_t> slots_of() {
  return {1, 7, (64 << 10) / sizeof(Bits) + 3, kLargestSlotBytes / sizeof(Bits)};
}

/// Memory of one rank, used again and again: fresh pages cost more than the exchange.
struct Buffers {
  explicit Buffers(std::int64_t num_ranks)
      : input(static_cast<std::size_t>(num_ranks * kLargestSlotBytes)), output(input.size()) {}
  std::vector<std::byte> input, output;
};

/// Elements that are not `first`, `first` + 1, ...
template <class Bits>
std::int64_t count_wrong(std::span<const Bits> slot, Bits first) {
  std::int64_t wrong = 0;
  for (std::size_t i = 0; i < slot.size(); ++i)
    wrong += slot[i] != first + static_cast<Bits>(i);
  return wrong;
}

template <class Bits>
void run_all_to_all(RankSession& session, RankGroup& group, DType dtype, std::size_t slot,
                    std::int64_t case_number, Buffers& buffers, Tally& tally) {
  const Rank me = session.rank();
  const std::size_t elems = slot * group.members.size();
  const std::span<Bits> input(reinterpret_cast<Bits*>(buffers.input.data()), elems);
  const std::span<Bits> output(reinterpret_cast<Bits*>(buffers.output.data()), elems);
  for (std::size_t m = 0; m < group.members.size(); ++m) {
    const std::span<Bits> to = input.subspan(m * slot, slot);
    std::iota(to.begin(), to.end(), first_label<Bits>(me, group.members[m], case_number));
  }
  std::fill(output.begin(), output.end(), ~Bits{0});
  const auto count = static_cast<std::int64_t>(elems);
  (void)session.communicate(
      {0, CollectiveOp::AllToAll, dtype, input.data(), output.data(), count, count}, group,
      static_cast<std::uint64_t>(case_number));
  for (std::size_t m = 0; m < group.members.size(); ++m) {
    const Rank peer = group.members[m];
    tally.wrong +=
        count_wrong<Bits>(output.subspan(m * slot, slot), first_label<Bits>(peer, me, case_number));
    tally.wrong +=
        count_wrong<Bits>(input.subspan(m * slot, slot), first_label<Bits>(me, peer, case_number));
  }
  tally.compared += count;
}

void check_all_to_all(const Mesh& mesh) {
  const auto block = map_shared(sizeof(Tally));
  Tally& tally = *new (block.get()) Tally;
  const std::int64_t n = mesh.num_ranks();
  RunOptions options;
  options.timeout_s = 60;
  const RanksRun run = run_ranks(n, options, kDescribe, [&](RankSession& session) {
    Buffers buffers(n);
    std::int64_t case_number = 0;
    for (RankGroup& group : groups_in(mesh, session.rank())) {
      for (const std::size_t slot : slots_of<std::uint32_t>()) {
        run_all_to_all<std::uint32_t>(session, group, DType::Float32, slot, ++case_number, buffers,
                                      tally);
      }
      for (const std::size_t slot : slots_of<std::uint64_t>()) {
        run_all_to_all<std::uint64_t>(session, group, DType::Float64, slot, ++case_number, buffers,
                                      tally);
      }
    }
  });
  // By hand: 1 + 7 + (16,384 + 3) + 1,048,576 float32 of each member, and 1 + 7 + (8,192 + 3) +
  // 524,288 float64.
  std::int64_t expected_count = 0;
  for (const RankGroup& group : groups_in(mesh, Rank{0}))
    expected_count += n * static_cast<std::int64_t>(group.members.size()) * (1'064'971 + 532'491);
  CHECK(tally.compared == expected_count);
  CHECK(tally.wrong == 0);
  CHECK(run.output == "");
}

TEST_CASE("an all-to-all hands slot j to member j and keeps them in group order, on 2 to 8 ranks") {
  for (std::int64_t n = 2; n <= 8; ++n) {
    CAPTURE(n);
    check_all_to_all(Mesh({n}, {"tp"}));
  }
}

TEST_CASE("an all-to-all of a sub-group follows the order of the mesh, not of rank numbers") {
  check_all_to_all(Mesh({2, 2}, {"fsdp", "tp"}, {3, 0, 2, 1}));
  check_all_to_all(Mesh({2, 3}, {"fsdp", "tp"}, {5, 1, 0, 4, 2, 3}));
  check_all_to_all(Mesh({2, 4}, {"fsdp", "tp"}, {7, 2, 5, 0, 1, 6, 3, 4}));
}

template <class Bits>
void append_labels(std::vector<Bits>& buffer, std::int64_t count, Bits first) {
  for (std::int64_t i = 0; i < count; ++i)
    buffer.push_back(first + static_cast<Bits>(i));
}

template <class Bits>
void run_uneven(RankSession& session, RankGroup& group, DType dtype, const CountMatrix& matrix,
                std::int64_t case_number, Tally& tally) {
  const Rank me = session.rank();
  const auto place = static_cast<std::size_t>(
      std::find(group.members.begin(), group.members.end(), me) - group.members.begin());
  const std::vector<std::int64_t> sent = matrix.sent_by(place);
  const std::vector<std::int64_t> expected = matrix.sent_to(place);
  std::vector<Bits> input, want;
  for (std::size_t m = 0; m < group.members.size(); ++m) {
    const Rank peer = group.members[m];
    append_labels(input, sent[m], first_label<Bits>(me, peer, case_number));
    append_labels(want, expected[m], first_label<Bits>(peer, me, case_number));
  }
  const std::vector<Bits> own = input;
  std::vector<Bits> output(want.size(), ~Bits{0});
  (void)session.communicate({.op = CollectiveOp::AllToAll,
                             .dtype = dtype,
                             .input = input.data(),
                             .output = output.data(),
                             .elems_in = static_cast<std::int64_t>(input.size()),
                             .elems_out = static_cast<std::int64_t>(output.size()),
                             .counts_in = sent,
                             .counts_out = expected},
                            group, static_cast<std::uint64_t>(case_number));
  tally.wrong += input != own;
  for (std::size_t i = 0; i < want.size(); ++i)
    tally.wrong += output[i] != want[i];
  tally.compared += static_cast<std::int64_t>(want.size());
}

void check_uneven(const Mesh& mesh) {
  const auto block = map_shared(sizeof(Tally));
  Tally& tally = *new (block.get()) Tally;
  const std::int64_t n = mesh.num_ranks();
  RunOptions options;
  options.timeout_s = 60;
  const RanksRun run = run_ranks(n, options, kDescribe, [&](RankSession& session) {
    std::int64_t case_number = 0;
    for (RankGroup& group : groups_in(mesh, session.rank())) {
      for (const CountMatrix& matrix : uneven_counts(group.members.size())) {
        run_uneven<std::uint32_t>(session, group, DType::Float32, matrix, ++case_number, tally);
        run_uneven<std::uint64_t>(session, group, DType::Float64, matrix, ++case_number, tally);
      }
    }
  });
  std::int64_t expected_count = 0;
  for (const RankGroup& group : groups_in(mesh, Rank{0})) {
    const std::size_t size = group.members.size();
    for (const CountMatrix& matrix : uneven_counts(size))
      expected_count += 2 * n / static_cast<std::int64_t>(size) * matrix.total();
  }
  CHECK(tally.compared == expected_count);
  CHECK(tally.wrong == 0);
  CHECK(run.output == "");
}

TEST_CASE("an uneven all-to-all hands each member its own elements, on 2 to 8 ranks") {
  for (std::int64_t n = 2; n <= 8; ++n) {
    CAPTURE(n);
    check_uneven(Mesh({n}, {"ep"}));
  }
}

TEST_CASE("an uneven all-to-all of a sub-group follows the order of the mesh") {
  check_uneven(Mesh({2, 2}, {"dp", "ep"}, {3, 0, 2, 1}));
  check_uneven(Mesh({2, 3}, {"dp", "ep"}, {5, 1, 0, 4, 2, 3}));
  check_uneven(Mesh({2, 4}, {"dp", "ep"}, {7, 2, 5, 0, 1, 6, 3, 4}));
}

TEST_CASE("counts of positions travel as int64, every bit of them") {
  const auto block = map_shared(sizeof(Tally));
  Tally& tally = *new (block.get()) Tally;
  (void)run_ranks(3, RunOptions{}, kDescribe, [&](RankSession& session) {
    RankGroup group{{Rank{2}, Rank{0}, Rank{1}}, 1, 0};
    const auto slot_of = [&](Rank from, Rank to) {
      const std::int64_t odd = 2 * (from.value * 3 + to.value) + 1;
      return std::vector<std::int64_t>{odd, (std::int64_t{1} << 53) + odd, -odd};
    };
    std::vector<std::int64_t> input, want;
    for (const Rank member : group.members) {
      for (const std::int64_t value : slot_of(session.rank(), member))
        input.push_back(value);
      for (const std::int64_t value : slot_of(member, session.rank()))
        want.push_back(value);
    }
    std::vector<std::int64_t> output(9);
    (void)session.communicate(
        {0, CollectiveOp::AllToAll, DType::Int64, input.data(), output.data(), 9, 9}, group, 1);
    tally.wrong += output != want;
    tally.compared += 9;
  });
  CHECK(tally.compared == 27);
  CHECK(tally.wrong == 0);
}

TEST_CASE("a swap of counts on both sides, which nothing else could see, is seen in the data") {
  const auto block = map_shared(sizeof(Tally));
  Tally& tally = *new (block.get()) Tally;
  (void)run_ranks(3, RunOptions{}, kDescribe, [&](RankSession& session) {
    RankGroup group{{Rank{0}, Rank{1}, Rank{2}}, 1, 0};
    // Two elements for rank 1 and one for rank 2, exchanged as if it were the other way round.
    const std::vector<std::vector<std::int64_t>> counts{{0, 1, 2}, {0, 0, 0}, {0, 0, 0}};
    const CountMatrix swapped{"swapped", counts};
    const auto place = static_cast<std::size_t>(session.rank().value);
    const std::vector<std::int64_t> sent = swapped.sent_by(place);
    const std::vector<std::int64_t> expected = swapped.sent_to(place);
    const std::vector<float> input =
        place == 0 ? std::vector<float>{1, 1, 2} : std::vector<float>{};
    std::vector<float> output(place);
    (void)session.communicate({.op = CollectiveOp::AllToAll,
                               .input = input.data(),
                               .output = output.data(),
                               .elems_in = static_cast<std::int64_t>(input.size()),
                               .elems_out = static_cast<std::int64_t>(output.size()),
                               .counts_in = sent,
                               .counts_out = expected},
                              group, 1);
    for (const float value : output) {
      tally.compared += 1;
      tally.wrong += value != static_cast<float>(place);
    }
  });
  CHECK(tally.compared == 3);
  CHECK(tally.wrong == 1);
}

}  // namespace
}  // namespace hpsim
