// Which parameters of a bucket have gradients at a reduction, and where these lie.

#include "planted_plan.h"

namespace hpsim::test {
namespace {

/// l0 4 -> 4 and l1 4 -> 4 on two ranks: slots of 8 for a weight, 2 for a bias; parameters 0 to 3.
Scenario two_layers() {
  Scenario scenario = fsdp_scenario(modules_model({linear("l0", 4, 4), linear("l1", 4, 4)}), 2);
  scenario.training.steps = 2;
  return scenario;
}

/// "l1 [2 3] 0 8 of 10" of a row.
std::string told(const Plan& plan, const GradientRow& row) {
  std::string parameters;
  std::string offsets;
  for (std::size_t i = 0; i < row.parameters.size(); ++i) {
    parameters += fmt::format("{}{}", i == 0 ? "" : " ", row.parameters[i]);
    offsets += " " + to_string(plan.mesh(), row.offsets[i]);
  }
  return fmt::format("{} [{}]{} of {}", plan.unit_name(plan.bucket(row.bucket)), parameters,
                     offsets, to_string(plan.mesh(), row.row_elems));
}

Texts rows_of(const Plan& plan) {
  Texts texts;
  for (const GradientRow& row : plan.gradient_rows)
    texts.push_back(told(plan, row));
  return texts;
}

/// Rows of the reduce-scatters of an optimizer step, in order.
std::vector<int> scattered(const Plan& plan, std::int64_t step) {
  std::vector<int> rows;
  for (const Step& each : plan.steps) {
    if (each.kind == StepKind::ReduceScatter && each.step == step) rows.push_back(each.row);
  }
  return rows;
}

/// A part that these data ranks leave out of these micro-batches, in all steps.
InactiveSpec inactive(int module, std::vector<std::int64_t> ranks,
                      std::vector<std::int64_t> micro_batches) {
  return {.first = module,
          .end = module + 1,
          .data_ranks = std::move(ranks),
          .steps = {0, 1},
          .micro_batches = std::move(micro_batches)};
}

TEST_CASE("all parameters have gradients: one row per bucket, for all steps") {
  const Plan plan = build_plan(in_micro_batches(two_layers(), 3));
  CHECK(rows_of(plan) == Texts{"l0 [0 1] 0 8 of 10", "l1 [2 3] 0 8 of 10"});
  CHECK(scattered(plan, 0) == std::vector<int>{1, 0, 1, 0, 1, 0});
  CHECK(scattered(plan, 1) == scattered(plan, 0));
}

TEST_CASE("frozen parameters are in no row, unfrozen ones from their step on") {
  Scenario scenario = two_layers();
  scenario.training.trained_from = {2, 0, 1, 0};
  const Plan plan = build_plan(scenario);
  CHECK_NOTHROW(verify_plan(plan));
  CHECK(rows_of(plan) == Texts{"l0 [1] 0 of 2", "l1 [3] 0 of 2", "l1 [2 3] 0 8 of 10"});
  CHECK(scattered(plan, 0) == std::vector<int>{1, 0});
  CHECK(scattered(plan, 1) == std::vector<int>{2, 0});
  CHECK(collectives_of(plan, StepKind::ReduceScatter) ==
        Texts{"reduce_scatter(fsdp) float32 4->2", "reduce_scatter(fsdp) float32 4->2",
              "reduce_scatter(fsdp) float32 20->10", "reduce_scatter(fsdp) float32 4->2"});
  // Gathered are all.
  CHECK(collectives_of(plan, StepKind::Unshard) == Texts(8, "all_gather(fsdp) float32 10->20"));
}

TEST_CASE("a frozen unit is gathered in backward too, and reduces nothing") {
  Scenario scenario = two_layers();
  scenario.training.trained_from = {0, 0, 2, 2};
  const Plan plan = build_plan(scenario);
  CHECK_NOTHROW(verify_plan(plan));
  CHECK(rows_of(plan) == Texts{"l0 [0 1] 0 8 of 10"});
  CHECK(count_kind(plan, StepKind::Unshard) == 2 * 2 * 2);
  CHECK(count_kind(plan, StepKind::Backward) == 2 * 2);
  CHECK(count_kind(plan, StepKind::ReduceScatter) == 2);
  CHECK(count_kind(plan, StepKind::StoreGradient) == 2);
  // What only serves the model's input is not computed: the first layer has no backward.
  scenario.training.trained_from = {2, 2, 0, 0};
  const Plan first = build_plan(scenario);
  CHECK_NOTHROW(verify_plan(first));
  CHECK(count_kind(first, StepKind::Backward) == 2);
  CHECK(count_kind(first, StepKind::Unshard) == 2 * 2 * 2);
  // It is, where it is trained later: of step 0 nothing is left by it.
  scenario.training.trained_from = {1, 1, 0, 0};
  const Plan later = build_plan(scenario);
  CHECK_NOTHROW(verify_plan(later));
  CHECK(count_kind(later, StepKind::Backward) == 4);
  CHECK(scattered(later, 0).size() == 1);
  CHECK(scattered(later, 1).size() == 2);
}

TEST_CASE("parameters that no rank uses are in no row of that pass") {
  Scenario scenario =
      in_micro_batches(fsdp_scenario(elementwise_model({{"a", {4}}, {"b", {6}}}), 2), 2);
  scenario.training.steps = 2;
  scenario.data.inactive = {inactive(1, {0, 1}, {1})};
  const Plan every = build_plan(scenario);
  CHECK_NOTHROW(verify_plan(every));
  CHECK(rows_of(every) == Texts{"(root) [0 1] 0 2 of 5", "(root) [0] 0 of 2"});
  CHECK(scattered(every, 0) == std::vector<int>{0, 1});
  // Where gradients add up, of all that have one in some micro-batch.
  scenario.training.gradient_syncs = {false, true};
  const Plan last = build_plan(scenario);
  CHECK_NOTHROW(verify_plan(last));
  CHECK(rows_of(last) == Texts{"(root) [0 1] 0 2 of 5"});
  CHECK(scattered(last, 0) == std::vector<int>{0});
  // In no micro-batch: no gradient at all.
  scenario.data.inactive = {inactive(1, {0, 1}, {0, 1})};
  const Plan unused = build_plan(scenario);
  CHECK_NOTHROW(verify_plan(unused));
  CHECK(rows_of(unused) == Texts{"(root) [0] 0 of 2"});
  // Zeros, where unused ones are reduced.
  scenario.training.reduce_unused = true;
  CHECK(rows_of(build_plan(scenario)) == Texts{"(root) [0 1] 0 2 of 5"});
  scenario.training.reduce_unused = false;
  // Some rank uses it.
  scenario.data.inactive = {inactive(1, {1}, {0, 1})};
  CHECK(rows_of(build_plan(scenario)) == Texts{"(root) [0 1] 0 2 of 5"});
}

TEST_CASE("nothing has a gradient: nothing is reduced, and no gradient is stored") {
  Scenario scenario = fsdp_scenario(elementwise_model({{"a", {4}}}), 2);
  scenario.training.steps = 2;
  scenario.training.trained_from = {1};
  const Plan plan = build_plan(scenario);
  CHECK_NOTHROW(verify_plan(plan));
  CHECK(kinds_of_pass(plan, 0, 0) ==
        Texts{"unshard", "forward", "reshard", "loss", "unshard", "backward", "reshard"});
  CHECK(kinds_of_pass(plan, 0, 1).back() == "store_gradient");
}

TEST_CASE("rows of ignored parameters are theirs alone") {
  Scenario scenario = in_micro_batches(
      fsdp_scenario(elementwise_model({{"a", {4}}, {"i", {3}}, {"j", {5}}}), 2), 2);
  scenario.training.steps = 2;
  scenario.fully_shard.ignored_params = {1, 2};
  scenario.units = assign_units(scenario.model, scenario.parameters, {}, false, {1, 2});
  scenario.training.trained_from = {0, 1, 0};
  const Plan plan = build_plan(scenario);
  CHECK_NOTHROW(verify_plan(plan));
  CHECK(rows_of(plan) ==
        Texts{"(root) [0] 0 of 2", "(ignored) [2] 0 of 5", "(ignored) [1] 0 of 3"});
  // Once per optimizer step, of the sum over micro-batches.
  CHECK(kinds_of_pass(plan, -1, 0) == Texts{"all_reduce", "store_gradient", "optimizer"});
  CHECK(kinds_of_pass(plan, -1, 1) ==
        Texts{"all_reduce", "store_gradient", "all_reduce", "store_gradient", "optimizer"});
}

TEST_CASE("rows keep the ranges that are Partial along further dims") {
  // Of l0 nothing is cut along x, which splits the batch: all of it is Partial there.
  Scenario scenario = two_layers();
  scenario.mesh = Mesh({2, 2}, {"fsdp", "x"});
  scenario.data.data_dims = {0, 1};
  scenario.training.global_batch = 8;
  scenario.training.trained_from = {2, 0, 0, 0};
  const Plan plan = build_plan(scenario);
  CHECK_NOTHROW(verify_plan(plan));
  CHECK(rows_of(plan) == Texts{"l0 [1] 0 of 2", "l1 [2 3] 0 8 of 10"});
  CHECK(plan.gradient_rows[0].partials == std::vector<PartialRange>{{{1}, {0, 1}}});
  CHECK(plan.gradient_rows[1].partials == std::vector<PartialRange>{{{1}, {0, 2}}});
}

/// Step 0 and 1 of two layers, l1.weight being trained from step 1 on.
Scenario unfreezing() {
  Scenario scenario = two_layers();
  scenario.training.trained_from = {0, 0, 1, 0};
  return scenario;
}

TEST_CASE("planted: a gradient is in no row, or a row has a parameter without gradient") {
  const auto after = [](const std::function<void(Plan&)>& plant) {
    return codes_after(unfreezing(), plant);
  };
  CHECK(after([](Plan&) {}).empty());
  // Rows: l0 [0 1], l1 [3], l1 [2 3]. In step 1 of l1 only its bias is reduced.
  const Codes lost = after([](Plan& p) {
    REQUIRE(p.gradient_rows.at(1).parameters == std::vector<int>{3});
    for (Step& step : p.steps) {
      if (step.row == 2) step.row = 1;
      std::replace(step.rows.begin(), step.rows.end(), 2, 1);
    }
  });
  CHECK(has(lost, FindingCode::CommCount));
  CHECK(has(lost, FindingCode::UnreducedPartial));
  // In step 0 of l1 the frozen weight is reduced and stored, too.
  const Codes frozen = after([](Plan& p) {
    for (Step& step : p.steps) {
      if (step.row == 1) step.row = 2;
      std::replace(step.rows.begin(), step.rows.end(), 1, 2);
    }
  });
  CHECK(has(frozen, FindingCode::CommCount));
  CHECK(has(frozen, FindingCode::CommShape));
  // The same, its sizes as the row says: only what is stored tells.
  CHECK(after([](Plan& p) {
          const CollectiveSpec whole = *step_of(p, StepKind::ReduceScatter, 2).collective;
          for (Step& step : p.steps) {
            if (step.row == 1 && step.collective) step.collective = whole;
            if (step.row == 1) step.row = 2;
            std::replace(step.rows.begin(), step.rows.end(), 1, 2);
          }
        }) == Codes{FindingCode::CommCount});
}

TEST_CASE("planted: a backward leaves its gradients in another row than is reduced") {
  const auto after = [](const std::function<void(Plan&)>& plant) {
    return codes_after(unfreezing(), plant);
  };
  CHECK(has(after([](Plan& p) { step_of(p, StepKind::ReduceScatter, 0).row = 2; }),
            FindingCode::CommOrder));
  CHECK(has(after([](Plan& p) {
              step_of(p, StepKind::Backward, 2).rows = {1, 2};
            }),
            FindingCode::CommCount));
  CHECK(has(after([](Plan& p) { step_of(p, StepKind::Backward, 0).rows.clear(); }),
            FindingCode::CommCount));
  // Micro-batches that add up in two rows.
  Scenario scenario =
      in_micro_batches(fsdp_scenario(elementwise_model({{"a", {4}}, {"b", {6}}}), 2), 2);
  scenario.training.gradient_syncs = {false, true};
  CHECK(has(codes_after(scenario,
                        [](Plan& p) {
                          p.gradient_rows.push_back(p.gradient_rows[0]);
                          for (const std::int64_t backward : {2, 3})
                            step_of(p, StepKind::Backward, backward).rows = {1};
                        }),
            FindingCode::CommOrder));
}

TEST_CASE("planted: slots of a row are not end to end, or in another order than the bucket's") {
  const auto after = [](const std::function<void(GradientRow&)>& plant) {
    return codes_after(unfreezing(), [&](Plan& p) { plant(p.gradient_rows.at(2)); });
  };
  CHECK(after([](GradientRow& row) { row.offsets[1] = 7; }) == Codes{FindingCode::OffsetWrong});
  CHECK(has(after([](GradientRow& row) { row.row_elems = 11; }), FindingCode::OffsetWrong));
  CHECK(has(after([](GradientRow& row) {
              std::swap(row.parameters[0], row.parameters[1]);
              row.offsets[1] = 2;
            }),
            FindingCode::OffsetWrong));
  CHECK(has(after([](GradientRow& row) { row.parameters = {2, 2}; }), FindingCode::OffsetWrong));
}

}  // namespace
}  // namespace hpsim::test
