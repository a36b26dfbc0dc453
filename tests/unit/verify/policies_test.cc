// Trainings in narrow dtypes, in micro-batches, with frozen parameters and clipping: right runs
// pass, and what is planted in them is found.

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "baseline/eigen_baseline.h"
#include "exec/local.h"
#include "plan/build_plan.h"
#include "plan/verify_plan.h"
#include "planted_run.h"
#include "spoiled_run.h"
#include "support/catch.h"
#include "support/scenarios.h"
#include "verify/compare_runs.h"

namespace hpsim::test {
namespace {

using Ids = std::vector<CheckId>;

/// A run of a scenario, and its judge.
struct Judged {
  explicit Judged(const Scenario& told, const Spoiling& spoiling = {})
      : plan(verify_plan(build_plan(told))), run(run_spoiled(plan, spoiling)) {}

  [[nodiscard]] Verdict judge() const {
    return compare_runs(plan, run, run_baseline(plan->scenario, states_before_steps(*plan, run)));
  }
  [[nodiscard]] float* gradient(std::int64_t rank, std::int64_t step, int p = 0) {
    return reinterpret_cast<float*>(run.bytes(run.layout().gradient(Rank{rank}, step, p)));
  }
  [[nodiscard]] float* parameter(std::int64_t rank, std::int64_t time, int p = 0) {
    return reinterpret_cast<float*>(run.bytes(run.layout().parameter(Rank{rank}, time, p)));
  }
  [[nodiscard]] float* state(std::int64_t rank, std::int64_t step, int p = 0) {
    return reinterpret_cast<float*>(run.bytes(run.layout().state(Rank{rank}, step, 0, p)));
  }

