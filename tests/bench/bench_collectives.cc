// Compares ways to carry out the collectives of a plan over Gloo, float32.
//   bench_collectives [ranks = 4] [repetitions = 15]

#include <fmt/format.h>

#include <cstdlib>
#include <memory>
#include <numeric>
#include <vector>

#include "bench/bench_ranks.h"
#include "bench/stock_collectives.h"
#include "exec/gloo/collectives.h"

namespace hpsim::bench {
namespace {

std::vector<Measured> compare(std::int64_t num_ranks, int repetitions, std::int64_t whole_bytes) {
  const std::int64_t whole = whole_bytes / 4 / num_ranks * num_ranks;
  const std::int64_t part = whole / num_ranks;
  const std::vector<std::string> names{
      "all_gather hpsim",    "all_gather gloo",         "reduce_scatter hpsim",
      "reduce_scatter gloo", "reduce_scatter alltoall", "reduce_scatter ring",
      "all_reduce hpsim",    "all_reduce gloo ring",    "all_reduce gloo bcube"};
  return measure(num_ranks, repetitions, names, [=](const BenchRank& self) {
    struct State {
      std::vector<float> part, whole, received;
      std::vector<Rank> members;
      std::uint64_t tag = 0;
      std::unique_ptr<GlooCollectives> ours;
      std::unique_ptr<StockReduceScatter> stock;
    };
    const auto state = std::make_shared<State>();
    state->part.assign(static_cast<std::size_t>(part), 1.0F);
    state->whole.assign(static_cast<std::size_t>(whole), 0.0F);
    state->received.assign(static_cast<std::size_t>(std::max(whole, 2 * part)), 0.0F);
    for (std::int64_t i = 0; i < num_ranks; ++i)
      state->members.push_back(Rank{i});
    state->ours = std::make_unique<GlooCollectives>(self.context, self.rank, self.slot.waiting_for);
    state->stock =
        std::make_unique<StockReduceScatter>(self.stock_context, state->whole.data(), part);
    const auto context = self.stock_context;
    float* const p = state->part.data();
    float* const w = state->whole.data();
    const auto ours = [state](CollectiveOp op, const float* in, float* out, std::int64_t elems_in,
                              std::int64_t elems_out) {
      (void)state->ours->run({0, op, DType::Float32, in, out, elems_in, elems_out}, state->members,
                             ++state->tag);
    };
    const auto next = [state] { return static_cast<std::uint32_t>(++state->tag); };
    return std::vector<Variant>{
        {"", [=] { ours(CollectiveOp::AllGather, p, w, part, whole); }},
        {"", [=] { stock_all_gather(context, p, w, state->part.size(), next()); }},
        {"", [=] { ours(CollectiveOp::ReduceScatter, w, p, whole, part); }},
        {"", [=] { state->stock->run(); }},
        {"", [=] { all_to_all_and_sum(context, w, state->received, p, part, next()); }},
        {"",
         [=] {
           ring_reduce_scatter(context, w, state->received, p, part, std::uint64_t{next()} << 40);
         }},
        {"", [=] { ours(CollectiveOp::AllReduce, w, w, whole, whole); }},
        {"", [=] { stock_all_reduce(context, w, state->whole.size(), true, next()); }},
        {"", [=] { stock_all_reduce(context, w, state->whole.size(), false, next()); }},
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
