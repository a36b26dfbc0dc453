// Planning and verifying 200 parameters on a mesh (64, 32, 8), and the symbolic run of it; the same
// on 8 ranks beside it. Then transformers as large as real ones: 80 blocks with tensor parallelism
// (aim: 100 ms in all on 4,096 ranks, 1.2 times that on 131,072), 58 blocks with 256 experts each.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "exec/symbolic.h"
#include "plan/build_plan.h"
#include "plan/verify_plan.h"
#include "scenario/parse.h"
#include "support/scenarios.h"

namespace hpsim {
namespace {

/// 200 tensors, half cut by tp along dim 0, half along dim 1.
Scenario scenario_on(std::vector<std::int64_t> shape, std::int64_t rows) {
  std::vector<ElementwiseSpec> specs;
  for (int i = 0; i < 200; ++i)
    specs.push_back({"tensor" + std::to_string(i), {rows, 1024}});
  Scenario scenario = test::fsdp_scenario(test::elementwise_model(std::move(specs)), 1);
  scenario.mesh = Mesh(std::move(shape), {"rep", "fsdp", "tp"});
  scenario.roles = {.fsdp_shard_dim = 1, .dp_replicate_dim = 0, .tp_dim = 2};
  scenario.data.data_dims = {0, 1};
  scenario.training.global_batch = scenario.num_data_ranks();
  for (std::size_t p = 0; p < scenario.parameters.size(); ++p)
    scenario.placements.push_back({Replicate{}, Replicate{}, Shard{p % 2 == 0 ? 0 : 1}});
  return scenario;
}

Scenario layers_on(std::int64_t replicas, std::int64_t shards) {
  std::vector<ModuleSpec> modules;
  for (int i = 0; i < 100; ++i)
    modules.push_back(test::linear("layer" + std::to_string(i), 4096, 4096));
  return test::hsdp_scenario(test::modules_model(std::move(modules)), replicas, shards);
}

/// TP with sequence parallelism; `body` is the second half of a block, its style `style`.
Scenario transformer_on(const std::string& mesh, std::int64_t dim, int num_blocks,
                        const std::string& body, const std::string& style) {
  return parse_scenario(fmt::format(
                            R"({{"hpsim": 1, "mesh": {0}, "model": [
            {{"name": "tok", "type": "embedding", "num_embeddings": 128256, "embedding_dim": {1}}},
            {{"name": "blocks", "type": "repeat", "count": {2}, "module": {{"type": "sequential",
              "modules": [
                {{"name": "a", "type": "residual", "modules": [
                  {{"name": "norm", "type": "rms_norm", "dim": {1}}},
                  {{"name": "attn", "type": "attention", "dim": {1}, "heads": 64, "kv_heads": 8}}]}},
                {{"name": "m", "type": "residual", "modules": [
                  {{"name": "norm", "type": "rms_norm", "dim": {1}}},
                  {{"name": "body", {3}, "dim": {1}}}]}}]}}}},
            {{"name": "norm", "type": "rms_norm", "dim": {1}}},
            {{"name": "out", "type": "linear", "in_features": {1}, "out_features": 128256,
              "bias": false}}],
          "data": {{"sample_shape": [4096]}}, "fully_shard": {{"units": ["blocks.*"]}},
          "parallelize": {{"tok": "rowwise_sp", "**.norm": "sequence_parallel",
            "norm": "sequence_parallel", "**.attn": "rowwise_sp", "**.body": "{4}",
            "out": "colwise"}},
          "training": {{"loss": "cross_entropy"}}}})",
                            mesh, dim, num_blocks, body, style),
                        "bench.json");
}

Scenario blocks_80_on(const std::string& shape) {
  return transformer_on(
      fmt::format(R"({{"shape": [{}], "mesh_dim_names": ["rep", "fsdp", "tp"]}})", shape), 8192, 80,
      R"("type": "mlp", "hidden": 28672)", "rowwise_sp");
}

Scenario experts_256_on(const std::string& shape) {
  return transformer_on(
      fmt::format(R"({{"shape": [{}], "mesh_dim_names": ["fsdp", "ep", "tp"]}})", shape), 7168, 58,
      R"("type": "moe", "hidden": 2048, "experts": 256, "top_k": 8)", "expert");
}

double median_ms(const std::function<void()>& work) {
  std::vector<double> times;
  for (int i = 0; i < 21; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    work();
    times.push_back(
        std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin)
            .count());
  }
  std::nth_element(times.begin(), times.begin() + 10, times.end());
  return times[10];
}

void report(const std::string& name, const Scenario& scenario) {
  const double plan_ms = median_ms([&] { (void)verify_plan(build_plan(scenario)); });
  const VerifiedPlan plan = verify_plan(build_plan(scenario));
  const double symbolic_ms = median_ms([&] { (void)SymbolicExecutor().run(plan, {}); });
  fmt::print("{:<44} {:>8} ranks   plan + verify {:>7.2f} ms   symbolic {:>7.2f} ms\n", name,
             plan->mesh().num_ranks(), plan_ms, symbolic_ms);
}

}  // namespace
}  // namespace hpsim

int main() {
  using namespace hpsim;
  report("100 linears, hsdp (2, 4)", layers_on(2, 4));
  report("100 linears, hsdp (512, 256)", layers_on(512, 256));
  report("200 tensors, (2, 2, 2), even", scenario_on({2, 2, 2}, 4096));
  report("200 tensors, (64, 32, 8), even", scenario_on({64, 32, 8}, 4096));
  report("200 tensors, (2, 2, 2), uneven", scenario_on({2, 2, 2}, 4099));
  report("200 tensors, (64, 32, 8), uneven", scenario_on({64, 32, 8}, 4099));
  report("80 blocks, (16, 32, 8)", blocks_80_on("16, 32, 8"));
  report("80 blocks, (512, 32, 8)", blocks_80_on("512, 32, 8"));
  report("58 blocks of 256 experts, (16, 32, 8)", experts_256_on("16, 32, 8"));
  report("58 blocks of 256 experts, (512, 32, 8)", experts_256_on("512, 32, 8"));
  return 0;
}
