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
using Indices = std::vector<std::int64_t>;

const Finding& only_finding(const Verdict& verdict, CheckId check, FindingCode code) {
  CHECK_FALSE(verdict.passed());
  CHECK(failed_checks(verdict) == Ids{check});
  const Finding* only = nullptr;
  for (const Finding& finding : verdict.findings) {
    if (finding.severity != Severity::Error) continue;  // ranks may draw the same small numbers
    UNSCOPED_INFO(finding.message);
    CHECK(only == nullptr);
    if (only == nullptr) only = &finding;
  }
  REQUIRE(only != nullptr);
  CHECK(only->check == check);
  CHECK(only->code == code);
  return *only;
}

/// 1 step of FSDP: all_gather, all_gather, reduce_scatter.
CaseSpec one_step() {
  CaseSpec spec;
  spec.steps = 1;
  return spec;
}

TEST_CASE("a collective that a rank left out is counted and named") {
  SECTION("the last one") {
    PlantedRun planted{one_step()};
    planted.run.rank_record(Rank{2}).num_collectives = 2;
    const Verdict verdict = planted.judge();
    const Finding& finding = only_finding(verdict, CheckId::PlanAgreement, FindingCode::CommCount);
    CHECK(finding.rank == 2);
    CHECK(finding.expected == 3.0);
    CHECK(finding.got == 2.0);
    CHECK(finding.message ==
          "rank 2 (fsdp=2): executed 2 collectives, 3 planned; from number 2 on they differ: "
          "reduce_scatter of unit \"(root)\", step 0, backward expected, the end got");
  }
  SECTION("one in the middle") {
    PlantedRun planted{one_step()};
    planted.run.executed(Rank{2})[1] = planted.run.executed(Rank{2})[2];
    planted.run.rank_record(Rank{2}).num_collectives = 2;
    const Verdict verdict = planted.judge();
    const Finding& finding = only_finding(verdict, CheckId::PlanAgreement, FindingCode::CommCount);
    CHECK(finding.message.find("from number 1 on they differ: all_gather of unit \"(root)\", step "
                               "0, backward expected, reduce_scatter of") != std::string::npos);
  }
  SECTION("all of them, on all ranks") {
    PlantedRun planted{one_step()};
    for (std::int64_t rank = 0; rank < 4; ++rank) {
      planted.run.rank_record(Rank{rank}).num_collectives = 0;
    }
    const Verdict verdict = planted.judge();
    const Finding& finding = only_finding(verdict, CheckId::PlanAgreement, FindingCode::CommCount);
    CHECK(finding.message.find("likewise on all 4 ranks") != std::string::npos);
  }
  SECTION("or one too many") {
    PlantedRun planted{one_step()};
    planted.run.rank_record(Rank{0}).num_collectives = 4;
    const Verdict verdict = planted.judge();
    const Finding& finding = only_finding(verdict, CheckId::PlanAgreement, FindingCode::CommCount);
    CHECK(finding.got == 4.0);
  }
}

TEST_CASE("collectives in another order than planned are found") {
  PlantedRun planted{one_step()};
  std::swap(planted.run.executed(Rank{1})[1], planted.run.executed(Rank{1})[2]);
  const Verdict verdict = planted.judge();
  const Finding& finding = only_finding(verdict, CheckId::PlanAgreement, FindingCode::CommOrder);
  CHECK(finding.rank == 1);
  CHECK(finding.coordinate == Indices{1});
  CHECK(finding.step == 0);
  CHECK(finding.message ==
        "rank 1 (fsdp=1): collective 1 is out of order: all_gather of unit \"(root)\", step 0, "
        "backward expected, reduce_scatter of unit \"(root)\", step 0, backward got");
}

TEST_CASE("a collective of another size than planned is found") {
  PlantedRun planted{one_step()};
  planted.run.executed(Rank{3})[0].elems_in = 8;  // its true shard instead of the padded one, 16
  const Verdict verdict = planted.judge();
  const Finding& finding = only_finding(verdict, CheckId::PlanAgreement, FindingCode::CommShape);
  CHECK(finding.rank == 3);
  CHECK(finding.expected == 16.0);
  CHECK(finding.got == 8.0);
  CHECK(finding.message ==
        "rank 3 (fsdp=3): collective 0 (all_gather of unit \"(root)\", step 0, forward): 16 "
        "elements in and 64 out expected, 8 and 64 got");
}

