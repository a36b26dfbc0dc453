// What making parameters costs: eight linear layers of 1024 x 1024, 32 MiB, on "cpu" and on "meta";
// a rank alone, as over Gloo, and 1,024 ranks that share a process, as on local. Medians of 5.

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <vector>

#include "engine/rank_engine.h"
#include "exec/stopwatch.h"
#include "plan/build_plan.h"
#include "plan/verify_plan.h"
#include "support/scenarios.h"

namespace hpsim::bench {
namespace {

VerifiedPlan plan_of(std::int64_t num_ranks, InitDevice device) {
  std::vector<ModuleSpec> modules;
  for (int i = 0; i < 8; ++i)
    modules.push_back(test::linear(fmt::format("l{}", i), 1024, 1024, false));
  Scenario scenario = test::fsdp_scenario(test::modules_model(std::move(modules)), num_ranks);
  scenario.training.init_device = device;
  return verify_plan(build_plan(std::move(scenario)));
}

/// Seconds to make the engines of the first `count` ranks.
double time_of(const VerifiedPlan& plan, std::int64_t count, bool shares) {
  std::vector<double> times;
  for (int repetition = 0; repetition < 5; ++repetition) {
    ResultLayout layout(*plan, false);
    auto* const block =
        static_cast<std::byte*>(std::calloc(1, static_cast<std::size_t>(layout.size_bytes())));
    RunResult result("bench", std::move(layout), {block, [](std::byte* b) { std::free(b); }});
    const Stopwatch watch;
    SharedParameters shared(*plan);
    std::vector<std::unique_ptr<RankEngine>> engines;
    for (std::int64_t rank = 0; rank < count; ++rank)
      engines.push_back(make_rank_engine(plan, Rank{rank}, result, shares ? &shared : nullptr));
    times.push_back(watch.elapsed_s());
  }
  std::sort(times.begin(), times.end());
  return times[2];
}

void bench(InitDevice device) {
  const VerifiedPlan four = plan_of(4, device);
  const VerifiedPlan many = plan_of(1024, device);
  fmt::print("{:<6} {:>12.1f} ms {:>20.1f} ms {:>20.1f} ms\n", name_of(device),
             time_of(four, 1, false) * 1e3, time_of(many, 1024, true) * 1e3,
             time_of(many, 16, false) * 1e3);
}

}  // namespace
}  // namespace hpsim::bench

int main() {
  fmt::print("{:<6} {:>15} {:>23} {:>23}\n", "", "1 of 4 ranks", "1,024 that share",
             "16 that do not");
  hpsim::bench::bench(hpsim::InitDevice::Cpu);
  hpsim::bench::bench(hpsim::InitDevice::Meta);
}
