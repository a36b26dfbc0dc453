// What PyTorch 2.14 FSDP2 really held on every rank, and how many collectives it sent.

#include <fmt/format.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "baseline/eigen_baseline.h"
#include "exec/local.h"
#include "exec/symbolic.h"
#include "plan/build_plan.h"
#include "plan/rank_layout.h"
#include "plan/verify_plan.h"
#include "scenario/parse.h"
#include "support/catch.h"
#include "verify/compare_runs.h"

namespace hpsim {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kWorldSizes[] = {4, 6, 8};

Json fixture(int world_size) {
  std::ifstream file(
      fmt::format("{}/tests/data/torch_fsdp2/fsdp2_w{}.json", HPSIM_SOURCE_DIR, world_size));
  REQUIRE(file);
  return Json::parse(file);
}

/// The scenario of a layout: one elementwise parameter.
std::string scenario_of(const Json& layout, const std::string& vocabulary) {
  Json json = {{"hpsim", 1},
               {"mesh", {{"shape", layout["mesh"]}, {"mesh_dim_names", layout["mesh_dim_names"]}}},
               {"parameters", {{"w", layout["shape"]}}},
               {"fully_shard", {{"vocabulary", vocabulary}}}};
  if (layout["tp"].is_number()) {
    json["placements"]["w"]["tp"] = fmt::format("Shard({})", layout["tp"].get<int>());
  } else if (layout["tp"] == "R") {
    json["placements"]["w"]["tp"] = "Replicate";
  }
  if (layout["fsdp_dim"] != 0) json["fully_shard"]["shard_placement"]["w"] = layout["fsdp_dim"];
  return json.dump();
}

/// As torch prints placements in short: "S(0)", "_S(0, 2)", "R".
std::string short_form(std::string text) {
  const auto replace = [&text](const std::string& from, const std::string& to) {
    const std::size_t at = text.find(from);
    if (at != std::string::npos) text.replace(at, from.size(), to);
  };
  replace("_StridedShard", "_S");
  replace("Shard", "S");
  replace("Replicate", "R");
  return text;
}

/// Row-major global indices of the elements that the boxes hold, in storage order.
std::vector<std::int64_t> elements_of(const Shape& shape, const std::vector<Box>& boxes) {
  std::vector<std::int64_t> elements;
  for (const Box& box : boxes) {
    each_run(shape, box, [&](std::int64_t first, std::int64_t count) {
      for (std::int64_t i = first; i < first + count; ++i)
        elements.push_back(i);
    });
  }
  return elements;
}

TEST_CASE("every layout that PyTorch held comes out exactly, and what it refused is refused") {
  int num_layouts = 0;
  int num_refused = 0;
  for (const int world_size : kWorldSizes) {
    const Json data = fixture(world_size);
    for (const Json& layout : data["layouts"]) {
      CAPTURE(world_size, layout["shape"].dump(), layout["mesh"].dump(), layout["tp"].dump());
      if (layout.contains("error")) {
        ++num_refused;
        CHECK_THROWS_AS(parse_scenario(scenario_of(layout, "torch"), "layout.json"), Error);
        continue;
      }
      ++num_layouts;
      for (const char* vocabulary : {"ragged", "uneven_flag", "torch"}) {
        const VerifiedPlan plan =
            verify_plan(build_plan(parse_scenario(scenario_of(layout, vocabulary), "layout.json")));
        const PlannedParameter& w = plan->parameter(0);
        const auto& ranks = layout["ranks"];
        REQUIRE(static_cast<std::int64_t>(ranks.size()) == plan->mesh().num_ranks());
        for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
          const Coordinate coordinate =
              plan->mesh().coordinate_of(Rank{static_cast<std::int64_t>(rank)});
          const auto held = held_shard(plan->mesh(), w, coordinate).boxes;
          CHECK(held.at(0).shape == ranks[rank]["shape"].get<Shape>());
          const auto elements = ranks[rank]["elements"].get<std::vector<std::int64_t>>();
          CHECK(elements_of(w.shape, held) == elements);
          // The same from the placements alone.
          CHECK(elements_of(w.shape, local_boxes({w.shape, w.sharded}, plan->mesh(), coordinate)) ==
                elements);
        }
        const RunResult run = SymbolicExecutor().run(plan, {});
        CHECK(compare_runs(plan, run, {}).passed());
        if (std::string(vocabulary) != "torch") continue;
        for (std::size_t dim = 0; dim < w.sharded.size(); ++dim) {
          CHECK(short_form(to_string(w.sharded[dim], Vocabulary::Torch)) ==
                layout["placements"][dim].get<std::string>());
        }
      }
    }
  }
  CHECK(num_layouts == 53);
  CHECK(num_refused == 1);
}

