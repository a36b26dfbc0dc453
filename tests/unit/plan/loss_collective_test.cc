// What ranks exchange for the loss, and what attention and tied weights need beside it.

#include "plan/loss_collective.h"

#include <string>

#include "plan/activation_part.h"
#include "plan/build_plan.h"
#include "support/catch.h"
#include "unit/plan/activation_scenarios.h"

namespace hpsim {
namespace {

using test::linear_json;
using test::scenario_of;

/// A linear 4 -> 8 on (fsdp 2, tp 2), two samples on each data rank.
Plan plan_with(const std::string& style, const std::string& loss, const std::string& shape) {
  return build_plan(
      scenario_of({"2, 2",
                   R"("fsdp", "tp")",
                   {linear_json("out", 4, 8)},
                   R"("data": {"sample_shape": )" + shape + R"(}, "parallelize": {"out": ")" +
                       style + R"("}, "training": {"loss": ")" + loss + R"("})"}));
}

struct Sizes {
  std::int64_t in;
  std::int64_t out;
};

void check_gathers(const Plan& plan, const Sizes& expected) {
  const auto collective = loss_collective(plan);
  REQUIRE(collective);
  CHECK(collective->op == CollectiveOp::AllGather);
  CHECK(collective->dims == MeshDims{1});
  CHECK(collective->group_size == 2);
  CHECK(collective->elems_in == PerCoordinate(expected.in));
  CHECK(collective->elems_out == PerCoordinate(expected.out));
}

TEST_CASE("a cross entropy gathers three numbers per position where its classes are cut") {
  const Plan sequences = plan_with("colwise", "cross_entropy", "[5, 4]");
  check_gathers(sequences, {3 * 2 * 5, 2 * 3 * 2 * 5});
  CHECK(loss_group(sequences) == MeshDims{1});
  CHECK(loss_part_dims(sequences) == MeshDims{0});
  CHECK(num_loss_terms(sequences.scenario) == 2 * 5);
  check_gathers(plan_with("colwise", "cross_entropy", "[4]"), {3 * 2, 2 * 3 * 2});
}

TEST_CASE("nothing is gathered for whole classes, nor by mse; ranks of a cut hold terms of it") {
  const Plan whole = plan_with("rowwise", "cross_entropy", "[5, 4]");
  CHECK_FALSE(loss_collective(whole));
  CHECK(loss_part_dims(whole) == MeshDims{0});
  const Plan mse = plan_with("colwise", "mse", "[5, 4]");
  CHECK_FALSE(loss_collective(mse));
  CHECK(loss_group(mse).empty());
  CHECK(loss_part_dims(mse) == MeshDims{0, 1});
  CHECK(num_loss_terms(mse.scenario) == 2 * 5 * 8);
  // rowwise_sp leaves parts of the sequence: terms of positions.
  const Plan positions = plan_with("rowwise_sp", "cross_entropy", "[5, 4]");
  CHECK_FALSE(loss_collective(positions));
  CHECK(loss_part_dims(positions) == MeshDims{0, 1});
}

TEST_CASE("attention holds scores of a tile of queries, in backward twice") {
  CHECK(attention_scratch_elems(128, false) == 64 * 128);
  CHECK(attention_scratch_elems(128, true) == 2 * 64 * 128);
  CHECK(attention_scratch_elems(5, false) == 5 * 5);
  CHECK(attention_scratch_elems(5, true) == 2 * 5 * 5);
}

}  // namespace
}  // namespace hpsim
