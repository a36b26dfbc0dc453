#include <malloc.h>

#include <fstream>
#include <string>
#include <vector>

#include "base/error.h"
#include "exec/gloo/gloo_executor.h"
#include "plan/build_plan.h"
#include "plan/verify_plan.h"
#include "support/catch.h"
#include "support/private_network.h"
#include "support/scenarios.h"
#include "unit/exec/leftovers.h"

namespace hpsim {
namespace {

VerifiedPlan plan_with(std::vector<FaultSpec> faults) {
  Scenario scenario = test::hsdp_scenario(
      test::modules_model({test::linear("l0", 6, 10), test::linear("l1", 10, 3)}), 2, 2);
  scenario.faults = std::move(faults);
  return verify_plan(build_plan(std::move(scenario)));
}

FaultSpec fault(const std::string& name, std::int64_t rank, std::int64_t seq) {
  FaultSpec spec;
  spec.name = name;
  spec.ranks = {Rank{rank}};
  spec.seq = seq;
  spec.pointer = "/faults/0";
  return spec;
}

std::size_t num_mappings() {
  std::ifstream maps("/proc/self/maps");
  std::string line;
  std::size_t count = 0;
  while (std::getline(maps, line))
    ++count;
  return count;
}

/// One run that passes, one in which a rank is killed, one in which a rank throws, in turn.
void run_in_turn(int count) {
  const std::vector<VerifiedPlan> plans = {plan_with({}), plan_with({fault("kill", 1, 2)}),
                                           plan_with({fault("throw", 3, 4)})};
  int num_failed = 0;
  for (int i = 0; i < count; ++i) {
    try {
      (void)make_gloo_executor()->run(plans[static_cast<std::size_t>(i) % plans.size()], {});
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::RankFailure);
      ++num_failed;
    }
  }
  CHECK(num_failed == count - (count + 2) / 3);
}

/// Runs in one process must not leave open files, files, shared memory, children, sockets, mappings
/// or heap; of the last two, what the first few runs set up once is none.
void check_nothing_is_left(int count) {
  const bool is_private = enter_private_network();
  if (!is_private) WARN("the kernel gives no private network: sockets are not looked at");
  const PrivateDirectory directory;
  const std::string before = leftovers();
  run_in_turn(1);  // passes
  if (is_private) CHECK(taken_ports() == "");
  run_in_turn(3);
  const std::size_t mappings = num_mappings();
  const auto heap_bytes = static_cast<std::int64_t>(mallinfo2().uordblks);
  run_in_turn(count);
  CHECK(leftovers() == before);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // their allocators keep more
  CHECK(num_mappings() == mappings);
  // Buffers of the test framework; beyond them less than any message or buffer of a run.
  const std::int64_t noise_bytes = 4096 + 64 * count;
  CHECK(static_cast<std::int64_t>(mallinfo2().uordblks) - heap_bytes < noise_bytes);
#else
  (void)mappings;
  (void)heap_bytes;
#endif
  if (is_private) CHECK(open_sockets() == "");
}

TEST_CASE("runs in a row, failing and passing, leave nothing behind") {
  check_nothing_is_left(6);
}

TEST_CASE("100 runs in a row, failing and passing, leave nothing behind", "[.slow]") {
  check_nothing_is_left(100);
}

}  // namespace
}  // namespace hpsim
