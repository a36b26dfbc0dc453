// Steps of micro-batches, counted by hand.

#include "planted_plan.h"

namespace hpsim::test {
namespace {

/// One parameter on rep 2 x fsdp 2: reduce-scattered, then all-reduced.
Scenario hsdp(std::int64_t micro_batches) {
  return in_micro_batches(hsdp_scenario(elementwise_model({{"w", {4}}}), 2, 2), micro_batches);
}

const Texts kPass = {"unshard", "forward", "reshard", "loss", "unshard", "backward", "reshard"};

Texts with(Texts steps, const Texts& more) {
  steps.insert(steps.end(), more.begin(), more.end());
  return steps;
}

TEST_CASE("every micro-batch reduces and stores, the optimizer comes once") {
  const Plan plan = build_plan(hsdp(3));
  for (const std::int64_t m : {0, 1, 2})
    CHECK(kinds_of_pass(plan, m) ==
          with(kPass, {"reduce_scatter", "all_reduce", "store_gradient"}));
  CHECK(kinds_of_pass(plan, -1) == Texts{"optimizer"});
  CHECK_NOTHROW(verify_plan(plan));
}

TEST_CASE("gradients that are not synced add up: one reduction of the sum at the end") {
  Scenario scenario = hsdp(3);
  scenario.training.gradient_syncs = {false, false, true};
  const Plan plan = build_plan(scenario);
  CHECK(kinds_of_pass(plan, 0) == kPass);
  CHECK(kinds_of_pass(plan, 1) == kPass);
  CHECK(kinds_of_pass(plan, 2) == with(kPass, {"reduce_scatter", "all_reduce", "store_gradient"}));
  CHECK_NOTHROW(verify_plan(plan));
  scenario.training.gradient_syncs = {false, true, true};
  const Plan listed = build_plan(scenario);
  CHECK(kinds_of_pass(listed, 0) == kPass);
  CHECK(kinds_of_pass(listed, 1) == kinds_of_pass(plan, 2));
  CHECK(kinds_of_pass(listed, 2) == kinds_of_pass(plan, 2));
  CHECK_NOTHROW(verify_plan(listed));
}

TEST_CASE("all-reduces come last: rows wait, are added up and stored once") {
  Scenario scenario = hsdp(3);
  scenario.training.all_reduces = {false, false, true};
  const Plan plan = build_plan(scenario);
  CHECK(kinds_of_pass(plan, 0) == with(kPass, {"reduce_scatter"}));
  CHECK(kinds_of_pass(plan, 1) == with(kPass, {"reduce_scatter"}));
  CHECK(kinds_of_pass(plan, 2) == with(kPass, {"reduce_scatter", "all_reduce", "store_gradient"}));
  CHECK_NOTHROW(verify_plan(plan));
  // What is not synced goes into the next scatter.
  scenario.training.gradient_syncs = {true, false, true};
  scenario.training.all_reduces = {false, false, true};
  const Plan mixed = build_plan(scenario);
  CHECK(kinds_of_pass(mixed, 0) == with(kPass, {"reduce_scatter"}));
  CHECK(kinds_of_pass(mixed, 1) == kPass);
  CHECK(kinds_of_pass(mixed, 2) == with(kPass, {"reduce_scatter", "all_reduce", "store_gradient"}));
  CHECK_NOTHROW(verify_plan(mixed));
}

TEST_CASE("what needs no all-reduce is stored at once, what is all-reduced only adds up") {
  // Only cut: no replicas.
  Scenario cut = in_micro_batches(fsdp_scenario(elementwise_model({{"w", {4}}}), 2), 2);
  cut.training.all_reduces = {false, true};
  const Plan plan = build_plan(cut);
  for (const std::int64_t m : {0, 1})
    CHECK(kinds_of_pass(plan, m) == with(kPass, {"reduce_scatter", "store_gradient"}));
  CHECK_NOTHROW(verify_plan(plan));
  // Only replicas: no row is scattered, gradients wait where backward left them.
  Scenario copied = hsdp(2);
  copied.fully_shard.shards_parameters = false;
  copied.training.all_reduces = {false, true};
  const Plan copies = build_plan(copied);
  CHECK(kinds_of_pass(copies, 0) == Texts{"forward", "loss", "backward"});
  CHECK(kinds_of_pass(copies, 1) ==
        Texts{"forward", "loss", "backward", "all_reduce", "store_gradient"});
  CHECK_NOTHROW(verify_plan(copies));
  // One of each kind in a unit.
  Scenario both = in_micro_batches(hsdp_scenario(modules_model({linear("l", 6, 5)}), 2, 2), 2);
  both.fully_shard.replicate_params = {1};
  both.training.all_reduces = {false, true};
  const Plan mixed = build_plan(both);
  CHECK(count_kind(mixed, StepKind::ReduceScatter) == 2);
  CHECK(count_kind(mixed, StepKind::AllReduce) == 2);
  CHECK(count_kind(mixed, StepKind::StoreGradient) == 2);
  CHECK_NOTHROW(verify_plan(mixed));
}

TEST_CASE("what is Partial along further dims waits for its all-reduce, too") {
  Scenario scenario = fsdp_scenario(modules_model({linear("l0", 4, 4), linear("l1", 4, 4)}), 2);
  scenario.mesh = Mesh({2, 2}, {"fsdp", "x"});
  scenario.data.data_dims = {0, 1};
  scenario = in_micro_batches(scenario, 3);
  scenario.training.all_reduces = {false, false, true};
  const Plan plan = build_plan(scenario);
  CHECK(count_kind(plan, StepKind::ReduceScatter) == 2 * 3);
  CHECK(collectives_of(plan, StepKind::AllReduce) ==
        Texts{"all_reduce(x) float32 10->10", "all_reduce(x) float32 10->10"});
  CHECK(count_kind(plan, StepKind::StoreGradient) == 2);
  CHECK_NOTHROW(verify_plan(plan));
}

TEST_CASE("all-gathers of a unit: 2M, M, M + 1 or 1 in M micro-batches, for every optimizer step") {
  for (const std::int64_t m : {1, 2, 3, 5}) {
    Scenario scenario = in_micro_batches(
        fsdp_scenario(modules_model({linear("l0", 4, 4), linear("l1", 4, 2)}), 2), m);
    scenario.training.steps = 2;
    const auto gathers = [&](bool forward, bool backward, bool has_root = false) {
      scenario.fully_shard.reshard_after_forward = forward;
      scenario.fully_shard.reshard_after_backward = backward;
      scenario.units = assign_units(scenario.model, scenario.parameters, {"l1"}, has_root);
      const Plan plan = build_plan(scenario);
      CHECK_NOTHROW(verify_plan(plan));
      CHECK(count_kind(plan, StepKind::Reshard) == count_kind(plan, StepKind::Unshard));
      REQUIRE(count_kind(plan, StepKind::Unshard) % 4 == 0);
      return count_kind(plan, StepKind::Unshard) / 4;  // two units, two optimizer steps
    };
    CAPTURE(m);
    for (const bool has_root : {false, true}) {
      CHECK(gathers(true, true, has_root) == 2 * m);
      CHECK(gathers(false, true, has_root) == m);
      CHECK(gathers(true, false, has_root) == m + 1);
      CHECK(gathers(false, false, has_root) == 1);
    }
  }
}

TEST_CASE("gradients and samples of micro-batches: their mean is that of all") {
  // Reductions of one micro-batch are not divided by M: the loss is.
  const Plan plan = build_plan(hsdp(4));
  for (const Step& step : plan.steps) {
    if (step.kind == StepKind::AllReduce) CHECK(step.collective->scale == 0.25);
  }
  CHECK(plan.scenario.micro_batch_size() == 1);
}

TEST_CASE("int k: parts between forward and backward, gathered again by k consecutive ranks") {
  // Rows 2 2 2 2 of w, 1 of b each: a row has 2 * 3 + 1 elements, all of them 28.
  Scenario scenario =
      in_micro_batches(fsdp_scenario(elementwise_model({{"w", {8, 3}}, {"b", {4}}}), 4), 3);
  scenario.fully_shard.post_forward_size = 2;
  const Plan plan = build_plan(scenario);
  CHECK_NOTHROW(verify_plan(plan));
  REQUIRE(plan.buckets.size() == 1);
  CHECK(plan.buckets[0].post_forward_size == 2);
  std::vector<CollectiveSpec> specs;
  for (const Step& step : plan.steps) {
    if (step.kind == StepKind::Unshard) specs.push_back(*step.collective);
  }
  REQUIRE(specs.size() == 6);  // as reshard_after_forward true
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const bool is_backward = i % 2 == 1;
    CHECK(specs[i].consecutive == (is_backward ? 2 : 0));
    CHECK(specs[i].group_size == (is_backward ? 2 : 4));
    CHECK(specs[i].elems_in == (is_backward ? 14 : 7));
    CHECK(specs[i].elems_out == 28);
    CHECK(specs[i].dims == MeshDims{0});
  }
  // Without reshard after backward only the first forward gathers over all.
  scenario.fully_shard.reshard_after_backward = false;
  const Plan kept = build_plan(scenario);
  CHECK_NOTHROW(verify_plan(kept));
  CHECK(collectives_of(kept, StepKind::Unshard) ==
        Texts{"all_gather(fsdp) float32 7->28", "all_gather(fsdp) float32 14->28",
              "all_gather(fsdp) float32 14->28", "all_gather(fsdp) float32 14->28"});
  // What is not cut is not kept in parts.
  scenario.fully_shard.shards_parameters = false;
  CHECK(build_plan(scenario).buckets[0].post_forward_size == 0);
}

TEST_CASE("int k: Shard(0) over k ranks is not what runs of padded shards are") {
  // 5 rows over 4 ranks are 2 2 1 0: runs of two have rows 0 to 3 and row 4; 5 over 2 are 3 and 2.
  Scenario scenario = fsdp_scenario(elementwise_model({{"w", {5, 3}}, {"even", {8}}}), 4);
  scenario.fully_shard.post_forward_size = 2;
  scenario.fully_shard.vocabulary = Vocabulary::Torch;
  const VerifiedPlan plan = verify_plan(build_plan(scenario));
  std::vector<Finding> warnings;
  for (const Finding& finding : plan.checks().warnings) {
    if (finding.message.find("between forward and backward") != std::string::npos)
      warnings.push_back(finding);
  }
  REQUIRE(warnings.size() == 1);
  CHECK(warnings[0].code == FindingCode::SpecDisagrees);
  CHECK(warnings[0].severity == Severity::Warning);
  CHECK(warnings[0].param == "w");
  CHECK(warnings[0].message ==
        "vocabulary torch cannot express it: between forward and backward part 0 of 2 holds rows 0 "
        "to 4 of \"w\", where Shard(0) over 2 ranks says 0 to 3");
  scenario.fully_shard.post_forward_size = 0;
  CHECK(verify_plan(build_plan(scenario)).checks().warnings.empty());
  scenario.fully_shard.post_forward_size = 2;
  scenario.fully_shard.vocabulary = Vocabulary::Ragged;
  CHECK(verify_plan(build_plan(scenario)).checks().warnings.empty());
}

TEST_CASE("comm_fusion none: every parameter has collectives of its own") {
  Scenario scenario = hsdp_scenario(modules_model({linear("l0", 6, 5), linear("l1", 5, 3)}), 2, 2);
  scenario.fully_shard.fuses_collectives = false;
  const Plan plan = build_plan(scenario);
  CHECK_NOTHROW(verify_plan(plan));
  REQUIRE(plan.buckets.size() == 4);
  for (int b = 0; b < 4; ++b)
    CHECK(plan.bucket(b).parameters == std::vector<int>{b});
  // Rows 3 and 2 of l0 (6 -> 5), 2 and 1 of l1 (5 -> 3).
  CHECK(collectives_of(plan, StepKind::ReduceScatter) ==
        Texts{"reduce_scatter(fsdp) float32 20->10", "reduce_scatter(fsdp) float32 4->2",
              "reduce_scatter(fsdp) float32 36->18", "reduce_scatter(fsdp) float32 6->3"});
  CHECK(count_kind(plan, StepKind::Unshard) == 4 * 2);
  CHECK(count_kind(plan, StepKind::AllReduce) == 4);
  scenario.fully_shard.fuses_collectives = true;
  CHECK(build_plan(scenario).buckets.size() == 2);
}

TEST_CASE("clipping: one number over all ranks, after all gradients are stored") {
  Scenario scenario = hsdp(2);
  scenario.training.clip_grad_norm = ClipSpec{};
  const Plan plan = build_plan(scenario);
  CHECK_NOTHROW(verify_plan(plan));
  CHECK(kinds_of_pass(plan, -1) == Texts{"clip_gradients", "optimizer"});
  Plan of_steps = plan;
  const CollectiveSpec& spec = *step_of(of_steps, StepKind::ClipGradients).collective;
  CHECK(spec == CollectiveSpec{.op = CollectiveOp::AllReduce,
                               .dims = {0, 1},
                               .group_size = 4,
                               .dtype = DType::Float64,
                               .elems_in = 1,
                               .elems_out = 1});
  CHECK(payload_text(plan, step_of(of_steps, StepKind::ClipGradients)) == "norm of the gradients");
  scenario.training.clip_grad_norm->norm_type = INFINITY;
  Plan of_largest = build_plan(scenario);
  CHECK(step_of(of_largest, StepKind::ClipGradients).collective->takes_max);
  CHECK_NOTHROW(verify_plan(of_largest));
  // One rank has the norm; dims of one rank are in no group.
  Scenario alone = fsdp_scenario(elementwise_model({{"w", {4}}}), 1);
  alone.training.clip_grad_norm = ClipSpec{};
  Plan plan_of_one = build_plan(alone);
  CHECK_FALSE(step_of(plan_of_one, StepKind::ClipGradients).collective);
  CHECK_NOTHROW(verify_plan(plan_of_one));
  Scenario flat = hsdp_scenario(elementwise_model({{"w", {4}}}), 1, 4);
  flat.training.clip_grad_norm = ClipSpec{};
  Plan plan_of_flat = build_plan(flat);
  CHECK(step_of(plan_of_flat, StepKind::ClipGradients).collective->dims == MeshDims{1});
  CHECK_NOTHROW(verify_plan(plan_of_flat));
}

TEST_CASE("planted: reductions of micro-batches are lost, doubled, or scaled apart") {
  const Scenario every = hsdp(2);
  const auto after = [&](const std::function<void(Plan&)>& plant) {
    return codes_after(every, plant);
  };
  CHECK(after([](Plan&) {}).empty());
  // The all-reduce and the store that follow have nothing that was scattered, and micro-batch 0
  // asks for it.
  CHECK(after([](Plan& p) { drop(p, StepKind::ReduceScatter, 0); }) ==
        Codes{FindingCode::CommCount, FindingCode::CommOrder});
  const Codes lost = after([](Plan& p) { drop(p, StepKind::ReduceScatter, 1); });
  CHECK(has(lost, FindingCode::CommOrder));
  CHECK(has(lost, FindingCode::UnreducedPartial));
  CHECK(has(after([](Plan& p) { repeat(p, StepKind::ReduceScatter, 0); }), FindingCode::CommOrder));
  CHECK(has(after([](Plan& p) { repeat(p, StepKind::ReduceScatter, 1); }), FindingCode::CommOrder));
  CHECK(has(after([](Plan& p) { repeat(p, StepKind::AllReduce, 1); }), FindingCode::DoubleReduced));
  // The scale of one micro-batch only.
  CHECK(after([](Plan& p) { step_of(p, StepKind::AllReduce, 0).collective->scale = 1; }) ==
        Codes{FindingCode::GradScale});
  CHECK(after([](Plan& p) { step_of(p, StepKind::AllReduce, 1).collective->scale = 1; }) ==
        Codes{FindingCode::GradScale});
  CHECK(after([](Plan& p) { step_of(p, StepKind::ReduceScatter, 1).collective->prescale = 2; }) ==
        Codes{FindingCode::GradScale});
  // Twice as much in one, half as much in the other: no mean of them tells.
  CHECK(after([](Plan& p) {
          step_of(p, StepKind::AllReduce, 0).collective->scale = 0.375;
          step_of(p, StepKind::AllReduce, 1).collective->scale = 0.125;
        }) == Codes{FindingCode::GradScale});
  // What is not stored waits, and is all-reduced with the next.
  CHECK(after([](Plan& p) { drop(p, StepKind::StoreGradient, 0); }) ==
        Codes{FindingCode::GradScale, FindingCode::DoubleReduced});
  CHECK(has(after([](Plan& p) { drop(p, StepKind::StoreGradient, 1); }), FindingCode::CommCount));
}

TEST_CASE("planted: the all-reduce of rows that wait is missing, or comes once too often") {
  Scenario scenario = hsdp(3);
  scenario.training.all_reduces = {false, false, true};
  const auto after = [&](const std::function<void(Plan&)>& plant) {
    return codes_after(scenario, plant);
  };
  CHECK(after([](Plan& p) { drop(p, StepKind::AllReduce); }) ==
        Codes{FindingCode::GradScale, FindingCode::UnreducedPartial});
  CHECK(has(after([](Plan& p) { repeat(p, StepKind::AllReduce); }), FindingCode::DoubleReduced));
  // One that waits is all-reduced already: then it was reduced twice.
  CHECK(has(after([](Plan& p) {
              Step again = step_of(p, StepKind::AllReduce);
              again.micro_batch = 1;
              p.steps.insert(p.steps.begin() + find_step(p, StepKind::ReduceScatter, 1) + 1, again);
            }),
            FindingCode::DoubleReduced));
  // A micro-batch whose scatter is lost goes into the next one: its sum is right, its scatter late.
  // The plan that does not sync it does the same.
  Scenario skipped = scenario;
  skipped.training.gradient_syncs = {true, false, true};
  CHECK(codes_after(skipped, [](Plan&) {}).empty());
  // One scatter scaled: its terms alone are told.
  CHECK(after([](Plan& p) { step_of(p, StepKind::ReduceScatter, 1).collective->scale = 0.5; }) ==
        Codes{FindingCode::GradScale});
}

TEST_CASE("planted: gathers of micro-batches come twice, or not at all") {
  for (const bool reshards_backward : {true, false}) {
    Scenario scenario = hsdp(2);
    scenario.fully_shard.reshard_after_backward = reshards_backward;
    for (const std::int64_t number : {0, 1, 2}) {
      CAPTURE(reshards_backward, number);
      CHECK(codes_after(scenario, [&](Plan& p) { repeat(p, StepKind::Unshard, number); }) ==
            Codes{FindingCode::CommOrder});
      CHECK(has(codes_after(scenario, [&](Plan& p) { drop(p, StepKind::Unshard, number); }),
                FindingCode::CommOrder));
    }
    // The last backward leaves it gathered.
    CHECK(has(codes_after(scenario,
                          [&](Plan& p) {
                            drop(p, StepKind::Reshard, count_kind(p, StepKind::Reshard) - 1);
                          }),
              FindingCode::CommOrder));
  }
}

TEST_CASE("planted: runs of consecutive ranks of another size, or where all must gather") {
  Scenario scenario = fsdp_scenario(elementwise_model({{"w", {8, 3}}}), 8);
  scenario.fully_shard.post_forward_size = 4;
  const auto after = [&](std::int64_t number, const std::function<void(CollectiveSpec&)>& plant) {
    return codes_after(scenario,
                       [&](Plan& p) { plant(*step_of(p, StepKind::Unshard, number).collective); });
  };
  CHECK(after(1, [](CollectiveSpec& spec) { spec.consecutive = 0; }) ==
        Codes{FindingCode::CommGroup});
  CHECK(after(1, [](CollectiveSpec& spec) { spec.consecutive = 2; }) ==
        Codes{FindingCode::CommGroup});
  CHECK(after(1, [](CollectiveSpec& spec) { spec.group_size = 8; }) ==
        Codes{FindingCode::CommGroup});
  CHECK(after(0, [](CollectiveSpec& spec) { spec.consecutive = 4; }) ==
        Codes{FindingCode::CommGroup});
  CHECK(after(1, [](CollectiveSpec& spec) { spec.elems_in = 3; }) == Codes{FindingCode::CommShape});
  // All ranks, each with its shard: right by itself, but parts are what they hold.
  CHECK(after(1, [](CollectiveSpec& spec) {
          spec.consecutive = 0;
          spec.group_size = 8;
          spec.elems_in = 3;
        }) == Codes{FindingCode::CommShape, FindingCode::CommGroup});
}

TEST_CASE("planted: the norm is not that of all ranks, or another one, or comes at another time") {
  Scenario scenario = hsdp(1);
  scenario.training.clip_grad_norm = ClipSpec{};
  const auto spec_after = [&](const std::function<void(CollectiveSpec&)>& plant) {
    return codes_after(scenario,
                       [&](Plan& p) { plant(*step_of(p, StepKind::ClipGradients).collective); });
  };
  CHECK(spec_after([](CollectiveSpec& spec) {
          spec.dims = {1};
          spec.group_size = 2;
        }) == Codes{FindingCode::CommGroup});
  CHECK(spec_after([](CollectiveSpec& spec) { spec.consecutive = 2; }) ==
        Codes{FindingCode::CommGroup});
  CHECK(spec_after([](CollectiveSpec& spec) { spec.takes_max = true; }) ==
        Codes{FindingCode::NormValue});
  CHECK(spec_after([](CollectiveSpec& spec) { spec.scale = 0.25; }) ==
        Codes{FindingCode::NormValue});
  CHECK(spec_after([](CollectiveSpec& spec) { spec.dtype = DType::Float32; }) ==
        Codes{FindingCode::CommDtype});
  CHECK(spec_after([](CollectiveSpec& spec) { spec.elems_in = spec.elems_out = 4; }) ==
        Codes{FindingCode::CommShape});
  CHECK(codes_after(scenario, [](Plan& p) {
          step_of(p, StepKind::ClipGradients).collective.reset();
        }) == Codes{FindingCode::CommCount});
  Scenario largest = scenario;
  largest.training.clip_grad_norm->norm_type = INFINITY;
  CHECK(codes_after(largest, [](Plan& p) {
          step_of(p, StepKind::ClipGradients).collective->takes_max = false;
        }) == Codes{FindingCode::NormValue});
  CHECK(codes_after(scenario, [](Plan& p) { drop(p, StepKind::ClipGradients); }) ==
        Codes{FindingCode::CommCount});
  CHECK(codes_after(scenario, [](Plan& p) { repeat(p, StepKind::ClipGradients); }) ==
        Codes{FindingCode::CommCount});
  CHECK(has(codes_after(scenario,
                        [](Plan& p) {
                          std::iter_swap(p.steps.begin() + find_step(p, StepKind::ClipGradients),
                                         p.steps.begin() + find_step(p, StepKind::StoreGradient));
                        }),
            FindingCode::CommOrder));
}

}  // namespace
}  // namespace hpsim::test