TEST_CASE("ranks of one group that entered with different tags are found") {
  CaseSpec spec = one_step();
  spec.mesh_shape = {2, 2};
  spec.mesh_names = {"rep", "fsdp"};
  PlantedRun planted(spec);
  planted.run.executed(Rank{3})[2].tag ^= 1;
  const Verdict verdict = planted.judge();
  const Finding& finding = only_finding(verdict, CheckId::PlanAgreement, FindingCode::CommGroup);
  CHECK(finding.rank == 3);
  CHECK(finding.message.find("as on rank 2 of the same group") != std::string::npos);
}

TEST_CASE("a tag that a whole group shares must still be the plan's") {
  PlantedRun planted{one_step()};
  for (std::int64_t rank = 0; rank < 4; ++rank)
    planted.run.executed(Rank{rank})[1].tag = 0;
  const Verdict verdict = planted.judge();
  only_finding(verdict, CheckId::PlanAgreement, FindingCode::CommGroup);
}

TEST_CASE("a collective that a rank completed in another step than planned is found") {
  // 0 all_gather, 1 forward, 2 reshard, 3 loss, 4 all_gather: each is completed at once.
  PlantedRun planted{one_step()};
  planted.run.executed(Rank{2})[0].completed_in = 1;
  const Verdict verdict = planted.judge();
  const Finding& finding = only_finding(verdict, CheckId::PlanAgreement, FindingCode::CommOrder);
  CHECK(finding.rank == 2);
  CHECK(finding.message ==
        "rank 2 (fsdp=2): collective 0 (all_gather of unit \"(root)\", step 0, forward): "
        "completed in plan step 0, unshard expected, in plan step 1, forward got");
}

TEST_CASE("what was begun, and completed too early, too late or never, is found") {
  // 0 unshard a, 1 begin b, 2 forward a, 3 reshard a, 4 wait b, 5 forward b
  CaseSpec spec = one_step();
  spec.parameters = {{"a", {7, 8}}, {"b", {7, 8}}};
  spec.units = {"a", "b"};
  spec.forward_prefetch = 1;
  CHECK(PlantedRun{spec}.judge().passed());
  CHECK(check_of(PlantedRun{spec}.judge(), CheckId::PlanAgreement).compared >
        check_of(PlantedRun{one_step()}.judge(), CheckId::PlanAgreement).compared);
  const auto found = [&](std::int64_t completed_in) {
    PlantedRun planted{spec};
    CHECK(planted.run.executed(Rank{0})[1].completed_in == 4);
    planted.run.executed(Rank{0})[1].completed_in = completed_in;
    const Verdict verdict = planted.judge();
    return only_finding(verdict, CheckId::PlanAgreement, FindingCode::CommOrder).message;
  };
  const std::string what =
      "rank 0 (fsdp=0): collective 1 (all_gather of unit \"b\", step 0, forward): completed in "
      "plan step 4, wait_unshard expected, ";
  CHECK(found(1) == what + "in plan step 1, unshard got");
  CHECK(found(5) == what + "in plan step 5, forward got");
  CHECK(found(-1) == what + "nowhere got");
}

TEST_CASE("held rows that are not those of the placements are found") {
  PlantedRun planted{one_step()};
  planted.run.record_held(Rank{3}, 0, {{{5, 0}, {1, 8}}});  // row 6 of 7 is its own
  const Verdict verdict = planted.judge();
  CHECK(failed_checks(verdict) == Ids{CheckId::Placements});
  REQUIRE(verdict.findings.size() == 3);
  CHECK(verdict.findings[0].code == FindingCode::OffsetWrong);
  CHECK(verdict.findings[0].rank == 3);
  CHECK(verdict.findings[0].expected == 6.0);
  CHECK(verdict.findings[0].got == 5.0);
  CHECK(verdict.findings[0].message ==
        "\"weight\" on rank 3 (fsdp=3): placements [RaggedShard((0,), (2, 2, 2, 1))] imply "
        "(6, 0) + (1, 8), (5, 0) + (1, 8) held");
  CHECK(verdict.findings[1].code == FindingCode::LayoutOverlap);
  CHECK(verdict.findings[2].code == FindingCode::LayoutGap);
}

TEST_CASE("the offset of an empty shard counts") {
  CaseSpec spec = one_step();
  spec.parameters = {{"weight", {2, 3}}};
  PlantedRun planted(spec);
  planted.run.record_held(Rank{3}, 0, {{{0, 0}, {0, 3}}});  // at 2 is right: it holds nothing
  const Verdict verdict = planted.judge();
  only_finding(verdict, CheckId::Placements, FindingCode::OffsetWrong);
}

