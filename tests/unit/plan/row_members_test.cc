#include "plan/row_members.h"

#include "plan/build_plan.h"
#include "support/catch.h"
#include "support/scenarios.h"

namespace hpsim {
namespace {

TEST_CASE("members of rows, in whatever order a row has them, and of rows that come later") {
  Plan plan = build_plan(
      test::fsdp_scenario(test::elementwise_model({{"a", {4}}, {"b", {4}}, {"c", {4}}}), 2));
  plan.gradient_rows.assign(1, plan.gradient_rows.at(0));
  plan.gradient_rows[0].parameters = {2, 0};
  RowMembers members(plan);
  CHECK(members.holds(0, 0));
  CHECK_FALSE(members.holds(0, 1));
  CHECK(members.holds(0, 2));
  plan.gradient_rows.push_back(plan.gradient_rows[0]);
  plan.gradient_rows[1].parameters = {1};
  CHECK(members.holds(1, 1));
  CHECK_FALSE(members.any_holds({0}, 1));
  CHECK(members.any_holds({0, 1}, 1));
  CHECK_FALSE(members.any_holds({}, 1));
}

}  // namespace
}  // namespace hpsim
