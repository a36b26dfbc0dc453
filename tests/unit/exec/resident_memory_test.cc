// The memory that a rank really touches while it makes its parameters: the most of its process, as
// the kernel counts it. Not with sanitizers, whose shadows it would count.

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "engine/rank_engine.h"
#include "exec/rank_processes.h"
#include "exec/shared_memory.h"
#include "plan/build_plan.h"
#include "plan/verify_plan.h"
#include "support/catch.h"
#include "support/scenarios.h"

namespace hpsim {
namespace {

constexpr std::int64_t kMiB = std::int64_t{1} << 20;
constexpr std::int64_t kRanks = 8;

/// A number of /proc/self/status, in bytes.
std::int64_t status_bytes(const std::string& key) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind(key + ":", 0) == 0) return std::atoll(line.c_str() + key.size() + 1) * 1024;
  }
  return -1;
}

/// Of `features` x `features` float32 over 8 ranks: how much more than at its start the process of
/// a rank had at its peak, while it made its engine and all that this holds before training.
std::int64_t peak_of_init(std::int64_t features, InitDevice device, Rank rank) {
  Scenario scenario =
      test::fsdp_scenario(test::elementwise_model({{"w", {features, features}}}), kRanks);
  scenario.training.init_device = device;
  const VerifiedPlan plan = verify_plan(build_plan(scenario));
  const Recording nothing{.tensors = false, .events = false};
  RunResult result("test", ResultLayout(*plan, nothing),
                   map_shared(ResultLayout(*plan, nothing).size_bytes()));
  const auto told = map_shared(2 * sizeof(std::int64_t));
  auto* const numbers = reinterpret_cast<std::int64_t*>(told.get());
  RankProcesses process(1, [&](Rank) {
    const std::int64_t before = status_bytes("VmRSS");
    const auto engine = make_rank_engine(plan, rank, result);
    numbers[0] = status_bytes("VmHWM") - before;
    numbers[1] = result.rank_record(rank).init.peak_total();
  });
  while (!process.states()[0].ended())
    process.wait(std::chrono::milliseconds(1000));
  INFO(process.output());
  REQUIRE(process.states()[0].kind == ProcessState::Kind::Exited);
  REQUIRE(process.states()[0].code == 0);
  // The ledger tells the same: a shard of 1/8, and the whole on cpu.
  const std::int64_t whole = features * features * 4;
  CHECK(numbers[1] == whole / kRanks + (device == InitDevice::Cpu ? whole : 0));
  return numbers[0];
}

/// On meta every rank touches its shard; on cpu, as the measurement must see, the whole as well.
void check_touched(std::int64_t features) {
  // Beside tensors there are the plan's records, stacks and pages of code touched for the first
  // time; a buffer is rounded up to a huge page of 2 MiB, twice at most.
  constexpr std::int64_t kAllowance = 8 * kMiB;
  const std::int64_t whole = features * features * 4;
  for (std::int64_t rank = 0; rank < kRanks; ++rank) {
    const std::int64_t peak = peak_of_init(features, InitDevice::Meta, Rank{rank});
    CAPTURE(rank, peak);
    CHECK(peak >= whole / kRanks);
    CHECK(peak <= whole / kRanks + kAllowance);
  }
  const std::int64_t peak = peak_of_init(features, InitDevice::Cpu, Rank{kRanks - 1});
  CAPTURE(peak);
  CHECK(peak >= whole + whole / kRanks);
  CHECK(peak <= whole + whole / kRanks + kAllowance);
}

TEST_CASE("on meta a rank touches its shard of 256 MiB, on cpu the whole") {
  check_touched(8192);
}

TEST_CASE("on meta a rank touches its shard of 1 GiB, on cpu the whole", "[.slow]") {
  check_touched(16384);
}

}  // namespace
}  // namespace hpsim