TEST_CASE("a rank that holds padding as if it were its own is found twice") {
  PlantedRun planted{one_step()};
  planted.run.record_held(Rank{3}, 0, {{{6, 0}, {2, 8}}});
  const Verdict verdict = planted.judge();
  CHECK(failed_checks(verdict) == Ids{CheckId::Placements, CheckId::Padding});
  CHECK(verdict.findings.back().code == FindingCode::PaddingExposed);
  CHECK(verdict.findings.back().rank == 3);
  CHECK(verdict.findings.back().expected == 8.0);
  CHECK(verdict.findings.back().got == 16.0);
}

TEST_CASE("padding that was not zero when it was sent is found") {
  PlantedRun planted{one_step()};
  RankRecord& record = planted.run.rank_record(Rank{3});
  record.padding_nonzero = 2;
  record.first_nonzero_step = 0;
  record.first_nonzero_parameter = 0;
  const Verdict verdict = planted.judge();
  const Finding& finding = only_finding(verdict, CheckId::Padding, FindingCode::PaddingNonzero);
  CHECK(finding.rank == 3);
  CHECK(finding.step == 0);
  CHECK(finding.param == "weight");
  CHECK(finding.got == 2.0);
}

TEST_CASE("padding that nobody looked at proves nothing") {
  PlantedRun planted{one_step()};
  for (std::int64_t rank = 0; rank < 4; ++rank) {
    planted.run.rank_record(Rank{rank}).padding_checked = 0;
  }
  const Verdict verdict = planted.judge();
  const Finding& finding = only_finding(verdict, CheckId::Padding, FindingCode::VacuousBound);
  CHECK(finding.message == "padding compared 0 numbers, more than 0 expected: nothing is proved");
}

TEST_CASE("an even parameter is never padded") {
  CaseSpec spec = one_step();
  spec.parameters = {{"weight", {8, 8}}};
  PlantedRun planted(spec);
  CHECK(check_of(planted.judge(), CheckId::Padding).compared == 4);
  planted.run.rank_record(Rank{1}).pad_allocations = 1;
  const Verdict verdict = planted.judge();
  const Finding& finding = only_finding(verdict, CheckId::Padding, FindingCode::PaddingExposed);
  CHECK(finding.rank == 1);
  CHECK(finding.message == "rank 1 (fsdp=1): padded slots allocated: 0 expected, 1 got");
}

TEST_CASE("padding written more often than planned is found") {
  PlantedRun planted{one_step()};
  planted.run.rank_record(Rank{0}).pad_copies += 1;
  const Verdict verdict = planted.judge();
  only_finding(verdict, CheckId::Padding, FindingCode::PaddingExposed);
}

TEST_CASE("memory that differs from the plan by 4 bytes is found") {
  SECTION("in a peak") {
    PlantedRun planted{one_step()};
    Ledger& ledger = planted.run.rank_record(Rank{2}).ledger;
    const auto kind = static_cast<std::size_t>(MemoryKind::OptimizerState);
    const std::int64_t room = ledger.peak()[kind] - ledger.live()[kind];
    ledger.allocate(MemoryKind::OptimizerState, room + 4);
    const Verdict verdict = planted.judge();
    const Finding& finding = only_finding(verdict, CheckId::Ledger, FindingCode::MemEstimate);
    CHECK(finding.rank == 2);
    // Rows 4 and 5 of 8 float32 and one momentum buffer: 64 bytes.
    CHECK(finding.message == "rank 2 (fsdp=2): peak bytes of optimizer_state: 64 expected, 68 got");
  }
  SECTION("in what is live after a step") {
    PlantedRun planted{one_step()};
    for (const std::int64_t rank : {1, 3}) {
      planted.run.step_record(Rank{rank}, 0)
          .live_after[static_cast<std::size_t>(MemoryKind::UnshardedParameters)] = 4;
    }
    const Verdict verdict = planted.judge();
    const Finding& finding = only_finding(verdict, CheckId::Ledger, FindingCode::MemEstimate);
    CHECK(finding.message ==
          "rank 1 (fsdp=1): live bytes of unsharded_parameters after step 0: 0 expected, 4 got; "
          "wrong on ranks 1, 3");
    CHECK(finding.step == 0);
  }
}

}  // namespace
}  // namespace hpsim