  VerifiedPlan plan;
  RunResult run;
};

void check_passes(const Scenario& scenario) {
  const Verdict verdict = Judged(scenario).judge();
  for (const Finding& finding : verdict.findings)
    UNSCOPED_INFO(finding.message);
  CHECK(verdict.passed());
}

/// The only finding of this code, of this check.
Finding finding_of(const Verdict& verdict, CheckId check, FindingCode code) {
  std::vector<Finding> found;
  for (const Finding& finding : verdict.findings) {
    UNSCOPED_INFO(finding.message);
    if (finding.check == check && finding.code == code) found.push_back(finding);
  }
  REQUIRE(found.size() == 1);
  return found[0];
}

bool contains_text(const Finding& finding, const std::string& text) {
  return finding.message.find(text) != std::string::npos;
}

/// Two layers on rep 2 x fsdp 2, two optimizer steps of two micro-batches.
Scenario layers() {
  Scenario scenario = hsdp_scenario(
      modules_model({linear("l0", 5, 7), activation("a", ModuleType::Gelu), linear("l1", 7, 3)}), 2,
      2);
  scenario.training.steps = 2;
  scenario.training.micro_batches = 2;
  scenario.training.global_batch = 4 * scenario.num_data_ranks();
  scenario.training.optimizer.momentum = 0.5;
  return scenario;
}

Scenario with_policy(Scenario scenario, std::optional<DType> param, std::optional<DType> reduce) {
  scenario.fully_shard.mp_policy.param_dtype = param;
  scenario.fully_shard.mp_policy.reduce_dtype = reduce;
  return scenario;
}

TEST_CASE("right runs under every policy pass") {
  check_passes(layers());
  check_passes(with_policy(layers(), DType::BFloat16, DType::Float32));
  check_passes(with_policy(layers(), DType::BFloat16, {}));
  check_passes(with_policy(layers(), DType::Float16, {}));
  check_passes(with_policy(layers(), {}, DType::BFloat16));
  Scenario scenario = layers();
  scenario.training.gradient_syncs = {false, true};
  check_passes(with_policy(scenario, DType::BFloat16, DType::Float32));
  scenario = layers();
  scenario.training.all_reduces = {false, true};
  check_passes(with_policy(scenario, DType::BFloat16, {}));
  scenario = layers();
  scenario.training.trained_from = {2, 0, 1, 0};
  check_passes(scenario);
  for (const double p : {1.0, 2.0, 3.0, HUGE_VAL}) {
    scenario = layers();
    scenario.training.clip_grad_norm = ClipSpec{.max_norm = 0.0625, .norm_type = p};
    check_passes(scenario);
  }
  scenario = layers();
  scenario.model = elementwise_model({{"a", {4, 2}}, {"b", {5}}});
  finish_scenario(scenario);
  scenario.training.trained_from = {1, 0};
  check_passes(scenario);
  scenario.training.gradient_syncs = {false, true};
  check_passes(scenario);
  check_passes(with_policy(scenario, DType::BFloat16, DType::Float32));
  scenario.training.trained_from.clear();
  scenario.data.inactive = {
      {.first = 0, .end = 1, .data_ranks = {0, 1, 2, 3}, .steps = {0, 1}, .micro_batches = {1}}};
  check_passes(scenario);
  scenario.training.gradient_syncs.clear();
  check_passes(scenario);
  scenario.mesh = Mesh({1, 4}, {"rep", "fsdp"});
  scenario.fully_shard.post_forward_size = 2;
  check_passes(scenario);
}

TEST_CASE("precision is checked where numbers are held in a wider dtype, else not") {
  CHECK_FALSE(has_check(Judged(layers()).judge(), CheckId::Precision));
  const Judged judged(with_policy(layers(), DType::BFloat16, DType::Float32));
  std::int64_t sent = 0;
  for (std::int64_t rank = 0; rank < 4; ++rank)
    sent += judged.run.rank_record(Rank{rank}).wire_checked;
  CHECK(sent > 0);
  // 66 numbers on 2 replicas, in 2 steps: gradients, parameters, buffers.
  CHECK(check_of(judged.judge(), CheckId::Precision).compared == sent + 66 * 2 * 2 * 3);
}

TEST_CASE("planted: numbers on the wire that were not cast") {
  Judged judged(with_policy(layers(), DType::BFloat16, DType::Float32));
  const auto gather = std::find_if(
      judged.plan->steps.begin(), judged.plan->steps.end(),
      [](const Step& step) { return step.kind == StepKind::Unshard && step.step == 1; });
  RankRecord& record = judged.run.rank_record(Rank{2});
  record.wire_foreign = 3;
  record.first_foreign = gather - judged.plan->steps.begin();
  const Verdict verdict = judged.judge();
  CHECK(failed_checks(verdict) == Ids{CheckId::Precision});
  const Finding finding = finding_of(verdict, CheckId::Precision, FindingCode::CommDtype);
  CHECK(finding.rank == 2);
  CHECK(finding.step == 1);
  CHECK(finding.expected == 0.0);
  CHECK(finding.got == 3.0);
  CHECK(contains_text(finding, "all_gather of unit \"l0\", step 1, forward, which is bfloat16"));
}

TEST_CASE("planted: gradients, parameters and state that are no numbers of their dtype") {
  Scenario scenario = layers();
  scenario.numerics.dtype = DType::BFloat16;
  // 2^-16 of a number is far inside its bound, and no bfloat16.
  const auto nudged = [](float& value) {
    REQUIRE(value != 0);
    value *= 1 + 0x1p-16F;
  };
  const auto finding_after = [&](const std::function<void(Judged&)>& plant, FindingCode code) {
    Judged judged(scenario);
    plant(judged);
    const Verdict verdict = judged.judge();
    CHECK_FALSE(check_of(verdict, CheckId::Precision).passed);
    return finding_of(verdict, CheckId::Precision, code);
  };
  const Finding gradient =
      finding_after([&](Judged& j) { nudged(j.gradient(3, 1)[4]); }, FindingCode::GradValue);
  CHECK(gradient.param == "l0.weight");
  CHECK(gradient.rank == 3);
  CHECK(gradient.step == 1);
  CHECK(gradient.index == std::vector<std::int64_t>{4, 4});  // rows 4 to 6 of 5
  CHECK(contains_text(gradient, "is no number of bfloat16"));
  const Finding parameter =
      finding_after([&](Judged& j) { nudged(j.parameter(1, 1, 2)[0]); }, FindingCode::ParamValue);
  CHECK(parameter.param == "l1.weight");
  CHECK(parameter.step == 0);
  const Finding state =
      finding_after([&](Judged& j) { nudged(j.state(0, 0)[0]); }, FindingCode::ParamValue);
  CHECK(contains_text(state, "optimizer state of \"l0.weight\""));
}

/// Integers: 16 numbers on two ranks, 8 micro-batches of 16 samples each, losses added up. A sample
/// adds at most 12 to a gradient, a micro-batch at most 192, which bfloat16 has; all together more.
Scenario integers(bool has_policy) {
  Scenario scenario = fsdp_scenario(elementwise_model({{"w", {16}}}), 2);
  make_exact(scenario);
  scenario.training.micro_batches = 8;
  scenario.training.global_batch = 2 * 8 * 16;
  scenario.training.gradient_syncs = {false, false, false, false, false, false, false, true};
  scenario.training.loss_normalization = LossNormalization::Sum;
  scenario.fully_shard.reduce_op = ReduceOp::Sum;
  if (has_policy) scenario = with_policy(scenario, DType::BFloat16, DType::Float32);
  return scenario;
}

/// Whether some element of some gradient differs from the reference, whatever was said of rounding.
bool has_unequal_gradient(const Verdict& verdict) {
  return std::any_of(verdict.findings.begin(), verdict.findings.end(), [](const Finding& finding) {
    return finding.check == CheckId::GradientParity && finding.param == "w";
  });
}

TEST_CASE("planted: gradients add up in bfloat16 instead of float32") {
  const Scenario told = integers(true);
  check_passes(told);
  const VerifiedPlan plan = verify_plan(build_plan(told));
  const RunResult run =
      LocalExecutor().run(verify_plan(build_plan(with_policy(told, DType::BFloat16, {}))), {});
  const Verdict verdict =
      compare_runs(plan, run, run_baseline(told, states_before_steps(*plan, run)));
  CHECK_FALSE(check_of(verdict, CheckId::GradientParity).passed);
  CHECK(has_unequal_gradient(verdict));
  CHECK_FALSE(check_of(verdict, CheckId::PlanAgreement).passed);
}

/// Gradients go through bfloat16 before they are reduced in float32.
Spoiling cast_once_more() {
  return {.sent =
              [](const Step& step, Rank, const CollectiveCall& call) {
                if (step.kind != StepKind::ReduceScatter) return;
                auto* const data = static_cast<float*>(const_cast<void*>(call.input));
                round_to(DType::BFloat16, data, call.elems_in);
              },
          .got = {}};
}

TEST_CASE("planted: gradients are cast once more before their reduction") {
  for (const bool has_policy : {true, false}) {
    CAPTURE(has_policy);
    const Verdict verdict = Judged(integers(has_policy), cast_once_more()).judge();
    CHECK_FALSE(check_of(verdict, CheckId::GradientParity).passed);
    CHECK(has_unequal_gradient(verdict));
    CHECK(check_of(verdict, CheckId::PlanAgreement).passed);
  }
  // Derived: 2^-9 of a gradient is beyond bounds of float32.
  const Verdict verdict = Judged(layers(), cast_once_more()).judge();
  CHECK_FALSE(check_of(verdict, CheckId::GradientParity).passed);
  CHECK(check_of(verdict, CheckId::ParameterParity).passed == false);
  CHECK(check_of(verdict, CheckId::PlanAgreement).passed);
}

/// What is scattered in these micro-batches is multiplied.
Spoiling scaled(double factor, std::vector<std::int64_t> micro_batches) {
  return {.sent =
              [=](const Step& step, Rank, const CollectiveCall& call) {
                if (step.kind != StepKind::ReduceScatter) return;
                if (std::count(micro_batches.begin(), micro_batches.end(), step.micro_batch) == 0)
                  return;
                auto* const data = static_cast<float*>(const_cast<void*>(call.input));
                for (std::int64_t i = 0; i < call.elems_in; ++i)
                  data[i] *= static_cast<float>(factor);
              },
          .got = {}};
}

TEST_CASE("planted: a micro-batch is lost or counts twice, or the mean over them is forgotten") {
  Scenario scenario = fsdp_scenario(modules_model({linear("l0", 5, 7), linear("l1", 7, 3)}), 3);
  scenario.training.micro_batches = 2;
  scenario.training.global_batch = 2 * 2 * 3;
  CHECK(Judged(scenario, scaled(1, {0, 1})).judge().passed());
  for (const double factor : {0.0, 2.0}) {
    for (const std::int64_t m : {0, 1}) {
      const Verdict verdict = Judged(scenario, scaled(factor, {m})).judge();
      CHECK_FALSE(check_of(verdict, CheckId::GradientParity).passed);
      CHECK(check_of(verdict, CheckId::LossParity).passed);
      CHECK(verdict.findings.at(0).code == FindingCode::GradValue);
    }
  }
  const Verdict sum = Judged(scenario, scaled(2, {0, 1})).judge();
  const Finding scale = finding_of(sum, CheckId::GradientParity, FindingCode::GradScale);
  CHECK(scale.ratio == 2.0);
  CHECK(scale.explains == std::vector<std::string>{"M=2"});
  const Verdict twice = Judged(scenario, scaled(0.5, {0, 1})).judge();
  CHECK(finding_of(twice, CheckId::GradientParity, FindingCode::GradScale).explains ==
        std::vector<std::string>{"1/M=1/2"});
}

TEST_CASE("planted: a frozen parameter is updated") {
  Scenario scenario = layers();
  scenario.training.trained_from = {2, 0, 1, 0};
  Judged judged(scenario);
  CHECK(judged.judge().passed());
  for (const std::int64_t rank : {0, 2}) {  // both copies of the first shard
    float& weight = judged.parameter(rank, 1, 0)[3];
    weight = std::nextafter(weight, 2.0F);  // one bit
  }
  const Verdict verdict = judged.judge();
  CHECK(failed_checks(verdict) == Ids{CheckId::ParameterParity});
  const Finding& finding = verdict.findings.at(0);
  CHECK(finding.param == "l0.weight");
  CHECK(finding.step == 0);
  CHECK(finding.index == std::vector<std::int64_t>{0, 3});
  // One that is trained from step 1 on, in step 0.
  Judged later(scenario);
  for (const std::int64_t rank : {0, 2})
    later.parameter(rank, 1, 2)[0] *= 1 + 0x1p-20F;
  CHECK_FALSE(check_of(later.judge(), CheckId::ParameterParity).passed);
}

TEST_CASE("planted: one rank clips by another norm") {
  for (const double p : {2.0, HUGE_VAL}) {
    Scenario scenario = layers();
    scenario.training.clip_grad_norm = ClipSpec{.max_norm = 0.0625, .norm_type = p};
    // As it says.
    Judged said(scenario);
    said.run.step_record(Rank{1}, 1).clip_norm *= 1 + 0x1p-40;
    const Verdict verdict = said.judge();
    CHECK(failed_checks(verdict) == Ids{CheckId::GradNormParity});
    const Finding finding = finding_of(verdict, CheckId::GradNormParity, FindingCode::NormValue);
    CHECK(finding.rank == 1);
    CHECK(finding.step == 1);
    CHECK(contains_text(finding, "rank 1 (rep=0, fsdp=1) clipped step 1 by the norm"));
    // As it does, whose copy does not.
    scenario.training.steps = 1;
    const Spoiling other = {.sent = {},
                            .got = [](const Step& step, Rank rank, const CollectiveCall& call) {
                              if (step.kind != StepKind::ClipGradients || rank.value != 1) return;
                              *static_cast<double*>(call.output) *= 4;
                            }};
    CHECK(failed_checks(Judged(scenario, other).judge()) ==
          Ids{CheckId::ParameterParity, CheckId::OptimizerStateParity, CheckId::GradNormParity,
              CheckId::ReplicaAgreement});
  }
}

TEST_CASE("planted: all ranks clip by the norm of what each holds itself, or not at all") {
  Scenario scenario = layers();
  scenario.training.clip_grad_norm = ClipSpec{.max_norm = 0.0625};
  std::vector<double> own(4);
  const Spoiling local = {
      .sent =
          [&](const Step& step, Rank rank, const CollectiveCall& call) {
            if (step.kind != StepKind::ClipGradients) return;
            own[static_cast<std::size_t>(rank.value)] = *static_cast<const double*>(call.input);
          },
      .got =
          [&](const Step& step, Rank rank, const CollectiveCall& call) {
            if (step.kind != StepKind::ClipGradients) return;
            *static_cast<double*>(call.output) = own[static_cast<std::size_t>(rank.value)];
          }};
  const Verdict verdict = Judged(scenario, local).judge();
  CHECK_FALSE(check_of(verdict, CheckId::ParameterParity).passed);
  CHECK_FALSE(check_of(verdict, CheckId::GradNormParity).passed);
  const VerifiedPlan plan = verify_plan(build_plan(scenario));
  Scenario unclipped = scenario;
  unclipped.training.clip_grad_norm.reset();
  const RunResult run = LocalExecutor().run(verify_plan(build_plan(unclipped)), {});
  const Verdict without =
      compare_runs(plan, run, run_baseline(scenario, states_before_steps(*plan, run)));
  CHECK(check_of(without, CheckId::GradientParity).passed);
  CHECK_FALSE(check_of(without, CheckId::ParameterParity).passed);
  CHECK_FALSE(check_of(without, CheckId::PlanAgreement).passed);
}

TEST_CASE("the mean of means of unequal counts is told, with the mean over all terms") {
  Scenario scenario = fsdp_scenario(modules_model({linear("l0", 5, 3)}), 2);
  scenario.data.tokens = {{1}, {2}};
  const Judged judged(scenario);
  const Verdict verdict = judged.judge();
  CHECK(verdict.passed());
  const double first = judged.run.losses(Rank{0}, 0)[0];
  const double second = judged.run.losses(Rank{1}, 0)[0];
  REQUIRE(std::abs(first - second) > 0.01 * std::abs(first));
  const Finding finding = finding_of(verdict, CheckId::LossParity, FindingCode::LocalMean);
  CHECK(finding.severity == Severity::Warning);
  CHECK(finding.step == 0);
  CHECK(*finding.got == Approx((first + second) / 2).epsilon(1e-6));
  CHECK(*finding.expected == Approx((first + 2 * second) / 3).epsilon(1e-6));
  CHECK(contains_text(finding, "global_tokens"));
  const auto num_warnings = [](const Scenario& of) {
    const Verdict told = Judged(of).judge();
    CHECK(told.passed());
    return std::count_if(told.findings.begin(), told.findings.end(),
                         [](const Finding& each) { return each.code == FindingCode::LocalMean; });
  };
  CHECK(num_warnings(scenario) == 1);
  Scenario exact = scenario;
  exact.training.loss_normalization = LossNormalization::GlobalTokens;
  CHECK(num_warnings(exact) == 0);
  exact.training.loss_normalization = LossNormalization::Sum;
  CHECK(num_warnings(exact) == 0);
  scenario.data.tokens = {{1}, {1}};
  CHECK(num_warnings(scenario) == 0);
}

TEST_CASE("numbers beyond float16 are told as such, others are not") {
  for (const bool is_narrow : {true, false}) {
    Scenario scenario = fsdp_scenario(elementwise_model({{"w", {4, 3}}}), 2);
    if (is_narrow) scenario.fully_shard.mp_policy.param_dtype = DType::Float16;
    // Products beyond the range of float16, or of float32, are infinite.
    scenario.fully_shard.gradient_scaling_factor = is_narrow ? 1e8 : 1e300;
    const Verdict verdict = Judged(scenario).judge();
    CHECK_FALSE(verdict.passed());
    int num_told = 0;
    for (const Finding& finding : verdict.findings) {
      INFO(finding.message);
      num_told += contains_text(finding, "float16 ends at 65504") ? 1 : 0;
      CHECK_FALSE(contains_text(finding, "-nan"));
    }
    CHECK((num_told > 0) == is_narrow);
  }
}

}  // namespace
}  // namespace hpsim::test
