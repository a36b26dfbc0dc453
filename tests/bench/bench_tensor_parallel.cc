// What a step of tensor parallelism costs over its collectives and products, on (fsdp 2, tp 2) over
// Gloo: two linear layers, 512 -> 1408 -> 512, colwise and rowwise, batch 1024; and a block of a
// transformer, dim 512, hidden 1408, 8 heads, sequences of 128, batch 8, without and with sequence
// parallelism. Ratios are taken within one repetition, in which everything runs once in turn;
// medians of 15.

#include <fmt/format.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bench/bare_step.h"
#include "bench/bench_ranks.h"
#include "bench/engine_steps.h"
#include "plan/build_plan.h"
#include "plan/verify_plan.h"
#include "scenario/parse.h"

namespace hpsim::bench {
namespace {

constexpr int kRepetitions = 15;
constexpr std::int64_t kRanks = 4;
constexpr std::int64_t kTp = 2;

/// One optimizer step more than is measured.
VerifiedPlan plan_of(const std::string& model, const std::string& more, std::int64_t batch) {
  const std::string text = fmt::format(
      R"({{"hpsim": 1, "mesh": {{"shape": [2, 2], "mesh_dim_names": ["fsdp", "tp"]}},
           "model": {}, {}, "training": {{"steps": {}, "global_batch": {}}}}})",
      model, more, kRepetitions + 1, batch);
  return verify_plan(build_plan(parse_scenario(text, "bench.json")));
}

using Products = std::function<void()>;

void bench(const std::string& title, const VerifiedPlan& plan,
           const std::function<Products()>& make_products, double aim) {
  const auto rows =
      measure(kRanks, kRepetitions, {"engine step", "its collectives alone", "its products alone"},
              [&](const BenchRank& self) {
                const auto engine = std::make_shared<EngineSteps>(plan, self.session);
                const auto bare = std::make_shared<BareCollectives>(*plan, self.session);
                return std::vector<Variant>{{"", [engine] { engine->run_one(); }},
                                            {"", [bare] { bare->run(); }},
                                            {"", make_products()}};
              });
  std::vector<double> ratios;
  for (std::size_t r = 0; r < kRepetitions; ++r)
    ratios.push_back(rows[0].times_s[r] / (rows[1].times_s[r] + rows[2].times_s[r]));
  fmt::print("{}, fsdp 2 x tp 2: ", title);
  for (const Measured& row : rows)
    fmt::print("{} {:.1f} ms, ", row.name, row.median_s() * 1e3);
  fmt::print("step / (collectives + products) {:.2f} (aim <= {})\n", median(ratios), aim);
}

void bench_mlp(std::int64_t hidden) {
  constexpr std::int64_t kBatch = 1024;
  const std::string model = fmt::format(
      R"([{{"name": "up", "type": "linear", "in_features": 512, "out_features": {0}}},
          {{"name": "down", "type": "linear", "in_features": {0}, "out_features": 512}}])",
      hidden);
  const VerifiedPlan plan =
      plan_of(model, R"("parallelize": {"up": "colwise", "down": "rowwise"})", kBatch);
  const auto make_products = [hidden]() -> Products {
    const std::int64_t rows = kBatch / 2;
    const std::int64_t part = (hidden + kTp - 1) / kTp;
    const auto up = std::make_shared<BareLinear>(rows, 512, part, false);
    const auto down = std::make_shared<BareLinear>(rows, part, 512);
    return [up, down] {
      up->run();
      down->run();
    };
  };
  bench(fmt::format("512 -> {} -> 512, batch {}", hidden, kBatch), plan, make_products, 1.2);
}

/// Of the block.
constexpr std::int64_t kBlockBatch = 8;
constexpr std::int64_t kSeq = 128;
constexpr std::int64_t kDim = 512;
constexpr std::int64_t kHidden = 1408;
constexpr std::int64_t kHeads = 8;

void bench_block(bool has_sequence_parts) {
  const std::string model = fmt::format(
      R"([{{"name": "a", "type": "residual", "modules": [
            {{"name": "norm", "type": "rms_norm", "dim": {0}}},
            {{"name": "attn", "type": "attention", "dim": {0}, "heads": {1}}}]}},
          {{"name": "m", "type": "residual", "modules": [
            {{"name": "norm", "type": "rms_norm", "dim": {0}}},
            {{"name": "mlp", "type": "mlp", "dim": {0}, "hidden": {2}}}]}}])",
      kDim, kHeads, kHidden);
  const std::string styles =
      has_sequence_parts
          ? R"({"*.norm": "sequence_parallel", "*.attn": "rowwise_sp", "*.mlp": "rowwise_sp"})"
          : R"({"*.attn": "colwise", "*.mlp": "colwise"})";
  const VerifiedPlan plan = plan_of(
      model,
      fmt::format(R"("data": {{"sample_shape": [{}, {}]}}, "parallelize": {})", kSeq, kDim, styles),
      kBlockBatch);
  const auto make_products = []() -> Products {
    const std::int64_t samples = kBlockBatch / 2;
    const std::int64_t rows = samples * kSeq;
    const auto linears = std::make_shared<std::vector<BareLinear>>();
    for (int i = 0; i < 3; ++i)
      linears->emplace_back(rows, kDim, kDim / kTp);  // wq, wk, wv
    linears->emplace_back(rows, kDim / kTp, kDim);
    for (int i = 0; i < 2; ++i)
      linears->emplace_back(rows, kDim, kHidden / kTp);  // w1, w3
    linears->emplace_back(rows, kHidden / kTp, kDim);
    const std::shared_ptr<BareAttention> attention =
        std::make_shared<BareAttention>(samples * kHeads / kTp, kSeq, kDim / kHeads);
    return [linears, attention] {
      for (BareLinear& linear : *linears)
        linear.run();
      attention->run();
    };
  };
  bench(fmt::format("transformer block, {} parts of the sequence",
                    has_sequence_parts ? "with" : "without"),
        plan, make_products, 1.3);
}

}  // namespace
}  // namespace hpsim::bench

int main() {
  hpsim::bench::bench_mlp(1408);
  hpsim::bench::bench_mlp(1401);
  hpsim::bench::bench_block(false);
  hpsim::bench::bench_block(true);
}