/// The model of a run: linears with relu between them, each a unit; with tp colwise and rowwise in
/// turn.
std::string scenario_of_run(const Json& run) {
  const auto dims = run["linear_dims"].get<std::vector<std::int64_t>>();
  Json model = Json::array();
  Json styles = Json::object();
  for (std::size_t i = 0; i + 1 < dims.size(); ++i) {
    if (i > 0) model.push_back({{"name", fmt::format("relu{}", i)}, {"type", "relu"}});
    model.push_back({{"name", fmt::format("l{}", i)},
                     {"type", "linear"},
                     {"in_features", dims[i]},
                     {"out_features", dims[i + 1]}});
    styles[fmt::format("l{}", i)] = i % 2 == 0 ? "colwise" : "rowwise";
  }
  Json training = {{"micro_batches", run["micro_batches"]},
                   {"requires_gradient_sync", run["requires_gradient_sync"]},
                   {"requires_all_reduce", run["requires_all_reduce"]}};
  const std::string layers = "layers.";
  for (const Json& frozen : run["frozen"]) {
    const auto layer = frozen.get<std::string>();
    REQUIRE(layer.rfind(layers, 0) == 0);
    training["frozen"].push_back("l" + layer.substr(layers.size()) + ".*");
  }
  Json scenario = {{"hpsim", 1},
                   {"mesh", {{"shape", run["mesh"]}, {"mesh_dim_names", run["mesh_dim_names"]}}},
                   {"model", model},
                   {"fully_shard", {{"reshard_after_forward", run["reshard_after_forward"]}}},
                   {"training", training}};
  if (run["tp_colwise_rowwise"] == true) scenario["parallelize"] = styles;
  return scenario.dump();
}

/// By "phase op".
std::map<std::string, int> planned_collectives(const Plan& plan) {
  std::map<std::string, int> planned;
  for (const Step& step : plan.steps) {
    if (!step.collective) continue;
    ++planned[fmt::format("{} {}", name_of(step.phase), name_of(step.collective->op))];
  }
  return planned;
}

/// What PyTorch counted, under the same names. One thing differs: it all-reduces over replicas even
/// where there is one, and hpsim sends nothing in a group of one rank. Both send nothing in a shard
/// group of one.
std::map<std::string, int> expected_collectives(const Json& run) {
  static const std::map<std::string, std::string> kNames = {
      {"forward:_allgather_base_", "forward all_gather"},
      {"backward:_allgather_base_", "backward all_gather"},
      {"backward:_reduce_scatter_base_", "backward reduce_scatter"},
      {"backward:allreduce_", "backward all_reduce"},
      // What tensor parallelism sends goes through PyTorch's functional collectives.
      {"forward:all_reduce", "forward all_reduce"}};
  std::map<std::string, int> expected;
  for (const auto& [name, count] : run["collectives_per_step"].items())
    expected[kNames.at(name)] += count.get<int>();
  const auto names = run["mesh_dim_names"].get<std::vector<std::string>>();
  for (std::size_t dim = 0; dim < names.size(); ++dim) {
    if (names[dim] == "rep" && run["mesh"][dim] == 1) expected.erase("backward all_reduce");
  }
  return expected;
}

TEST_CASE("collectives per step are as many as PyTorch sent, and numbers are right") {
  std::map<std::string, int> num_runs;
  for (const int world_size : kWorldSizes) {
    const Json data = fixture(world_size);
    for (const Json& run : data["runs"]) {
      ++num_runs["all"];
      num_runs["tp"] += run["tp_colwise_rowwise"] == true ? 1 : 0;
      num_runs["micro-batches"] += run["micro_batches"] > 1 ? 1 : 0;
      num_runs["sync last"] += run["requires_gradient_sync"] == "last" ? 1 : 0;
      num_runs["all-reduce last"] += run["requires_all_reduce"] == "last" ? 1 : 0;
      num_runs["part kept"] += run["reshard_after_forward"].is_number() ? 1 : 0;
      num_runs["frozen"] += run["frozen"].empty() ? 0 : 1;
      CAPTURE(run.dump());
      const VerifiedPlan plan =
          verify_plan(build_plan(parse_scenario(scenario_of_run(run), "run.json")));
      CHECK(planned_collectives(*plan) == expected_collectives(run));
      const RunResult result = LocalExecutor().run(plan, {});
      const ReferenceRun reference =
          run_baseline(plan->scenario, states_before_steps(*plan, result));
      CHECK(compare_runs(plan, result, reference).passed());
    }
  }
  const std::map<std::string, int> expected = {{"all", 16},
                                               {"tp", 4},
                                               {"micro-batches", 3},
                                               {"sync last", 1},
                                               {"all-reduce last", 1},
                                               {"part kept", 1},
                                               {"frozen", 1}};
  CHECK(num_runs == expected);
}

}  // namespace
}  // namespace hpsim
