// Compares ways to carry out the collectives of a plan over Gloo, float32.
//   bench_collectives [ranks = 4] [repetitions = 15]

#include <fmt/format.h>

#include <cstdlib>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "bench/bench_ranks.h"
#include "bench/stock_collectives.h"
#include "exec/gloo/rank_session.h"

namespace hpsim::bench {
namespace {

/// What the variants of one rank share.
struct State {
  State(const BenchRank& self, std::int64_t num_ranks, std::int64_t part_elems)
      : session(self.session),
        part(static_cast<std::size_t>(part_elems), 1.0F),
        whole(static_cast<std::size_t>(part_elems * num_ranks), 0.0F),
        dealt(whole.size()),
        received(whole.size() + part.size()),
        stock(self.stock_context, whole.data(), part_elems) {
    for (std::int64_t i = 0; i < num_ranks; ++i) {
      everyone.members.push_back(Rank{i});
      // 1, 3, 5, ... to the ranks, beginning elsewhere on each: as much in all as equal slots.
      const std::int64_t weight = 1 + 2 * ((session.rank().value + i) % num_ranks);
      counts.push_back(part_elems * weight / num_ranks);
    }
  }

  void run(CollectiveOp op, const std::vector<float>& input, std::vector<float>& output) {
    const auto elems_in = static_cast<std::int64_t>(input.size());
    const auto elems_out = static_cast<std::int64_t>(output.size());
    (void)session.communicate(
        {0, op, DType::Float32, input.data(), output.data(), elems_in, elems_out}, everyone, ++tag);
  }
  void run_uneven() {
    const std::int64_t elems = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
    (void)session.communicate({.op = CollectiveOp::AllToAll,
                               .input = whole.data(),
                               .output = dealt.data(),
                               .elems_in = elems,
                               .elems_out = elems,
                               .counts_in = counts,
                               .counts_out = counts},
                              everyone, ++tag);
  }
  std::uint32_t next_tag() { return static_cast<std::uint32_t>(++tag); }

  RankSession& session;
  RankGroup everyone;
  std::vector<float> part, whole, dealt, received;
  std::vector<std::int64_t> counts;  ///< of the uneven all-to-all, to and from each rank
  StockReduceScatter stock;
  std::uint64_t tag = 0;
};

std::vector<Measured> compare(std::int64_t num_ranks, int repetitions, std::int64_t whole_bytes) {
  const std::int64_t part_elems = whole_bytes / 4 / num_ranks;
  const std::vector<std::string> names{
      "all_gather hpsim",      "all_gather gloo",         "reduce_scatter hpsim",
      "reduce_scatter gloo",   "reduce_scatter alltoall", "reduce_scatter ring",
      "all_reduce hpsim",      "all_reduce gloo ring",    "all_reduce gloo bcube",
      "all_to_all hpsim",      "all_to_all gloo",         "uneven all_to_all hpsim",
      "uneven all_to_all gloo"};
  return measure(num_ranks, repetitions, names, [=](const BenchRank& self) {
    const auto s = std::make_shared<State>(self, num_ranks, part_elems);
    const auto context = self.stock_context;
    float* const part = s->part.data();
    float* const whole = s->whole.data();
    return std::vector<Variant>{
        {"", [=] { s->run(CollectiveOp::AllGather, s->part, s->whole); }},
        {"", [=] { stock_all_gather(context, part, whole, s->part.size(), s->next_tag()); }},
        {"", [=] { s->run(CollectiveOp::ReduceScatter, s->whole, s->part); }},
        {"", [=] { s->stock.run(); }},
        {"",
         [=] { all_to_all_and_sum(context, whole, s->received, part, part_elems, s->next_tag()); }},
        {"",
         [=] {
           ring_reduce_scatter(context, whole, s->received, part, part_elems,
                               std::uint64_t{s->next_tag()} << 40);
         }},
        {"", [=] { s->run(CollectiveOp::AllReduce, s->whole, s->whole); }},
        {"", [=] { stock_all_reduce(context, whole, s->whole.size(), true, s->next_tag()); }},
        {"", [=] { stock_all_reduce(context, whole, s->whole.size(), false, s->next_tag()); }},
        {"", [=] { s->run(CollectiveOp::AllToAll, s->whole, s->dealt); }},
        {"", [=] { stock_all_to_all(context, whole, s->dealt.data(), part_elems, s->next_tag()); }},
        {"", [=] { s->run_uneven(); }},
        {"",
         [=] {
           stock_uneven_all_to_all(context, whole, s->dealt.data(), s->counts, s->next_tag());
         }},
    };
  });
}

}  // namespace
}  // namespace hpsim::bench

int main(int argc, char** argv) {
  const std::int64_t num_ranks = argc > 1 ? std::atoi(argv[1]) : 4;
  const int repetitions = argc > 2 ? std::atoi(argv[2]) : 15;
  const std::vector<std::int64_t> sizes{4 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20};
  fmt::print("{} ranks, ms, median of {}, interleaved; size of the whole buffer\n{:<28}", num_ranks,
             repetitions, "");
  std::vector<std::vector<hpsim::bench::Measured>> columns;
  for (const std::int64_t size : sizes) {
    fmt::print("{:>10}", fmt::format("{} KiB", size >> 10));
    columns.push_back(hpsim::bench::compare(num_ranks, repetitions, size));
  }
  fmt::print("\n");
  for (std::size_t row = 0; row < columns[0].size(); ++row) {
    fmt::print("{:<28}", columns[0][row].name);
    for (const auto& column : columns)
      fmt::print("{:>10.2f}", column[row].median_s() * 1e3);
    fmt::print("\n");
  }
}
