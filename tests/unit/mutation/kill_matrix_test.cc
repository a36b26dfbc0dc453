#include "mutation/kill_matrix.h"

#include "support/catch.h"
#include "unit/mutation/sample_matrix.h"

namespace hpsim {
namespace {

TEST_CASE("a trial is judged by the own checks of its fault") {
  const FaultKind& stall = fault_kind("stall");
  CHECK(judge_trial(stall, {}) == TrialOutcome::Survived);
  CHECK(judge_trial(stall, {kHang}) == TrialOutcome::Own);
  CHECK(judge_trial(stall, {kValue, kHang}) == TrialOutcome::Own);
  CHECK(judge_trial(stall, {kValue}) == TrialOutcome::Other);
  // The right code of another check, and another code of the right check.
  CHECK(judge_trial(stall, {{CheckId::SyncSet, FindingCode::Hang}}) == TrialOutcome::Other);
  CHECK(judge_trial(stall, {kDied}) == TrialOutcome::Other);
}

TEST_CASE("places, own, other and survived add up by fault and in all") {
  const KillMatrix matrix = sample_matrix();
  CHECK(matrix.counts_of(0) == KillMatrix::Counts{.places = 2, .own = 2});
  CHECK(matrix.counts_of(1) ==
        KillMatrix::Counts{.places = 3, .own = 1, .other = 1, .survived = 1});
  CHECK(matrix.total() == KillMatrix::Counts{.places = 5, .own = 3, .other = 1, .survived = 1});
}

TEST_CASE("a matrix passes if every fault is found by its own check, and nothing without one") {
  CHECK_FALSE(sample_matrix().passed());
  CHECK(perfect_matrix().passed());
  KillMatrix survived = perfect_matrix();
  survived.scenarios[0].trials[0] = {TrialOutcome::Survived, {}, ""};
  CHECK_FALSE(survived.passed());
  KillMatrix other = perfect_matrix();
  other.scenarios[0].trials[0] = {TrialOutcome::Other, {kValue}, ""};
  CHECK_FALSE(other.passed());
  KillMatrix noisy = perfect_matrix();
  noisy.scenarios[2].noise = {kValue};
  CHECK_FALSE(noisy.passed());
  KillMatrix failing = perfect_matrix();
  failing.scenarios[2].noise_failure = "internal error";
  CHECK_FALSE(failing.passed());
}

}  // namespace
}  // namespace hpsim
