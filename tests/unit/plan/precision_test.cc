// Dtypes in plans: of collectives, of activations and the casts between them, and what predivision
// makes of scales.

#include "planted_plan.h"
#include "support/graphs.h"

namespace hpsim::test {
namespace {

MixedPrecision policy(std::optional<DType> param, std::optional<DType> reduce = {},
                      std::optional<DType> output = {}) {
  return {.param_dtype = param, .reduce_dtype = reduce, .output_dtype = output};
}

constexpr auto kHalf = DType::Float16;
constexpr auto kBrain = DType::BFloat16;
constexpr auto kSingle = DType::Float32;

Scenario hsdp(const MixedPrecision& mp_policy) {
  Scenario scenario = hsdp_scenario(elementwise_model({{"w", {4}}}), 2, 2);
  scenario.fully_shard.mp_policy = mp_policy;
  return scenario;
}

TEST_CASE("gathers are in param_dtype, reductions in reduce_dtype or what compute leaves") {
  const auto told = [](const MixedPrecision& mp_policy) {
    const Plan plan = build_plan(hsdp(mp_policy));
    CHECK_NOTHROW(verify_plan(plan));
    Texts texts = collectives_of(plan, StepKind::Unshard);
    for (const StepKind kind : {StepKind::ReduceScatter, StepKind::AllReduce}) {
      const Texts more = collectives_of(plan, kind);
      texts.insert(texts.end(), more.begin(), more.end());
    }
    return texts;
  };
  CHECK(told({}) == Texts{"all_gather(fsdp) float32 2->4", "all_gather(fsdp) float32 2->4",
                          "reduce_scatter(fsdp) float32 4->2", "all_reduce(rep) float32 2->2"});
  CHECK(told(policy(kBrain, kSingle)) ==
        Texts{"all_gather(fsdp) bfloat16 2->4", "all_gather(fsdp) bfloat16 2->4",
              "reduce_scatter(fsdp) float32 4->2", "all_reduce(rep) float32 2->2"});
  CHECK(told(policy(kBrain)) ==
        Texts{"all_gather(fsdp) bfloat16 2->4", "all_gather(fsdp) bfloat16 2->4",
              "reduce_scatter(fsdp) bfloat16 4->2", "all_reduce(rep) bfloat16 2->2"});
  CHECK(told(policy({}, kHalf)) ==
        Texts{"all_gather(fsdp) float32 2->4", "all_gather(fsdp) float32 2->4",
              "reduce_scatter(fsdp) float16 4->2", "all_reduce(rep) float16 2->2"});
}

TEST_CASE("parameters have their own dtype outside compute, copies are cast where nothing is cut") {
  Scenario scenario = hsdp(policy(kBrain, kSingle));
  Plan plan = build_plan(scenario);
  CHECK(plan.parameters[0].dtype == kSingle);
  CHECK(plan.parameters[0].compute_dtype == kBrain);
  CHECK(plan.buckets[0].dtype == kBrain);
  CHECK(plan.buckets[0].reduce_dtype == kSingle);
  CHECK(plan.buckets[0].casts);
  scenario.fully_shard.shards_parameters = false;
  plan = build_plan(scenario);
  CHECK_NOTHROW(verify_plan(plan));
  CHECK(plan.buckets[0].is_unsharded());
  CHECK(kinds_of_pass(plan, 0) == Texts{"unshard", "forward", "reshard", "loss", "unshard",
                                        "backward", "reshard", "all_reduce", "store_gradient"});
  CHECK(collectives_of(plan, StepKind::Unshard).empty());
  // As it is gathered already, nothing is cast.
  scenario.numerics.dtype = kBrain;
  plan = build_plan(scenario);
  CHECK_FALSE(plan.buckets[0].is_unsharded());
  CHECK(count_kind(plan, StepKind::Unshard) == 0);
}

TEST_CASE("parameters of other dtypes have buckets of their own, unless param_dtype joins them") {
  Scenario scenario = fsdp_scenario(elementwise_model({{"a", {4}}, {"b", {4}}, {"c", {4}}}), 2);
  scenario.numerics.parameter_dtypes = {kSingle, kBrain, kSingle};
  const Plan apart = build_plan(scenario);
  CHECK_NOTHROW(verify_plan(apart));
  REQUIRE(apart.buckets.size() == 2);
  CHECK(apart.buckets[0].parameters == std::vector<int>{0, 2});
  CHECK(apart.buckets[1].parameters == std::vector<int>{1});
  CHECK(collectives_of(apart, StepKind::ReduceScatter) ==
        Texts{"reduce_scatter(fsdp) float32 8->4", "reduce_scatter(fsdp) bfloat16 4->2"});
  scenario.fully_shard.mp_policy = policy(kHalf);
  const Plan joined = build_plan(scenario);
  CHECK_NOTHROW(verify_plan(joined));
  REQUIRE(joined.buckets.size() == 1);
  CHECK(joined.buckets[0].casts);
  CHECK(joined.buckets[0].dtype == kHalf);
}

TEST_CASE("weights that are averaged are so in their own dtype") {
  Scenario scenario = hsdp(policy(kBrain, kHalf));
  scenario.fully_shard.shards_parameters = false;
  scenario.fully_shard.sync_object = SyncObject::Weight;
  const Plan plan = build_plan(scenario);
  CHECK_NOTHROW(verify_plan(plan));
  CHECK(collectives_of(plan, StepKind::AverageWeights) ==
        Texts{"all_reduce(rep, fsdp) float32 4->4"});
  CHECK(has(
      codes_after(scenario,
                  [](Plan& p) { step_of(p, StepKind::AverageWeights).collective->dtype = kBrain; }),
      FindingCode::CommDtype));
}

/// prescale and scale of every reduction, in order.
std::vector<std::pair<double, double>> scales(const Scenario& scenario) {
  std::vector<std::pair<double, double>> result;
  const Plan plan = build_plan(scenario);
  CHECK_NOTHROW(verify_plan(plan));
  for (const Step& step : plan.steps) {
    if (step.collective && is_reduction(step.collective->op))
      result.emplace_back(step.collective->prescale, step.collective->scale);
  }
  return result;
}

using Scales = std::vector<std::pair<double, double>>;

TEST_CASE("float16 divides by 2^j before the sum, and by the rest after it") {
  // F = 8: 2^j = 4. Over shards, over replicas, and over both; k goes with the first part.
  for (const double k : {1.0, 3.0}) {
    CAPTURE(k);
    Scenario shards = fsdp_scenario(elementwise_model({{"w", {8}}}), 8);
    shards.fully_shard.mp_policy = policy(kHalf);
    shards.fully_shard.gradient_scaling_factor = k;
    CHECK(scales(shards) == Scales{{k / 4, 0.5}});
    Scenario both = hsdp_scenario(elementwise_model({{"w", {8}}}), 2, 4);
    both.fully_shard = shards.fully_shard;
    CHECK(scales(both) == Scales{{k / 4, 1}, {1, 0.5}});
    both.fully_shard.shards_parameters = false;
    CHECK(scales(both) == Scales{{k / 4, 0.5}});
    // Only the dtype of the reduction counts.
    shards.fully_shard.mp_policy = policy(kHalf, kSingle);
    CHECK(scales(shards) == Scales{{k, 0.125}});
    shards.fully_shard.mp_policy = policy({}, kHalf);
    CHECK(scales(shards) == Scales{{k / 4, 0.5}});
    shards.fully_shard.mp_policy = policy(kBrain);
    CHECK(scales(shards) == Scales{{k, 0.125}});
  }
  // F = 1: nothing to divide; F = 6 on 6 ranks: 4 does not divide it as 2 does.
  Scenario sum = fsdp_scenario(elementwise_model({{"w", {8}}}), 8);
  sum.fully_shard.mp_policy = policy(kHalf);
  sum.fully_shard.reduce_op = ReduceOp::Sum;
  CHECK(scales(sum) == Scales{{1, 1}});
  Scenario six = fsdp_scenario(elementwise_model({{"w", {6}}}), 6);
  six.fully_shard.mp_policy = policy(kHalf);
  CHECK(scales(six) == Scales{{0.25, 1 / 1.5}});
}

/// "in: float32->bfloat16 for l0, forward" of every cast.
Texts casts(const Plan& plan) {
  Texts texts;
  for (const Step& step : plan.steps) {
    if (step.redistribution < 0) continue;
    const Redistribution& change =
        plan.redistributions.at(static_cast<std::size_t>(step.redistribution));
    const DType from = plan.values.at(static_cast<std::size_t>(change.from)).dtype;
    const DType to = plan.values.at(static_cast<std::size_t>(change.to)).dtype;
    if (from == to) continue;
    CHECK(change.transition.op == RedistributeOp::Keep);
    CHECK_FALSE(step.collective);
    texts.push_back(fmt::format("{} {} -> {}{}", activation_text(plan, change), name_of(from),
                                name_of(to), change.is_added ? ", added" : ""));
  }
  return texts;
}

Texts output_dtypes(const Plan& plan) {
  Texts texts;
  for (const ModulePlan& module : plan.modules)
    texts.emplace_back(name_of(plan.values.at(static_cast<std::size_t>(module.output)).dtype));
  return texts;
}

/// l0, tanh, l1; l0 and l1 are units, the function is outside them.
Scenario chain(const MixedPrecision& mp_policy) {
  Scenario scenario = fsdp_scenario(
      modules_model({linear("l0", 4, 6), activation("act", ModuleType::Tanh), linear("l1", 6, 2)}),
      2);
  scenario.fully_shard.mp_policy = mp_policy;
  return scenario;
}

TEST_CASE("casts stand where units take and give, and their gradients are cast back") {
  CHECK(casts(build_plan(chain({}))).empty());
  // The model's input needs no gradient; all behind it is bfloat16.
  const Plan narrow = build_plan(chain(policy(kBrain)));
  CHECK_NOTHROW(verify_plan(narrow));
  CHECK(casts(narrow) == Texts{"input of \"l0\" float32 -> bfloat16"});
  CHECK(output_dtypes(narrow) == Texts{"bfloat16", "bfloat16", "bfloat16"});
  CHECK(narrow.values.at(static_cast<std::size_t>(narrow.loss.output)).dtype == kBrain);
  CHECK(narrow.values.at(static_cast<std::size_t>(narrow.loss.gradient)).dtype == kBrain);
  // Units give float32: the function computes in it, and l1 casts what it takes.
  const Plan wide = build_plan(chain(policy(kBrain, {}, kSingle)));
  CHECK_NOTHROW(verify_plan(wide));
  CHECK(output_dtypes(wide) == Texts{"bfloat16", "float32", "bfloat16"});
  CHECK(casts(wide) ==
        Texts{"input of \"l0\" float32 -> bfloat16", "output of \"l0\" bfloat16 -> float32",
              "input of \"l1\" float32 -> bfloat16", "output of \"l1\" bfloat16 -> float32",
              "gradient of the output of \"l1\" float32 -> bfloat16",
              "gradient of the input of \"l1\" bfloat16 -> float32",
              "gradient of the output of \"l0\" float32 -> bfloat16"});
  CHECK(wide.values.at(static_cast<std::size_t>(wide.loss.output)).dtype == kSingle);
  // Inputs are not cast: they are bfloat16 already.
  Scenario given = chain(policy(kBrain));
  given.fully_shard.mp_policy.cast_forward_inputs = false;
  given.numerics.dtype = kBrain;
  CHECK(casts(build_plan(given)).empty());
}

TEST_CASE("a residual reads one cast, once for all its readers, and their gradients are added") {
  const auto casts_of = [](const GraphBuilder& graph) {
    Scenario scenario = fsdp_scenario(graph.model(), 2);
    scenario.fully_shard.mp_policy = policy(kBrain, {}, kSingle);
    const Plan plan = build_plan(scenario);
    CHECK_NOTHROW(verify_plan(plan));
    return casts(plan);
  };
  const Texts both = {"input of \"l0\" float32 -> bfloat16", "output of \"l0\" bfloat16 -> float32",
                      "input of \"l1\" float32 -> bfloat16",
                      "output of \"l1\" bfloat16 -> float32"};
  const auto with = [&](const Texts& more) {
    Texts texts = both;
    texts.insert(texts.end(), more.begin(), more.end());
    return texts;
  };
  // x + l1(x), x given by l0: what goes around is float32, l1 reads a cast.
  GraphBuilder residual;
  const int x = residual.linear("l0", 0, 4, 6);
  residual.add("sum", x, residual.linear("l1", x, 6, 6));
  CHECK(casts_of(residual) == with({"gradient of the output of \"l1\" float32 -> bfloat16",
                                    "gradient of the input of \"l1\" bfloat16 -> float32, added",
                                    "gradient of the output of \"l0\" float32 -> bfloat16"}));
  // l1(x) + l2(x): one cast of x, its gradients are added before they are cast back.
  GraphBuilder fork;
  const int given = fork.linear("l0", 0, 4, 6);
  const int left = fork.linear("l1", given, 6, 6);
  fork.add("sum", left, fork.linear("l2", given, 6, 6));
  CHECK(casts_of(fork) == with({"output of \"l2\" bfloat16 -> float32",
                                "gradient of the output of \"l2\" float32 -> bfloat16",
                                "gradient of the output of \"l1\" float32 -> bfloat16",
                                "gradient of the input of \"l1\" bfloat16 -> float32",
                                "gradient of the output of \"l0\" float32 -> bfloat16"}));
}

TEST_CASE("planted: a dtype on the wire that is not the policy's") {
  const Scenario scenario = hsdp(policy(kBrain, kSingle));
  const auto after = [&](StepKind kind, DType dtype) {
    return codes_after(scenario, [&](Plan& p) { step_of(p, kind).collective->dtype = dtype; });
  };
  const Codes wrong = {FindingCode::CommDtype};
  CHECK(after(StepKind::Unshard, kSingle) == wrong);
  CHECK(after(StepKind::Unshard, kHalf) == wrong);
  CHECK(after(StepKind::ReduceScatter, kBrain) == wrong);
  CHECK(after(StepKind::AllReduce, kBrain) == wrong);
  CHECK(after(StepKind::Unshard, kBrain).empty());
  // The same of a plan that was made for another policy.
  CHECK(codes_after(hsdp(policy(kBrain, kBrain)), [](Plan& p) {
          p.scenario.fully_shard.mp_policy.reduce_dtype = kSingle;
        }) == wrong);
}

TEST_CASE("planted: predivision is lost, or all of it comes before, or after, the sum") {
  Scenario scenario = hsdp_scenario(elementwise_model({{"w", {8}}}), 2, 4);
  scenario.fully_shard.mp_policy = policy(kHalf);
  const auto after = [&](StepKind kind, double prescale, double scale) {
    return codes_after(scenario, [&](Plan& p) {
      step_of(p, kind).collective->prescale = prescale;
      step_of(p, kind).collective->scale = scale;
    });
  };
  CHECK(after(StepKind::ReduceScatter, 0.25, 1).empty());
  CHECK(after(StepKind::ReduceScatter, 1, 1) == Codes{FindingCode::GradScale});
  CHECK(after(StepKind::AllReduce, 1, 0.125) == Codes{FindingCode::GradScale});
  CHECK(after(StepKind::AllReduce, 1, 1) == Codes{FindingCode::GradScale});
}

TEST_CASE("planted: a module reads numbers of another dtype than its weight has") {
  const Scenario scenario = chain(policy(kBrain, {}, kSingle));
  CHECK(codes_after(scenario, [](Plan& p) {
          const int input = p.modules.at(2).inputs.at(0);
          p.values.at(static_cast<std::size_t>(input)).dtype = kSingle;
        }) == Codes{FindingCode::CommDtype});
  // Others than it computes in are given, or go back.
  const auto of_value = [&](const std::function<int(const Plan&)>& value) {
    return codes_after(scenario, [&](Plan& p) {
      DType& dtype = p.values.at(static_cast<std::size_t>(value(p))).dtype;
      dtype = dtype == kSingle ? kBrain : kSingle;
    });
  };
  CHECK(of_value([](const Plan& p) { return p.modules.at(0).output; }) ==
        Codes{FindingCode::CommDtype});
  CHECK(of_value([](const Plan& p) { return p.modules.at(1).output_gradient; }) ==
        Codes{FindingCode::CommDtype});
  CHECK(of_value([](const Plan& p) { return p.modules.at(2).output_gradient; }) ==
        Codes{FindingCode::CommDtype});
  CHECK(of_value([](const Plan& p) { return p.modules.at(2).input_gradients.at(0); }) ==
        Codes{FindingCode::CommDtype});
  CHECK(of_value([](const Plan& p) { return p.loss.gradient; }) == Codes{FindingCode::CommDtype});
}

TEST_CASE("planted: a cast is left out, in forward and in backward") {
  const Scenario scenario = chain(policy(kBrain, {}, kSingle));
  const Plan whole = build_plan(scenario);
  std::int64_t num_casts = 0;
  for (std::size_t i = 0; i < whole.steps.size(); ++i) {
    if (whole.steps[i].kind != StepKind::Redistribute) continue;
    CAPTURE(i);
    CHECK(has(codes_after(scenario,
                          [&](Plan& p) {
                            p.steps.erase(p.steps.begin() + static_cast<std::ptrdiff_t>(i));
                          }),
              FindingCode::CommDtype));
    ++num_casts;
  }
  CHECK(num_casts == 7);
}

}  // namespace
}  // namespace hpsim::test
