#include "trace/planned_collectives.h"

#include <functional>
#include <optional>
#include <vector>

#include "plan/build_plan.h"
#include "support/catch.h"
#include "support/scenarios.h"

namespace hpsim {
namespace {

/// One weight of 8 rows over (rep 2, fsdp 2): gathers in forward and backward, then a
/// reduce-scatter over fsdp and an all-reduce over rep.
Plan small_plan() {
  return build_plan(test::hsdp_scenario(test::elementwise_model({{"w", {8, 3}}}), 2, 2));
}

/// As the plan has it, on rank 0.
ExecutedCollective as_planned(const Plan& plan, std::int64_t plan_step) {
  const CollectiveSpec& spec = *plan.steps.at(static_cast<std::size_t>(plan_step)).collective;
  const Coordinate first(2, 0);
  return {.plan_step = plan_step,
          .elems_in = spec.elems_in.at(plan.mesh(), first),
          .elems_out = spec.elems_out.at(plan.mesh(), first),
          .op = spec.op,
          .dtype = spec.dtype,
          .takes_max = spec.takes_max,
          .dims = dims_mask(spec.dims),
          .consecutive = spec.consecutive};
}

TEST_CASE("what differs from the plan in a collective has a code") {
  const Plan plan = small_plan();
  const std::vector<std::int64_t> steps = collective_steps(plan);
  REQUIRE(steps.size() == 4);
  struct Case {
    std::function<void(ExecutedCollective&)> change;
    std::optional<FindingCode> code;
  };
  const std::vector<Case> cases = {
      {[](ExecutedCollective&) {}, std::nullopt},
      {[&](ExecutedCollective& e) { e = as_planned(plan, steps[3]); }, FindingCode::CommOrder},
      {[](ExecutedCollective& e) { e.op = CollectiveOp::AllReduce; }, FindingCode::CommOrder},
      {[](ExecutedCollective& e) { e.takes_max = true; }, FindingCode::CommOrder},
      {[](ExecutedCollective& e) { e.dims = 1; }, FindingCode::CommGroup},
      {[](ExecutedCollective& e) { e.dims = 3; }, FindingCode::CommGroup},
      // All ranks in runs of two: 0 1 and 2 3, which are the groups along fsdp.
      {[](ExecutedCollective& e) { e.dims = 3, e.consecutive = 2; }, std::nullopt},
      {[](ExecutedCollective& e) { e.dtype = DType::BFloat16; }, FindingCode::CommDtype},
      {[](ExecutedCollective& e) { e.elems_in += 3; }, FindingCode::CommShape},
      {[](ExecutedCollective& e) { e.elems_out -= 3; }, FindingCode::CommShape},
      // The first of several.
      {[](ExecutedCollective& e) { e.dims = 1, e.elems_in = 0; }, FindingCode::CommGroup},
  };
  for (std::size_t i = 0; i < cases.size(); ++i) {
    CAPTURE(i);
    ExecutedCollective entered = as_planned(plan, steps[2]);  // the reduce-scatter over fsdp
    cases[i].change(entered);
    CHECK(difference_from_plan(plan, steps[2], Rank{0}, entered) == cases[i].code);
  }
}

TEST_CASE("dims and their mask are the same set") {
  CHECK(dims_mask({}) == 0);
  CHECK(dims_mask({0, 2}) == 5);
  CHECK(dims_of_mask(6) == MeshDims{1, 2});
  CHECK(dims_of_mask(0).empty());
}

TEST_CASE("a rank is followed until it first leaves the plan") {
  const Plan plan = small_plan();
  const std::vector<std::int64_t> steps = collective_steps(plan);
  struct Case {
    std::vector<std::size_t> entered;  ///< numbers among the planned ones
    std::optional<FindingCode> code;
    std::int64_t planned, instead;  ///< of the difference, likewise; -1: none
  };
  for (const Case& c : {Case{{0, 1, 2, 3}, std::nullopt, -1, -1},
                        {{0, 2, 3}, FindingCode::CommOrder, 1, 2},
                        {{0, 0, 1, 2, 3}, FindingCode::CommOrder, 1, 0},
                        {{1, 0, 2, 3}, FindingCode::CommOrder, 0, 1},
                        {{0, 1, 2}, FindingCode::CommCount, 3, -1},
                        {{0, 1, 2, 3, 3}, FindingCode::CommCount, -1, 3}}) {
    PlannedOrder order(plan, steps, Rank{0});
    for (const std::size_t number : c.entered)
      order.enter(as_planned(plan, steps[number]));
    order.end();
    REQUIRE(order.difference().has_value() == c.code.has_value());
    if (!c.code) continue;
    const auto step_of = [&](std::int64_t number) {
      return number < 0 ? -1 : steps[static_cast<std::size_t>(number)];
    };
    CHECK(order.difference()->code == *c.code);
    CHECK(order.difference()->planned == step_of(c.planned));
    CHECK(order.difference()->entered == step_of(c.instead));
  }
}

}  // namespace
}  // namespace hpsim
