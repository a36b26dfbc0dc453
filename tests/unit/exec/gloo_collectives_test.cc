#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <numeric>
#include <vector>

#include "base/interval.h"
#include "exec/gloo/supervisor.h"
#include "exec/shared_memory.h"
#include "mesh/group.h"
#include "support/catch.h"
#include "tensor/fill.h"

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

/// Every group of the mesh that this rank is in, over each set of dims with more than one rank.
std::vector<RankGroup> groups_in(const Mesh& mesh, Rank rank) {
  std::vector<MeshDims> choices{{0}};
  if (mesh.num_dims() == 2) choices = {{0}, {1}, {0, 1}};
  std::vector<RankGroup> groups;
  for (const MeshDims& dims : choices) {
    if (mesh.size(dims) < 2) continue;
    RankGroup group;
    group.members = group_of(mesh, dims, rank);
    group.id = groups.size() * 100 + static_cast<std::uint64_t>(group.members.front().value);
    groups.push_back(group);
  }
  return groups;
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
