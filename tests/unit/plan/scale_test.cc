// Planning and checking a plan takes the same operations for few ranks and for many.

#include <algorithm>
#include <cstdlib>
#include <new>
#include <ostream>
#include <string>
#include <utility>

#include "plan/build_plan.h"
#include "plan/rank_layout.h"
#include "plan/verify_plan.h"
#include "support/catch.h"
#include "support/scenarios.h"

namespace {
std::size_t num_allocations = 0;
}  // namespace

// GCC sees free() of what it takes for another operator new's.
#pragma GCC diagnostic ignored "-Wmismatched-new-delete"

// Counting allocations stands for counting operations: whatever grows with the number of ranks must
// put its results somewhere.
void* operator new(std::size_t bytes) {
  ++num_allocations;
  if (void* memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
  throw std::bad_alloc();
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  ++num_allocations;
  return std::malloc(bytes == 0 ? 1 : bytes);
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}

namespace hpsim {
namespace {

struct Cost {
  std::size_t allocations = 0;
  std::int64_t compared = 0;
  std::size_t steps = 0;
  std::size_t classes = 0;

  /// As much is compared, in as many steps, and nothing more is computed. A list of few units is
  /// written out where that of many is written in runs, so that more ranks may cost a little less.
  [[nodiscard]] bool is_no_more_than(const Cost& other) const {
    return allocations <= other.allocations && compared == other.compared && steps == other.steps &&
           classes == other.classes;
  }
};

std::ostream& operator<<(std::ostream& out, const Cost& cost) {
  return out << cost.allocations << " allocations, " << cost.compared << " compared, " << cost.steps
             << " steps, " << cost.classes << " classes";
}

Cost cost_of(Scenario scenario) {
  const std::size_t allocations = num_allocations;
  const VerifiedPlan plan = verify_plan(build_plan(std::move(scenario)));
  Cost cost{.allocations = num_allocations - allocations};
  for (const CheckResult& check : plan.checks().results)
    cost.compared += check.compared;
  cost.steps = plan->steps.size();
  cost.classes = rank_classes(*plan).size();
  return cost;
}

/// 200 parameters: weights of `rows` rows and their biases, in 100 units.
ModelSpec layers(std::int64_t rows) {
  std::vector<ModuleSpec> modules;
  for (int i = 0; i < 100; ++i)
    modules.push_back(test::linear("layer" + std::to_string(i), rows, rows));
  return test::modules_model(std::move(modules));
}

ModelSpec tensors(std::int64_t rows) {
  std::vector<ElementwiseSpec> specs;
  for (int i = 0; i < 200; ++i)
    specs.push_back({"tensor" + std::to_string(i), {rows, 64}});
  return test::elementwise_model(std::move(specs));
}

/// Every tensor cut by tp too, on the same tensor dim or on the other.
Scenario with_tp(ModelSpec model, std::int64_t replicas, std::int64_t shards, std::int64_t tp) {
  Scenario scenario = test::fsdp_scenario(std::move(model), 1);
  scenario.mesh = Mesh({replicas, shards, tp}, {"rep", "fsdp", "tp"});
  scenario.roles = {.fsdp_shard_dim = 1, .dp_replicate_dim = 0, .tp_dim = 2};
  scenario.data.data_dims = {0, 1};
  scenario.training.global_batch = scenario.num_data_ranks();
  for (std::size_t p = 0; p < scenario.parameters.size(); ++p) {
    scenario.placements.push_back({Replicate{}, Replicate{}, Shard{p % 2 == 0 ? 0 : 1}});
  }
  return scenario;
}

/// Many ranks cost no more than few.
void check_no_more(Scenario many, Scenario few) {
  const Cost of_few = cost_of(std::move(few));
  const Cost of_many = cost_of(std::move(many));
  INFO("few: " << of_few << "; many: " << of_many);
  CHECK(of_many.is_no_more_than(of_few));
}

TEST_CASE("200 parameters cost the same on 8 and on 131,072 ranks") {
  // Rows so many that shards of both meshes are of as many kinds: all alike, or the last one short.
  for (const std::int64_t rows : {std::int64_t{1} << 20, (std::int64_t{1} << 20) - 1}) {
    CAPTURE(rows);
    check_no_more(test::fsdp_scenario(layers(rows), 131072), test::fsdp_scenario(layers(rows), 8));
    check_no_more(test::fsdp_scenario(tensors(rows), 131072),
                  test::fsdp_scenario(tensors(rows), 8));
    check_no_more(test::hsdp_scenario(layers(rows), 1024, 128),
                  test::hsdp_scenario(layers(rows), 2, 4));
  }
  const std::int64_t even = std::int64_t{1} << 20;
  check_no_more(with_tp(tensors(even), 64, 64, 32), with_tp(tensors(even), 2, 2, 2));
}

TEST_CASE("what would cost more with more ranks is seen to") {
  const auto with_units = [](std::int64_t num_ranks) {
    Scenario scenario = test::fsdp_scenario(tensors(num_ranks * num_ranks), num_ranks);
    std::vector<std::int64_t> units;
    for (std::int64_t i = 0; i < num_ranks; ++i)
      units.push_back(i % 2 == 0 ? 1 : 2 * num_ranks / 3);
    scenario.fully_shard.shard_placements.assign(scenario.parameters.size(), ShardPlacement{});
    scenario.fully_shard.shard_placements[0].local_units = LocalUnits(units);
    scenario.parameters[0].shape[0] = scenario.fully_shard.shard_placements[0].local_units.sum();
    return scenario;
  };
  // Units that a file lists one by one are as many runs.
  CHECK(cost_of(with_units(48)).allocations > cost_of(with_units(12)).allocations);
}

TEST_CASE("uneven shards of tensor parallelism are a few classes of ranks") {
  const Cost cost = cost_of(with_tp(tensors(1000003), 64, 64, 32));
  // Along fsdp and tp: full, short, and where tp leaves less, short again.
  CHECK(cost.classes <= 3 * 9);
  CHECK(cost.classes >= 4);
}

}  // namespace
}  // namespace hpsim
