// What planted faults of collectives, scales and micro-batches do, against the same run without:
// everything here is a sum of terms of ranks, so that what a fault leaves out or adds is known.

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "base/error.h"
#include "exec/local.h"
#include "plan/build_plan.h"
#include "plan/verify_plan.h"
#include "support/catch.h"
#include "support/scenarios.h"

namespace hpsim {
namespace {

using test::elementwise_model;
using test::fsdp_scenario;
using test::hsdp_scenario;

VerifiedPlan plan_with(Scenario scenario, const FaultSpec& fault) {
  if (!fault.name.empty()) scenario.faults = {fault};
  return verify_plan(build_plan(std::move(scenario)));
}

FaultSpec fault_of(const std::string& name) {
  FaultSpec fault;
  fault.name = name;
  fault.pointer = "/faults/0";
  return fault;
}

RunResult run(const Scenario& scenario, const FaultSpec& fault = {}) {
  return LocalExecutor().run(plan_with(scenario, fault), {});
}

/// One weight of 8 rows of 2, in exact mode: sums are what they are by hand.
Scenario exact(Scenario scenario) {
  test::make_exact(scenario);
  return scenario;
}
Scenario over_fsdp(std::int64_t num_ranks) {
  return exact(fsdp_scenario(elementwise_model({{"w", {8, 2}}}), num_ranks));
}
Scenario over_replicas(std::int64_t replicas, std::int64_t shards) {
  return exact(hsdp_scenario(elementwise_model({{"w", {8, 2}}}), replicas, shards));
}

/// Gradient of parameter 0 in step 0.
std::vector<double> gradient(const RunResult& run, std::int64_t rank, std::int64_t step = 0) {
  const TensorView view = run.gradient(Rank{rank}, step, 0);
  std::vector<double> values;
  for (std::int64_t i = 0; i < view.elems; ++i)
    values.push_back(view.at(i));
  return values;
}

std::vector<double> times(std::vector<double> values, double factor) {
  for (double& value : values)
    value *= factor;
  return values;
}

std::vector<double> sum_of(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> sum = a;
  for (std::size_t i = 0; i < sum.size(); ++i)
    sum[i] += b.at(i);
  return sum;
}

std::int64_t num_collectives(const RunResult& run) {
  return run.rank_record(Rank{0}).num_collectives;
}

TEST_CASE("without the all-reduce, what copies keep adds up to what it would have brought") {
  const Scenario scenario = over_replicas(2, 2);
  const RunResult right = run(scenario);
  const RunResult wrong = run(scenario, fault_of("skip_all_reduce"));
  // Ranks 0 and 2 hold the same shard: (t0 + t2) / D = t0 / D + t2 / D.
  CHECK(sum_of(gradient(wrong, 0), gradient(wrong, 2)) == gradient(right, 0));
  CHECK(gradient(wrong, 0) != gradient(wrong, 2));
  CHECK(num_collectives(wrong) == num_collectives(right) - 1);
}

TEST_CASE("without the reduce-scatter, ranks keep their own terms of their own rows") {
  const RunResult right = run(over_fsdp(2));
  const RunResult wrong = run(over_fsdp(2), fault_of("skip_reduce_scatter"));
  CHECK(gradient(wrong, 0) != gradient(right, 0));
  // What is missing on rank 0 is rank 1's term of the same rows, which a max for the sum shows
  // wherever it is the larger one.
  const RunResult largest = run(over_fsdp(2), fault_of("wrong_op_max"));
  for (std::size_t i = 0; i < gradient(right, 0).size(); ++i) {
    const double own = gradient(wrong, 0)[i];
    const double other = gradient(right, 0)[i] - own;
    CHECK(gradient(largest, 0)[i] == std::max(own, other));
  }
}

TEST_CASE("a second reduction counts every term once more for each that it adds") {
  // The sum of two copies, summed over both: twice; likewise two results of one reduce-scatter.
  for (const char* name : {"double_all_reduce", "double_reduce_scatter"}) {
    const Scenario scenario = over_replicas(2, 2);
    const RunResult right = run(scenario);
    const RunResult wrong = run(scenario, fault_of(name));
    CHECK(gradient(wrong, 1) == times(gradient(right, 1), 2));
    CHECK(num_collectives(wrong) == num_collectives(right) + 1);
  }
  const RunResult right = run(over_replicas(4, 1));
  const RunResult wrong = run(over_replicas(4, 1), fault_of("double_all_reduce"));
  CHECK(gradient(wrong, 1) == times(gradient(right, 1), 4));
}

TEST_CASE("an all-reduce in the place of a reduce-scatter brings the same numbers") {
  const RunResult right = run(over_fsdp(4));
  const RunResult wrong = run(over_fsdp(4), fault_of("all_reduce_for_reduce_scatter"));
  CHECK(gradient(wrong, 2) == gradient(right, 2));
  // Two gathers come before it; all 16 elements go both ways.
  CHECK(wrong.executed(Rank{2})[2].op == CollectiveOp::AllReduce);
  CHECK(wrong.executed(Rank{2})[2].elems_out == 16);
}

TEST_CASE("one row more is sent, and does not change what arrives") {
  const RunResult right = run(over_fsdp(4));
  const RunResult wrong = run(over_fsdp(4), fault_of("extra_row_on_rank"));
  CHECK(gradient(wrong, 3) == gradient(right, 3));
  // 2 rows of 2 per rank, and one more.
  CHECK(right.executed(Rank{3})[0].elems_in == 4);
  CHECK(wrong.executed(Rank{3})[0].elems_in == 6);
  CHECK(wrong.executed(Rank{3})[0].elems_out == 24);
}

TEST_CASE("factors that are applied wrongly show in the gradient as they are") {
  struct Case {
    const char* fault;
    Scenario scenario;
    double factor;
  };
  Scenario scaled = over_fsdp(4);
  scaled.fully_shard.gradient_scaling_factor = 2;
  // Exact mode divides by D, here a power of two: F = 4.
  const std::vector<Case> cases = {
      {"sum_for_avg", over_fsdp(4), 4},
      {"sum_for_avg", over_replicas(2, 2), 4},
      {"scale_twice", over_fsdp(4), 0.25},
      {"scale_twice", scaled, 0.5},  // k/F = 2/4
      {"scale_by_numel", over_fsdp(4), 1.0 / 16},
      {"scale_missing_when_alone", over_replicas(4, 1), 4},
      {"scale_twice_when_alone", over_replicas(4, 1), 0.25},
      {"average_of_replicas_again", over_replicas(2, 2), 0.5},
      {"average_of_replicas_again", over_replicas(4, 1), 0.25},
  };
  for (const Case& c : cases) {
    CAPTURE(c.fault);
    const RunResult right = run(c.scenario);
    const RunResult wrong = run(c.scenario, fault_of(c.fault));
    for (std::int64_t rank = 0; rank < 4; ++rank)
      CHECK(gradient(wrong, rank) == times(gradient(right, rank), c.factor));
  }
}

TEST_CASE("a fault has no place where it makes no difference") {
  const auto has_place = [](const Scenario& scenario, const FaultSpec& fault) {
    try {
      static_cast<void>(run(scenario, fault));
      return true;
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::InvalidScenario);
      return false;
    }
  };
  // Nothing is sent on one rank, and the factor is 1.
  for (const char* name : {"skip_all_gather", "skip_reduce_scatter", "double_all_reduce",
                           "scale_twice", "sum_for_avg", "wrong_group_dim"}) {
    CAPTURE(name);
    CHECK_FALSE(has_place(over_fsdp(1), fault_of(name)));
  }
  CHECK_FALSE(has_place(over_fsdp(4), fault_of("skip_all_reduce")));
  CHECK_FALSE(has_place(over_fsdp(4), fault_of("scale_missing_when_alone")));
  CHECK_FALSE(has_place(over_fsdp(4), fault_of("wrong_group_stride")));
  CHECK_FALSE(has_place(over_replicas(4, 1), fault_of("skip_reduce_scatter")));
  CHECK_FALSE(has_place(over_fsdp(4), fault_of("ignore_sync_flag")));
  CHECK_FALSE(has_place(over_fsdp(4), fault_of("zero_each_micro_batch")));
  // Sums are no averages: there is no division to leave out.
  Scenario sums = over_fsdp(4);
  sums.fully_shard.reduce_op = ReduceOp::Sum;
  CHECK_FALSE(has_place(sums, fault_of("sum_for_avg")));
  // Only one unit: none can be taken for it.
  CHECK_FALSE(has_place(over_fsdp(4), fault_of("wrong_unit_gathered")));
  CHECK_FALSE(has_place(over_fsdp(4), fault_of("reorder_collectives")));
  // Aimed past what there is.
  FaultSpec later = fault_of("skip_all_gather");
  later.step = 1;
  CHECK_FALSE(has_place(over_fsdp(4), later));
}

TEST_CASE("faults strike only where they are aimed") {
  Scenario scenario = over_fsdp(2);
  scenario.training.steps = 2;
  FaultSpec fault = fault_of("sum_for_avg");
  fault.step = 1;
  const RunResult right = run(scenario);
  const RunResult wrong = run(scenario, fault);
  CHECK(gradient(wrong, 0, 0) == gradient(right, 0, 0));
  CHECK(gradient(wrong, 0, 1) == times(gradient(right, 0, 1), 2));
  fault.step.reset();
  fault.ranks = {Rank{1}};
  const RunResult of_one = run(scenario, fault);
  CHECK(gradient(of_one, 0, 0) == gradient(right, 0, 0));
  CHECK(gradient(of_one, 1, 0) == times(gradient(right, 1, 0), 2));
}

/// Four micro-batches of one sample each; gradients are reduced in the last alone.
Scenario in_micro_batches(Scenario scenario) {
  scenario.training.micro_batches = 4;
  scenario.training.global_batch = 4 * scenario.num_data_ranks();
  scenario.training.gradient_syncs = {false, false, false, true};
  scenario.training.all_reduces = {false, false, false, true};
  return scenario;
}

TEST_CASE("reducing in every micro-batch costs collectives, and changes no numbers") {
  struct Case {
    const char* fault;
    Scenario scenario;
    std::int64_t more;  ///< collectives, in the three micro-batches that only add up
  };
  Scenario waits = in_micro_batches(over_replicas(2, 2));
  waits.training.gradient_syncs = {};  // reduce-scatters in each, the all-reduce in the last
  Scenario waits_alone = in_micro_batches(over_replicas(4, 1));
  waits_alone.training.gradient_syncs = {};
  const std::vector<Case> cases = {
      {"ignore_sync_flag", in_micro_batches(over_fsdp(4)), 3},
      {"ignore_sync_flag", in_micro_batches(over_replicas(2, 2)), 3},
      {"ignore_sync_flag", in_micro_batches(over_replicas(4, 1)), 3},
      {"all_reduce_each_micro_batch", waits, 3},
      {"all_reduce_each_micro_batch", waits_alone, 3},
  };
  for (const Case& c : cases) {
    CAPTURE(c.fault);
    const RunResult right = run(c.scenario);
    const RunResult wrong = run(c.scenario, fault_of(c.fault));
    for (std::int64_t rank = 0; rank < 4; ++rank)
      CHECK(gradient(wrong, rank) == gradient(right, rank));
    CHECK(num_collectives(wrong) == num_collectives(right) + c.more);
  }
}

TEST_CASE("what is lost of micro-batches is what they would have added") {
  const Scenario scenario = in_micro_batches(over_fsdp(4));
  const RunResult right = run(scenario);
  const RunResult last = run(scenario, fault_of("zero_each_micro_batch"));
  const RunResult without_first = run(scenario, fault_of("skip_micro_batch"));
  CHECK(gradient(last, 0) != gradient(right, 0));
  CHECK(gradient(without_first, 0) != gradient(right, 0));
  CHECK(gradient(without_first, 0) != gradient(last, 0));
  // With two micro-batches, losing the first and keeping the last are the same.
  Scenario two = over_fsdp(4);
  two.training.micro_batches = 2;
  two.training.global_batch = 2 * 4;
  CHECK(gradient(run(two, fault_of("zero_each_micro_batch")), 1) ==
        gradient(run(two, fault_of("skip_micro_batch")), 1));
}

TEST_CASE("gradients that are reduced in the first micro-batch miss what others add later") {
  const Scenario scenario = in_micro_batches(over_fsdp(4));
  const RunResult right = run(scenario);
  const RunResult wrong = run(scenario, fault_of("sync_first"));
  CHECK(num_collectives(wrong) == num_collectives(right));
  CHECK(gradient(wrong, 0) != gradient(right, 0));
  // Alone there is nothing to miss: over replicas of one rank, with no collective, no place.
  CHECK_THROWS_AS(run(in_micro_batches(over_fsdp(1)), fault_of("sync_first")), Error);
}

TEST_CASE("replicas that read the same samples have the same terms") {
  const Scenario scenario = over_replicas(2, 2);
  FaultSpec alone = fault_of("same_data_on_replicas");
  const RunResult wrong = run(scenario, alone);
  // Ranks 0 and 2 differ along the replicate dim alone.
  CHECK(wrong.losses(Rank{0}, 0)[0] == wrong.losses(Rank{2}, 0)[0]);
  CHECK(wrong.losses(Rank{0}, 0)[0] != wrong.losses(Rank{1}, 0)[0]);
  const RunResult right = run(scenario);
  CHECK(right.losses(Rank{0}, 0)[0] != right.losses(Rank{2}, 0)[0]);
}

TEST_CASE("a unit that is taken for another is gathered, and reduced, in its place") {
  Scenario scenario = fsdp_scenario(
      test::modules_model({test::linear("l0", 4, 4, false), test::linear("l1", 4, 4, false)}), 2);
  const auto gradients = [](const RunResult& run, int p) {
    const TensorView view = run.gradient(Rank{0}, 0, p);
    std::vector<double> values;
    for (std::int64_t i = 0; i < view.elems; ++i)
      values.push_back(view.at(i));
    return values;
  };
  const RunResult right = run(scenario);
  // Backward reduces l1 first: l0 then gets its gradient.
  const RunResult reduced = run(scenario, fault_of("wrong_unit_reduced"));
  CHECK(gradients(reduced, 1) == gradients(right, 1));
  CHECK(gradients(reduced, 0) == gradients(right, 1));
  FaultSpec gathered = fault_of("wrong_unit_gathered");
  gathered.unit = 0;
  const RunResult other = run(scenario, gathered);
  CHECK(other.executed(Rank{0})[0].plan_step == right.executed(Rank{0})[1].plan_step);
  CHECK(gradients(other, 0) != gradients(right, 0));
}

}  // namespace
}  // namespace hpsim
