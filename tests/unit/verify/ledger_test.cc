// Memory that differs from the plan in single events, planted, and what is said of it.

#include <utility>

#include "planted_run.h"
#include "support/catch.h"
#include "verify/compare_runs.h"

namespace hpsim {
namespace {

using test::CaseSpec;
using test::check_of;
using test::failed_checks;
using test::PlantedRun;
using Ids = std::vector<CheckId>;

/// One step of (7, 8) over 4 ranks with momentum. Steps of the plan: 0 unshard, 1 forward,
/// 2 reshard, 3 loss, 4 unshard, 5 backward, 6 reshard, 7 reduce_scatter, 8 store, 9 optimizer.
/// A slot has 64 bytes, all of them, gathered or as gradients, 256, the whole tensor 224.
CaseSpec one_step() {
  CaseSpec spec;
  spec.steps = 1;
  return spec;
}

std::int64_t& live(PlantedRun& planted, std::int64_t rank, std::size_t event, MemoryKind kind) {
  return planted.run.memory_events(Rank{rank})[event].live_after[static_cast<std::size_t>(kind)];
}

const Finding& only_finding(const Verdict& verdict) {
  CHECK(failed_checks(verdict) == Ids{CheckId::Ledger});
  REQUIRE(verdict.findings.size() == 1);
  CHECK(verdict.findings[0].code == FindingCode::MemEstimate);
  return verdict.findings[0];
}

TEST_CASE("all events of all ranks are compared") {
  PlantedRun planted{one_step()};
  const Verdict verdict = planted.judge();
  CHECK(verdict.passed());
  // Per rank: 9 peaks twice, 8 kinds after the step, 9 numbers of 10 events.
  CHECK(check_of(verdict, CheckId::Ledger).compared == 4 * (2 * 9 + 8 + 10 * 9));
}

TEST_CASE("a buffer that is freed one event late is found at its event") {
  PlantedRun planted{one_step()};
  CHECK(live(planted, 1, 2, MemoryKind::UnshardedParameters) == 0);
  live(planted, 1, 2, MemoryKind::UnshardedParameters) = 256;
  const Verdict verdict = planted.judge();
  const Finding& finding = only_finding(verdict);
  CHECK(finding.rank == 1);
  CHECK(finding.step == 0);
  CHECK(finding.expected == 0.0);
  CHECK(finding.got == 256.0);
  CHECK(finding.message ==
        "rank 1 (fsdp=1): live bytes of unsharded_parameters after reshard of unit \"(root)\" "
        "(step 2 of the plan, forward of optimizer step 0): 0 expected, 256 got");
}

TEST_CASE("a byte more at one event and one fewer at the next do not cancel") {
  PlantedRun planted{one_step()};
  live(planted, 2, 7, MemoryKind::ReduceBuffers) += 1;
  live(planted, 2, 8, MemoryKind::Gradients) -= 1;
  const Verdict verdict = planted.judge();
  CHECK(only_finding(verdict).message ==
        "rank 2 (fsdp=2): live bytes of reduce_buffers after reduce_scatter of unit \"(root)\" "
        "(step 7 of the plan, backward of optimizer step 0): 64 expected, 65 got; and 1 more, of "
        "all ranks");
}

TEST_CASE("bytes of the wrong kind are found although their sum is right") {
  PlantedRun planted{one_step()};
  for (const std::int64_t rank : {3, 1}) {
    std::swap(live(planted, rank, 5, MemoryKind::UnshardedGradients),
              live(planted, rank, 5, MemoryKind::ReduceBuffers));
  }
  const Verdict verdict = planted.judge();
  CHECK(
      only_finding(verdict).message ==
      "rank 1 (fsdp=1): live bytes of unsharded_gradients after backward of \"weight\" (step 5 of "
      "the plan, backward of optimizer step 0): 256 expected, 0 got; and 1 more, of all ranks");
}

TEST_CASE("what comes and goes within an event is found too") {
  PlantedRun planted{one_step()};
  planted.run.memory_events(Rank{0})[8].peak_total += 64;
  const Verdict verdict = planted.judge();
  const Finding& finding = only_finding(verdict);
  CHECK(finding.message.find("most bytes alive within store_gradient of unit \"(root)\" (step 8 of "
                             "the plan") != std::string::npos);
  CHECK(*finding.got - *finding.expected == 64);
}

TEST_CASE("memory while parameters are made is compared apart") {
  PlantedRun planted{one_step()};
  Ledger& init = planted.run.rank_record(Rank{2}).init;
  init.allocate(MemoryKind::UnshardedParameters, 228);
  const Verdict verdict = planted.judge();
  CHECK(failed_checks(verdict) == Ids{CheckId::Ledger});
  REQUIRE(verdict.findings.size() == 2);
  CHECK(verdict.findings[0].message ==
        "rank 2 (fsdp=2): peak bytes in total while parameters were made: 288 expected, 292 got");
  CHECK(verdict.findings[1].message ==
        "rank 2 (fsdp=2): peak bytes of unsharded_parameters while parameters were made: 224 "
        "expected, 228 got");
}

}  // namespace
}  // namespace hpsim
