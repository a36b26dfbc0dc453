// What is told of layouts that the other checks cannot look at, of factors, and of collectives that
// are not those that are asked for: the tables of the headers.

#include "plan/well_formed.h"

#include <optional>
#include <string>
#include <vector>

#include "plan/scale_names.h"
#include "plan/spec_difference.h"
#include "planted_plan.h"

namespace hpsim::test {
namespace {

/// w (5, 2) over fsdp 2, cut by local units, placements left as they were.
Plan with_units(std::vector<std::int64_t> units) {
  Plan plan = build_plan(fsdp_scenario(elementwise_model({{"w", {5, 2}}}), 2));
  plan.parameters[0].cut.local_units = LocalUnits(units);
  return plan;
}

std::string told(const std::optional<Finding>& finding) {
  if (!finding) return "fine";
  return fmt::format("{} {} {} {}", name_of(finding->check), name_of(finding->code),
                     finding->expected.value_or(-1), finding->got.value_or(-1));
}

TEST_CASE("layouts that cannot be read") {
  struct Row {
    std::vector<std::int64_t> units;
    const char* told;  ///< check, code, expected, got
  };
  const Row rows[] = {
      {{3, 2}, "fine"},
      {{2, 3}, "fine"},
      {{5, 0}, "fine"},
      {{1, 4}, "fine"},
      {{2, 2, 1}, "coverage LAYOUT_GAP 2 3"},
      {{5}, "coverage LAYOUT_GAP 2 1"},
      // Four of five rows; the multiple of 3 below 5 is 3; none at all.
      {{2, 2}, "coverage LAYOUT_GAP 5 4"},
      {{1, 2}, "coverage LAYOUT_GAP 5 3"},
      {{0, 0}, "coverage LAYOUT_GAP 5 0"},
      {{3, 3}, "coverage LAYOUT_OVERLAP 5 6"},
  };
  for (const Row& row : rows) {
    const Plan plan = with_units(row.units);
    CAPTURE(row.told);
    CHECK(told(malformed_layout(plan.mesh(), plan.parameters[0])) == row.told);
  }
}

TEST_CASE("placements are one per mesh dim") {
  Plan plan = build_plan(hsdp_scenario(elementwise_model({{"w", {4, 2}}}), 2, 2));
  CHECK(told(malformed_layout(plan.mesh(), plan.parameters[0])) == "fine");
  plan.parameters[0].sharded.pop_back();
  CHECK(told(malformed_layout(plan.mesh(), plan.parameters[0])) == "placements SPEC_DISAGREES 2 1");
  plan.parameters[0].sharded.assign(3, Replicate{});
  CHECK(told(malformed_layout(plan.mesh(), plan.parameters[0])) == "placements SPEC_DISAGREES 2 3");
  plan = build_plan(hsdp_scenario(elementwise_model({{"w", {4, 2}}}), 2, 2));
  plan.parameters[0].unsharded.clear();
  CHECK(told(malformed_layout(plan.mesh(), plan.parameters[0])) == "placements SPEC_DISAGREES 2 0");
}

TEST_CASE("a plan with such a layout is rejected for it, and nothing else is compared") {
  Plan plan = with_units({2, 2});
  try {
    static_cast<void>(verify_plan(plan));
    FAIL("it is accepted");
  } catch (const PlanRejected& rejected) {
    REQUIRE(rejected.findings().size() == 1);
    CHECK(rejected.findings()[0].code == FindingCode::LayoutGap);
    REQUIRE(rejected.checks().results.size() == 4);
    for (const CheckResult& check : rejected.checks().results) {
      CHECK_FALSE(check.passed);
      CHECK(check.compared == 0);
    }
  }
}

TEST_CASE("whether local units can tell boxes") {
  const Mesh mesh({2}, {"fsdp"});
  const auto boxes = [&](Placement placement) {
    return has_boxes({{5, 2}, {std::move(placement)}}, mesh, {0});
  };
  CHECK(boxes(Shard{0}));
  CHECK(boxes(RaggedShard{{0}, LocalUnits(std::vector<std::int64_t>{3, 2})}));
  CHECK_FALSE(boxes(RaggedShard{{0}, LocalUnits(std::vector<std::int64_t>{2, 2})}));
  CHECK_FALSE(boxes(RaggedShard{{0}, LocalUnits(std::vector<std::int64_t>{3, 1, 1})}));
  // 10 cells in units of (1, 4).
  CHECK(boxes(RaggedShard{{0, 1}, LocalUnits(std::vector<std::int64_t>{1, 4})}));
  CHECK_FALSE(has_boxes({{5, 2}, {}}, mesh, {0}));
}

TEST_CASE("factors by name, of mesh (rep 2, fsdp 4)") {
  const Plan plan = build_plan(hsdp_scenario(elementwise_model({{"w", {8, 2}}}), 2, 4));
  // W = D = F = 8 ranks in all, S = 4, R = 2.
  CHECK(scale_names(plan, 0, 8) == Texts{"W=8", "D=8", "S*R=8", "F=8"});
  CHECK(scale_names(plan, 0, 4) == Texts{"S=4"});
  CHECK(scale_names(plan, 0, 0.5) == Texts{"1/R=1/2"});
  CHECK(scale_names(plan, 0, 0.125) == Texts{"1/W=1/8", "1/D=1/8", "1/S*R=1/8", "1/F=1/8"});
  // 64 = 8 * 8, of which there are ten pairs of four.
  CHECK(scale_names(plan, 0, 64).size() == 10);
  CHECK(scale_names(plan, 0, 64).front() == "W=8 times W=8");
  CHECK(scale_names(plan, 0, 7).empty());
}

TEST_CASE("the first thing in which a collective differs") {
  const Mesh mesh({4, 2}, {"fsdp", "tp"});
  const CollectiveSpec right{.op = CollectiveOp::AllReduce,
                             .dims = {1},
                             .group_size = 2,
                             .dtype = DType::Float32,
                             .elems_in = 8,
                             .elems_out = 8};
  const auto differs = [&](const std::optional<CollectiveSpec>& got,
                           const std::optional<CollectiveSpec>& wanted) {
    const auto difference = difference_of(mesh, got, wanted);
    return difference ? fmt::format("{} {}", name_of(difference->code), difference->message)
                      : std::string("none");
  };
  const auto with = [&](const auto& change) {
    CollectiveSpec spec = right;
    change(spec);
    return differs(spec, right);
  };
  CHECK(differs(right, right) == "none");
  CHECK(differs({}, {}) == "none");
  CHECK(differs({}, right) == "COMM_COUNT no all_reduce over (tp), 2 ranks");
  CHECK(differs(right, {}) == "COMM_COUNT all_reduce over (tp), 2 ranks, none is asked for");
  CHECK(with([](CollectiveSpec& spec) { spec.op = CollectiveOp::AllGather; }) ==
        "COMM_ORDER all_gather, expected all_reduce");
  CHECK(with([](CollectiveSpec& spec) { spec.takes_max = true; }) ==
        "COMM_ORDER all_reduce of the largest, expected all_reduce");
  CHECK(with([](CollectiveSpec& spec) {
          spec.dims = {0};
          spec.group_size = 4;
        }) == "COMM_GROUP over (fsdp), 4 ranks, expected over (tp), 2 ranks");
  CHECK(with([](CollectiveSpec& spec) { spec.dtype = DType::BFloat16; }) ==
        "COMM_DTYPE bfloat16 on the wire, expected float32");
  CHECK(with([](CollectiveSpec& spec) { spec.scale = 0.5; }) ==
        "GRAD_SCALE scaled by 0.5, expected 1");
  CHECK(with([](CollectiveSpec& spec) { spec.elems_in = 9; }) ==
        "COMM_SHAPE 9 elements in and 8 out, expected 8 and 8");
}

}  // namespace
}  // namespace hpsim::test
