#include <cmath>
#include <vector>

#include "base/error.h"
#include "exec/limits.h"
#include "exec/local.h"
#include "exec/ordered_sum.h"
#include "exec/symbolic.h"
#include "plan/build_plan.h"
#include "plan/verify_plan.h"
#include "support/catch.h"
#include "support/scenarios.h"
#include "trace/plan_ledger.h"

namespace hpsim {
namespace {

using test::activation;
using test::elementwise_model;
using test::finish_scenario;
using test::fsdp_scenario;
using test::hsdp_scenario;
using test::linear;
using test::make_exact;
using test::modules_model;

VerifiedPlan verified(Scenario scenario) {
  return verify_plan(build_plan(std::move(scenario)));
}

RunResult run_local(const VerifiedPlan& plan) {
  return LocalExecutor().run(plan, {});
}

/// Gradient of one elementwise parameter over the whole batch of step 0, in plain loops.
std::vector<double> elementwise_reference(const Scenario& scenario, const std::string& name,
                                          std::int64_t numel, double divisor) {
  const FillSpec init = parameter_fill(scenario.data, scenario.parameters[0]);
  std::vector<double> gradient(static_cast<std::size_t>(numel), 0.0);
  for (std::int64_t e = 0; e < numel; ++e) {
    const double w = value_at(fill_key(name, scenario.data.seed), e, init);
    for (std::int64_t b = 0; b < scenario.training.global_batch; ++b) {
      const std::int64_t i = b * numel + e;
      const double x =
          value_at(fill_key(name + "/input", scenario.data.seed), i, scenario.data.input);
      const double t =
          value_at(fill_key(name + "/target", scenario.data.seed), i, scenario.data.target);
      gradient[static_cast<std::size_t>(e)] += x * (w * x - t) / divisor;
    }
  }
  return gradient;
}

TEST_CASE("exact integers: every shard's gradient equals the whole-batch gradient in plain loops") {
  struct Case {
    std::int64_t replicas, shards, rows, divisor;
  };
  // Divisors by hand: 2 samples per rank of rows·3 elements, to the next power of two, and D.
  for (const Case c : {Case{1, 4, 7, 64 * 4},
                       {2, 2, 5, 32 * 4},
                       {1, 1, 5, 32 * 1},
                       {4, 1, 2, 16 * 4},
                       {1, 4, 2, 16 * 4}}) {
    Scenario scenario =
        hsdp_scenario(elementwise_model({{"w", {c.rows, 3}}}), c.replicas, c.shards);
    make_exact(scenario);
    const VerifiedPlan plan = verified(scenario);
    const RunResult run = run_local(plan);
    const auto expected =
        elementwise_reference(scenario, "w", c.rows * 3, static_cast<double>(c.divisor));
    for (std::int64_t r = 0; r < plan->mesh().num_ranks(); ++r) {
      const Rank rank{r};
      const Box box = run.held_boxes(rank, 0).at(0);
      const Interval held = {box.offset[0], box.offset[0] + box.shape[0]};
      const TensorView gradient = run.gradient(rank, 0, 0);
      REQUIRE(gradient.elems == (held.end - held.begin) * 3);
      for (std::int64_t i = 0; i < gradient.elems; ++i) {
        CHECK(gradient.at(i) == expected[static_cast<std::size_t>(held.begin * 3 + i)]);
      }
      CHECK(run.step_record(rank, 0).inexact == 0);
      CHECK(run.rank_record(rank).done == 1);
    }
  }
}

TEST_CASE("an operation that rounds is recorded on the rank that did it") {
  Scenario scenario = fsdp_scenario(elementwise_model({{"w", {4, 3}}}), 2);
  make_exact(scenario);
  scenario.data.input = {.kind = FillSpec::Kind::Uniform, .bound = 1};
  const RunResult run = run_local(verified(scenario));
  CHECK(run.step_record(Rank{0}, 0).inexact == 1);
}

std::vector<Scenario> assorted() {
  std::vector<Scenario> scenarios = {
      fsdp_scenario(elementwise_model({{"a", {7, 8}}, {"b", {5, 3}}}), 4),
      hsdp_scenario(modules_model({activation("r", ModuleType::Relu), linear("l0", 6, 10),
                                   activation("a0", ModuleType::Gelu), linear("l1", 10, 3)}),
                    2, 3),
      hsdp_scenario(modules_model({linear("l0", 4, 5), linear("l1", 5, 1, false)}), 3, 1),
      fsdp_scenario(modules_model({linear("l0", 4, 4)}), 1)};
  scenarios[1].training.steps = 3;
  scenarios[1].training.optimizer.kind = OptimizerSpec::Kind::AdamW;
  scenarios[1].fully_shard.replicate_params = {1};
  scenarios[1].units = assign_units(scenarios[1].model, scenarios[1].parameters, {"l1"}, true);
  scenarios[2].training.steps = 2;
  scenarios[2].training.optimizer.momentum = 0.5;
  scenarios[2].fully_shard.reshard_after_forward = false;
  Scenario partial = fsdp_scenario(modules_model({linear("l0", 4, 5), linear("l1", 5, 2)}), 2);
  partial.mesh = Mesh({2, 2}, {"fsdp", "x"}, {3, 1, 0, 2});
  partial.data.data_dims = {1};
  partial.training.global_batch = 0;
  finish_scenario(partial);
  scenarios.push_back(partial);
  return scenarios;
}

TEST_CASE("memory and padding that ranks measure is what the plan says, byte for byte") {
  for (const Scenario& scenario : assorted()) {
    const VerifiedPlan plan = verified(scenario);
    const RunResult run = run_local(plan);
    const RunResult symbolic = SymbolicExecutor().run(plan, {});
    CHECK_FALSE(symbolic.has_numbers());
    for (std::int64_t r = 0; r < plan->mesh().num_ranks(); ++r) {
      const Rank rank{r};
      const PlannedMemory planned = planned_memory(*plan, plan->mesh().coordinate_of(rank));
      const RankRecord& measured = run.rank_record(rank);
      CHECK(measured.ledger.peak() == planned.ledger.peak());
      CHECK(measured.ledger.peak_total() == planned.ledger.peak_total());
      CHECK(measured.ledger.live() == planned.ledger.live());
      CHECK(measured.init.peak() == planned.init.peak());
      CHECK(measured.init.peak_total() == planned.init.peak_total());
      const auto events = run.memory_events(rank);
      CHECK(std::vector<MemoryEvent>(events.begin(), events.end()) == planned.events);
      CHECK(measured.pad_allocations == planned.pad_allocations);
      CHECK(measured.pad_copies == planned.pad_copies);
      for (std::size_t step = 0; step < planned.live_after.size(); ++step) {
        CHECK(run.step_record(rank, static_cast<std::int64_t>(step)).live_after ==
              planned.live_after[step]);
      }
      const auto& recording = symbolic.layout().recording();
      if (std::find(recording.begin(), recording.end(), rank) == recording.end()) continue;
      CHECK(symbolic.rank_record(rank).ledger.peak() == measured.ledger.peak());
      for (int p = 0; p < static_cast<int>(plan->parameters.size()); ++p)
        CHECK(symbolic.held_boxes(rank, p) == run.held_boxes(rank, p));
    }
  }
}

TEST_CASE("memory of the smallest uneven parameter, by hand") {
  // (7, 8) float32 over 4 ranks: rows 2 2 2 1, slots of 2·8 elements, batch 2 per rank.
  const VerifiedPlan plan = verified(fsdp_scenario(elementwise_model({{"w", {7, 8}}}), 4));
  const PlannedMemory last = planned_memory(*plan, {3});
  const BytesByKind& peak = last.ledger.peak();
  CHECK(peak[static_cast<std::size_t>(MemoryKind::ShardedParameters)] == 1 * 8 * 4);
  CHECK(peak[static_cast<std::size_t>(MemoryKind::Padding)] == 1 * 8 * 4);
  CHECK(peak[static_cast<std::size_t>(MemoryKind::UnshardedParameters)] == 4 * 16 * 4);
  CHECK(peak[static_cast<std::size_t>(MemoryKind::UnshardedGradients)] == 4 * 16 * 4);
  CHECK(peak[static_cast<std::size_t>(MemoryKind::ReduceBuffers)] == 16 * 4);
  CHECK(peak[static_cast<std::size_t>(MemoryKind::Gradients)] == 8 * 4);
  CHECK(peak[static_cast<std::size_t>(MemoryKind::Activations)] == 2 * 2 * 56 * 4);
  // Backward holds everything but reduce buffers and gradients at once.
  CHECK(last.ledger.peak_total() == (8 + 8 + 64 + 64 + 224) * 4);
  CHECK(last.pad_allocations == 2);
  CHECK(planned_memory(*plan, {0}).pad_allocations == 1);
}

TEST_CASE("even parameters: no padding allocated, none written, none sent") {
  const VerifiedPlan plan =
      verified(fsdp_scenario(elementwise_model({{"a", {8, 4}}, {"b", {4}}}), 4));
  const RunResult run = run_local(plan);
  for (std::int64_t r = 0; r < 4; ++r) {
    CHECK(run.rank_record(Rank{r}).pad_allocations == 0);
    CHECK(run.rank_record(Rank{r}).pad_copies == 0);
    CHECK(run.rank_record(Rank{r}).padding_checked == 0);
  }
}

TEST_CASE("uneven parameters: padding is looked at whenever it is sent, and is zero") {
  Scenario scenario = hsdp_scenario(elementwise_model({{"w", {7, 8}}}), 2, 4);
  scenario.training.steps = 2;
  const VerifiedPlan plan = verified(scenario);
  const RunResult run = run_local(plan);
  for (std::int64_t r = 0; r < 8; ++r) {
    const RankRecord& record = run.rank_record(Rank{r});
    // Per step: reduce-scatter input 8 elements on every rank; the own row of the last shard in two
    // gathers and the replicas' sum.
    const std::int64_t own = r % 4 == 3 ? 3 * 8 : 0;
    CHECK(record.padding_checked == 2 * (8 + own));
    CHECK(record.padding_nonzero == 0);
  }
}

TEST_CASE("executed collectives are recorded in plan order, with equal tags inside a group") {
  const VerifiedPlan plan = verified(hsdp_scenario(elementwise_model({{"w", {7, 8}}}), 2, 4));
  const RunResult run = run_local(plan);
  const RankRecord& record = run.rank_record(Rank{5});
  REQUIRE(record.num_collectives == 4);
  CHECK(run.executed(Rank{5})[0].tag == run.executed(Rank{6})[0].tag);
  CHECK(run.executed(Rank{5})[0].tag != run.executed(Rank{1})[0].tag);
  CHECK(run.executed(Rank{5})[3].tag == run.executed(Rank{1})[3].tag);
  CHECK(run.executed(Rank{5})[2].elems_in == 64);
  CHECK(run.executed(Rank{5})[2].elems_out == 16);
}

TEST_CASE("states put together from shards are the full tensors") {
  Scenario scenario = hsdp_scenario(elementwise_model({{"w", {5, 3}}}), 2, 2);
  scenario.training.optimizer.momentum = 0.5;
  const VerifiedPlan plan = verified(scenario);
  const RunResult run = run_local(plan);
  const TrainingState initial = assemble_state(*plan, run, 0);
  const FillSpec init = parameter_fill(scenario.data, scenario.parameters[0]);
  for (std::int64_t i = 0; i < 15; ++i) {
    CHECK(initial.parameters[0][static_cast<std::size_t>(i)] ==
          static_cast<double>(static_cast<float>(value_at(fill_key("w", 0), i, init))));
    CHECK(initial.state[0][0][static_cast<std::size_t>(i)] == 0);
  }
  const TrainingState after = assemble_state(*plan, run, 1);
  CHECK(after.parameters[0][9] == run.parameter(Rank{1}, 1, 0).at(0));
  CHECK(after.state[0][0][9] == run.state(Rank{1}, 0, 0, 0).at(0));
}

TEST_CASE("local refuses more ranks than it can hold, naming the way out") {
  const VerifiedPlan plan = verified(fsdp_scenario(elementwise_model({{"w", {7}}}), 1025));
  try {
    (void)LocalExecutor().run(plan, {});
    FAIL("no error");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::Usage);
    CHECK(std::string(error.what()).find("1,025") != std::string::npos);
    CHECK(std::string(error.what()).find("symbolic") != std::string::npos);
  }
}

TEST_CASE("every backend says how many ranks it takes, and who takes more") {
  const auto message = [](Backend backend, std::int64_t num_ranks) {
    try {
      require_ranks(backend, num_ranks);
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::Usage);
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK(message(Backend::Gloo, 64).empty());
  CHECK(message(Backend::Gloo, 65) ==
        "error: the mesh has 65 ranks, backend gloo takes up to 64\n"
        "  help: --backend local takes up to 1,024 ranks, --backend symbolic takes any number");
  CHECK(message(Backend::Local, 1024).empty());
  CHECK(message(Backend::Local, 1025) ==
        "error: the mesh has 1,025 ranks, backend local takes up to 1,024\n"
        "  help: --backend symbolic takes any number");
  CHECK(message(Backend::Symbolic, 131072).empty());
  CHECK(message(Backend::Symbolic, 1000000000).empty());
}

TEST_CASE("symbolic takes a billion ranks, but not hundreds of thousands of kinds") {
  Scenario scenario = fsdp_scenario(elementwise_model({{"w", {1000003, 3}}}), 1);
  scenario.mesh = Mesh({1000, 1000000}, {"rep", "fsdp"});
  scenario.roles = {.fsdp_shard_dim = 1, .dp_replicate_dim = 0};
  scenario.data.data_dims = {0, 1};
  scenario.training.global_batch = scenario.num_data_ranks();
  const RunResult run = SymbolicExecutor().run(verified(scenario), {});
  // 2 rows on the first 500,001 ranks, 1 on the next, then none: three kinds.
  CHECK(run.layout().recording().size() == 3);
  CHECK(run.held_boxes(Rank{500001}, 0) == std::vector<Box>{{{1000002, 0}, {1, 3}}});

  std::vector<ElementwiseSpec> specs;
  for (std::int64_t i = 0; i < 300; ++i)
    specs.push_back({"p" + std::to_string(i), {1009 + 160 * i, 997 + 16 * i}});
  Scenario many = fsdp_scenario(elementwise_model(specs), 1);
  many.mesh = Mesh({100000, 5000}, {"fsdp", "tp"});
  many.roles = {.fsdp_shard_dim = 0, .tp_dim = 1};
  many.placements.assign(300, {Replicate{}, Shard{1}});
  try {
    (void)SymbolicExecutor().run(verified(many), {});
    FAIL("no error");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::Usage);
    CHECK(std::string(error.what()).find("different sets of sizes") != std::string::npos);
  }
}

TEST_CASE("results larger than the machine's memory are refused before anything runs") {
  CHECK_NOTHROW(require_memory_for_results(1 << 20));
  try {
    require_memory_for_results(std::int64_t{1} << 60);
    FAIL("no error");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::Environment);
    CHECK(std::string(error.what()).find("1 EiB") != std::string::npos);
  }
}

TEST_CASE("add_to says whether it rounded") {
  std::vector<float> sum = {1, 2}, exact = {3, 4}, rounding = {0x1p-30F, 0};
  CHECK_FALSE(add_to(sum.data(), exact.data(), 2, DType::Float32));
  CHECK(sum == std::vector<float>{4, 6});
  CHECK(add_to(sum.data(), rounding.data(), 2, DType::Float32));
}

}  // namespace
}  // namespace hpsim
