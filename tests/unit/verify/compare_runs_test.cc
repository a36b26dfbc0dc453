#include "verify/compare_runs.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "planted_run.h"
#include "support/catch.h"

namespace hpsim {
namespace {

using test::CaseSpec;
using test::check_of;
using test::failed_checks;
using test::has_check;
using test::PlantedRun;
using Ids = std::vector<CheckId>;
using Indices = std::vector<std::int64_t>;

CaseSpec hsdp_case() {
  CaseSpec spec;
  spec.mesh_shape = {2, 2};
  spec.mesh_names = {"rep", "fsdp"};
  spec.parameters = {{"a", {3, 2}}, {"b", {5}}};
  return spec;
}

CaseSpec even_case() {
  CaseSpec spec;
  spec.parameters = {{"weight", {8, 8}}};
  return spec;
}

/// The one finding that a planted fault must give, of the one check that must fail.
const Finding& only_finding(const Verdict& verdict, CheckId check, FindingCode code) {
  CHECK_FALSE(verdict.passed());
  CHECK(failed_checks(verdict) == Ids{check});
  REQUIRE(verdict.findings.size() >= 1);
  UNSCOPED_INFO(verdict.findings[0].message);
  CHECK(verdict.findings.size() == 1);
  CHECK(verdict.findings[0].check == check);
  CHECK(verdict.findings[0].code == code);
  return verdict.findings[0];
}

TEST_CASE("a right run of uneven FSDP passes, and the numbers compared are those of its shards") {
  const PlantedRun planted{CaseSpec{}};
  const Verdict verdict = planted.judge();
  for (const Finding& finding : verdict.findings)
    UNSCOPED_INFO(finding.message);
  CHECK(verdict.passed());
  // Weight (7, 8), 4 shards without copies, 2 steps, 1 state tensor.
  CHECK(check_of(verdict, CheckId::LossParity).compared == 2);
  CHECK(check_of(verdict, CheckId::GradientParity).compared == 2 * 56);
  CHECK(check_of(verdict, CheckId::ParameterParity).compared == 3 * 56);
  CHECK(check_of(verdict, CheckId::OptimizerStateParity).compared == 2 * 56);
  CHECK(check_of(verdict, CheckId::GradNormParity).compared == 2);
  // 4 ranks, 8 kinds of memory: peaks, their total, and live bytes after 2 steps.
  CHECK(check_of(verdict, CheckId::Ledger).compared == 4 * (2 * 9 + 2 * 8 + 20 * 9));
  CHECK(check_of(verdict, CheckId::GradientParity).worst->ratio == 0);
  CHECK_FALSE(has_check(verdict, CheckId::ReplicaAgreement));
  CHECK(verdict.losses == std::vector<double>{0.5, 0.5});
  CHECK(verdict.grad_norms.size() == 2);
  CHECK(std::is_sorted(verdict.checks.begin(), verdict.checks.end(),
                       [](const auto& a, const auto& b) { return a.id < b.id; }));
  // What ranks did is added to what the plan's checks compared: 2 all-gathers and a reduce-scatter
  // per step and their number, on 4 ranks; held rows on 4 ranks.
  const auto planned = [&](CheckId id) {
    for (const CheckResult& result : planted.plan.checks().results) {
      if (result.id == id) return result.compared;
    }
    return std::int64_t{-1};
  };
  CHECK(check_of(verdict, CheckId::PlanAgreement).compared ==
        planned(CheckId::PlanAgreement) + 4 * (2 * 3 + 1));
  CHECK(check_of(verdict, CheckId::Placements).compared == planned(CheckId::Placements) + 4);
  CHECK(check_of(verdict, CheckId::Coverage).compared == planned(CheckId::Coverage));
}

TEST_CASE("a right run of HSDP passes, copies included") {
  for (const std::vector<std::int64_t>& ranks : {Indices{}, Indices{3, 1, 0, 2}}) {
    CaseSpec spec = hsdp_case();
    spec.ranks = ranks;
    const Verdict verdict = PlantedRun(spec).judge();
    for (const Finding& finding : verdict.findings)
      UNSCOPED_INFO(finding.message);
    CHECK(verdict.passed());
    // a (3, 2) and b (5): 11 numbers, each on 2 replicas, 2 steps.
    CHECK(check_of(verdict, CheckId::GradientParity).compared == 2 * 2 * 11);
    // The second copy of initial values, and of gradient, parameter, state in 2 steps.
    CHECK(check_of(verdict, CheckId::ReplicaAgreement).compared == 11 * (1 + 2 * 3));
    CHECK(check_of(verdict, CheckId::LossParity).compared == 2);
  }
}

TEST_CASE("adam, float64, exact mode, one rank, empty shards and replicated parameters pass") {
  CaseSpec adam;
  adam.optimizer = {.kind = OptimizerSpec::Kind::Adam};
  CHECK(check_of(PlantedRun(adam).judge(), CheckId::OptimizerStateParity).compared == 2 * 2 * 56);
  CaseSpec sgd;
  sgd.optimizer = {};
  CHECK_FALSE(has_check(PlantedRun(sgd).judge(), CheckId::OptimizerStateParity));
  CaseSpec wide;
  wide.dtype = DType::Float64;
  CaseSpec exact;
  exact.exact = true;
  CaseSpec one;
  one.mesh_shape = {1};
  CaseSpec empty;
  empty.parameters = {{"weight", {2, 3}}};
  CaseSpec replicated;
  replicated.parameters = {{"weight", {7, 8}}, {"bias", {3}}};
  replicated.replicate_params = {1};
  for (const CaseSpec& spec : {adam, sgd, wide, exact, one, empty, replicated, even_case()}) {
    const Verdict verdict = PlantedRun(spec).judge();
    for (const Finding& finding : verdict.findings)
      UNSCOPED_INFO(finding.message);
    CHECK(verdict.passed());
  }
  const Verdict of_replicated = PlantedRun(replicated).judge();
  CHECK(check_of(of_replicated, CheckId::GradientParity).compared == 2 * (56 + 4 * 3));
  CHECK(check_of(of_replicated, CheckId::ReplicaAgreement).compared == 3 * 3 * (1 + 2 * 3));
}

TEST_CASE("a gradient off by one factor everywhere is one finding with the factor's name") {
  PlantedRun planted{CaseSpec{}};
  for (std::int64_t rank = 0; rank < 4; ++rank) {
    for (std::int64_t step = 0; step < 2; ++step) {
      for (std::int64_t i = 0; i < planted.elems(rank); ++i)
        planted.gradient(rank, step)[i] *= 4;
    }
  }
  const Verdict verdict = planted.judge();
  const Finding& finding = only_finding(verdict, CheckId::GradientParity, FindingCode::GradScale);
  CHECK(finding.ratio == 4.0);
  CHECK(finding.explains == std::vector<std::string>{"D=4", "S=4", "F=4"});
  CHECK(finding.param == "weight");
  CHECK(finding.step == 0);
  CHECK(finding.message.find("every element is 4 times the expected value: D=4, S=4, F=4; "
                             "likewise on all 4 ranks, 2 steps") != std::string::npos);
}

TEST_CASE("a factor on one rank only is told with its place") {
  PlantedRun planted{CaseSpec{}};
  for (std::int64_t i = 0; i < planted.elems(3); ++i)
    planted.gradient(3, 1)[i] *= 1.5F;
  const Verdict verdict = planted.judge();
  const Finding& finding = only_finding(verdict, CheckId::GradientParity, FindingCode::GradScale);
  CHECK(finding.rank == 3);
  CHECK(finding.coordinate == Indices{3});
  CHECK(finding.step == 1);
  CHECK(finding.ratio == 1.5);
  CHECK(finding.explains.empty());
  // err/bound = v / 2 / (2^-20 + 2^-22 v) grows with v: the largest is at the last element, (6, 7),
  // 2 * 56 / 8 = 14, and is 7 / (4.5 * 2^-20) = 1.63e6.
  CHECK(finding.index == Indices{6, 7});
  CHECK(finding.message ==
        "gradient of \"weight\" on rank 3 (fsdp=3), step 1, index (6, 7): 14 expected, 21 got, off "
        "by 1.63e+06 times the bound; every element is 1.5 times the expected value");
}

TEST_CASE("a factor of parameters with different groups is explained by what they share") {
  CaseSpec spec;
  spec.parameters = {{"weight", {7, 8}}, {"bias", {3}}};
  spec.replicate_params = {1};
  PlantedRun planted(spec);
  for (std::int64_t rank = 0; rank < 4; ++rank) {
    for (int p = 0; p < 2; ++p) {
      for (std::int64_t i = 0; i < planted.elems(rank, p); ++i)
        planted.gradient(rank, 0, p)[i] /= 4;
    }
  }
  const Verdict verdict = planted.judge();
  const Finding& finding = only_finding(verdict, CheckId::GradientParity, FindingCode::GradScale);
  CHECK(finding.ratio == 0.25);
  CHECK(finding.explains == std::vector<std::string>{"1/D=1/4", "1/F=1/4", "1/W=1/4"});
}

TEST_CASE("one element outside its bound fails, just inside it passes") {
  // Element 0 of rank 2 is global index (4, 0), value 2 * 33 / 8 = 8.25, spread 2^-20: the bound is
  // 2^-20 + 4 * 2^-24 * 8.25 = 2^-20 + 2.0625 * 2^-20 = 3.0625 * 2^-20, and float32 values near
  // 8.25 are 2^-20 apart.
  PlantedRun inside{CaseSpec{}};
  inside.gradient(2)[0] = 8.25F + 3 * 0x1p-20F;
  const Verdict verdict = inside.judge();
  CHECK(verdict.passed());
  const WorstElement worst = *check_of(verdict, CheckId::GradientParity).worst;
  CHECK(worst.ratio == Approx(3 / 3.0625));
  CHECK(worst.rank == 2);
  CHECK(worst.param == "weight");

  PlantedRun outside{CaseSpec{}};
  outside.gradient(2)[0] = 8.25F + 4 * 0x1p-20F;
  const Verdict failed = outside.judge();
  const Finding& finding = only_finding(failed, CheckId::GradientParity, FindingCode::GradValue);
  CHECK(finding.rank == 2);
  CHECK(finding.index == Indices{4, 0});
  CHECK(finding.expected == 8.25);
  CHECK(finding.got == 8.25 + 0x1p-18);
  CHECK_FALSE(finding.ratio.has_value());
  CHECK(finding.message ==
        "gradient of \"weight\" on rank 2 (fsdp=2), step 0, index (4, 0): 8.25 expected, 8.250004 "
        "got, off by 1.31 times the bound; 1 of 16 elements of the shard are off");
}

TEST_CASE("NaN and infinity are never within a bound") {
  for (const float value :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    PlantedRun planted{CaseSpec{}};
    planted.gradient(1, 1)[5] = value;
    const Verdict verdict = planted.judge();
    const Finding& finding = only_finding(verdict, CheckId::GradientParity, FindingCode::GradValue);
    CHECK(finding.rank == 1);
    CHECK(finding.step == 1);
    CHECK(finding.index == Indices{2, 5});
    CHECK(finding.message.find("not a finite number") != std::string::npos);
  }
}

TEST_CASE("exact mode fails on one unit of the last place, and takes -0 for +0") {
  CaseSpec spec;
  spec.exact = true;
  PlantedRun planted(spec);
  planted.parameter(0, 2)[3] = std::nextafter(planted.parameter(0, 2)[3], 100.0F);
  const Verdict verdict = planted.judge();
  const Finding& finding = only_finding(verdict, CheckId::ParameterParity, FindingCode::ParamValue);
  CHECK(finding.step == 1);
  CHECK(finding.index == Indices{0, 3});
  CHECK(finding.message ==
        "parameter \"weight\" on rank 0 (fsdp=0), step 1, index (0, 3): 0.5 expected, 0.50000006 "
        "got, no difference is allowed; 1 of 16 elements of the shard are off");

  PlantedRun zeros(spec);
  zeros.reference.steps[0].gradients[0].value[0] = 0;
  zeros.gradient(0)[0] = -0.0F;
  CHECK(zeros.judge().passed());
}

TEST_CASE("exact mode fails where an operation rounded, whatever the numbers") {
  CaseSpec spec;
  spec.exact = true;
  PlantedRun planted(spec);
  planted.run.step_record(Rank{2}, 1).inexact = 1;
  const Verdict verdict = planted.judge();
  const Finding& finding = only_finding(verdict, CheckId::GradientParity, FindingCode::GradValue);
  CHECK(finding.rank == 2);
  CHECK(finding.step == 1);
}

TEST_CASE("exact mode bounds the norm by the rounding of float64 alone") {
  CaseSpec spec;
  spec.exact = true;
  PlantedRun planted(spec);
  // 60 numbers and roundings on each side: 1.3e-14 of the norm. Rank 2 holds elements 33 to 48 of
  // 56, 44 % of the sum of squares, so that 1e-13 of its square is 2.2e-14 of the norm.
  planted.run.step_record(Rank{2}, 0).norm_power *= 1 + 1e-14;
  CHECK(planted.judge().passed());
  planted.run.step_record(Rank{2}, 0).norm_power *= 1 + 1e-13;
  const Verdict verdict = planted.judge();
  only_finding(verdict, CheckId::GradNormParity, FindingCode::NormValue);
}

TEST_CASE("initial parameters must equal those of the reference") {
  PlantedRun planted{CaseSpec{}};
  planted.parameter(1, 0)[0] = std::nextafter(planted.parameter(1, 0)[0], 100.0F);
  const Verdict verdict = planted.judge();
  const Finding& finding = only_finding(verdict, CheckId::ParameterParity, FindingCode::ParamValue);
  CHECK_FALSE(finding.step.has_value());
  CHECK(finding.index == Indices{2, 0});
  CHECK(finding.message.find("before step 0") != std::string::npos);
}

TEST_CASE("optimizer state is compared, tensor by tensor") {
  CaseSpec spec;
  spec.optimizer = {.kind = OptimizerSpec::Kind::AdamW};
  PlantedRun planted(spec);
  planted.state(3, 1, 1)[7] += 1;
  const Verdict verdict = planted.judge();
  const Finding& finding =
      only_finding(verdict, CheckId::OptimizerStateParity, FindingCode::ParamValue);
  CHECK(finding.index == Indices{6, 7});
  CHECK(finding.message.find("exp_avg_sq of \"weight\" on rank 3") == 0);
}

TEST_CASE("bounds that say nothing fail the check") {
  PlantedRun planted{CaseSpec{}};
  auto& tensor = planted.reference.steps[1].gradients[0];
  // Median |expected| is the 29th of 56 values, 29 / 4.
  std::fill(tensor.spread.begin(), tensor.spread.end(), 29.0 / 32 + 0.01);
  const Verdict verdict = planted.judge();
  const Finding& finding =
      only_finding(verdict, CheckId::GradientParity, FindingCode::VacuousBound);
  CHECK(finding.step == 1);
  CHECK(finding.param == "weight");

  PlantedRun tight{CaseSpec{}};
  auto& narrow = tight.reference.steps[1].gradients[0];
  std::fill(narrow.spread.begin(), narrow.spread.end(), 29.0 / 32 - 0.01);
  CHECK(tight.judge().passed());
}

TEST_CASE("a loss outside its bound fails, and is named by its factor") {
  PlantedRun planted{CaseSpec{}};
  for (std::int64_t rank = 0; rank < 4; ++rank) {
    planted.run.losses(Rank{rank}, 1)[0] = 2;
  }
  const Verdict verdict = planted.judge();
  const Finding& finding = only_finding(verdict, CheckId::LossParity, FindingCode::LossValue);
  CHECK(finding.step == 1);
  CHECK(finding.expected == 0.5);
  CHECK(finding.got == 2.0);
  CHECK(finding.ratio == 4.0);
  CHECK(finding.explains == std::vector<std::string>{"D=4", "F=4", "W=4"});
  CHECK(verdict.losses == std::vector<double>{0.5, 2});
}

TEST_CASE("losses are averaged for local_mean and added for sum") {
  CaseSpec spec;
  PlantedRun planted(spec);
  planted.run.losses(Rank{0}, 0)[0] = 1.25;
  planted.run.losses(Rank{3}, 0)[0] = -0.25;
  CHECK(planted.judge().losses[0] == 0.5);  // (1.25 + 0.5 + 0.5 - 0.25) / 4
  CHECK(planted.judge().passed());
}

TEST_CASE("ranks that see the same data must hold the same loss") {
  CaseSpec spec;
  spec.mesh_shape = {2, 2};
  spec.mesh_names = {"x", "fsdp"};  // x has no role and no data: copies
  PlantedRun planted(spec);
  CHECK(planted.judge().passed());
  CHECK(check_of(planted.judge(), CheckId::LossParity).compared == 2 * (1 + 2));
  double& loss = planted.run.losses(Rank{3}, 0)[0];
  loss = std::nextafter(loss, 1.0);
  const Verdict verdict = planted.judge();
  const Finding& finding = only_finding(verdict, CheckId::LossParity, FindingCode::LossValue);
  CHECK(finding.rank == 3);
  CHECK(finding.message.find("as on rank 1, which sees the same data") != std::string::npos);
}

TEST_CASE("a gradient norm that counts copies is off by a root") {
  PlantedRun planted{hsdp_case()};
  for (std::int64_t rank = 0; rank < 4; ++rank) {
    planted.run.step_record(Rank{rank}, 0).norm_power *= 2;
  }
  const Verdict verdict = planted.judge();
  const Finding& finding = only_finding(verdict, CheckId::GradNormParity, FindingCode::NormValue);
  CHECK(finding.step == 0);
  CHECK(*finding.ratio == Approx(std::sqrt(2.0)));
  CHECK(finding.explains ==
        std::vector<std::string>{
            "counts copies along rep: gradients that all its ranks hold count 2 times", "sqrt(S=2)",
            "sqrt(R=2)"});
}

TEST_CASE("a replica that differs in one bit is found, though it is within its bound") {
  PlantedRun planted{hsdp_case()};
  // Ranks 1 and 3 hold the second shard: row 2 of a, (2, 1) is the last element.
  float& value = planted.gradient(3, 1, 0)[1];
  value = std::nextafter(value, 100.0F);
  const Verdict verdict = planted.judge();
  const Finding& finding =
      only_finding(verdict, CheckId::ReplicaAgreement, FindingCode::ReplicaDiverged);
  CHECK(finding.param == "a");
  CHECK(finding.rank == 3);
  CHECK(finding.coordinate == Indices{1, 1});
  CHECK(finding.step == 1);
  CHECK(finding.index == Indices{2, 1});
  CHECK(finding.message ==
        "gradient of \"a\", step 1, index (2, 1): copies on ranks 1, 3 differ: 1.5 expected as on "
        "rank 1, 1.5000001 got on rank 3 (rep=1, fsdp=1)");
}

TEST_CASE("copies of parameters and state are compared too") {
  PlantedRun planted{hsdp_case()};
  float& weight = planted.parameter(2, 1, 1)[0];
  weight = std::nextafter(weight, 100.0F);
  float& momentum = planted.state(2, 0, 0, 1)[2];
  momentum = std::nextafter(momentum, 100.0F);
  const Verdict verdict = planted.judge();
  CHECK(failed_checks(verdict) == Ids{CheckId::ReplicaAgreement});
  REQUIRE(verdict.findings.size() == 2);
  CHECK(verdict.findings[0].message.find("parameter \"b\"") == 0);
  CHECK(verdict.findings[1].message.find("optimizer state 0 of \"b\"") == 0);
  CHECK(verdict.findings[1].index == Indices{2});
}

}  // namespace
}  // namespace hpsim
