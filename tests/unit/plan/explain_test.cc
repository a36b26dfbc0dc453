#include "plan/explain.h"

#include <map>
#include <string>
#include <vector>

#include "plan/build_plan.h"
#include "plan/verify_plan.h"
#include "support/catch.h"
#include "support/scenarios.h"
#include "unit/plan/activation_scenarios.h"

namespace hpsim {
namespace {

using test::elementwise_model;
using test::finish_scenario;
using test::fsdp_scenario;
using test::hsdp_scenario;
using test::linear;
using test::modules_model;

/// Mesh (fsdp, tp) and a parameter "w" that tensor parallelism cuts on `tensor_dim`; -1: not at
/// all.
Scenario tp_scenario(const Shape& shape, std::int64_t fsdp, std::int64_t tp, int tensor_dim) {
  Scenario scenario = fsdp_scenario(elementwise_model({{"w", shape}}), fsdp);
  scenario.mesh = Mesh({fsdp, tp}, {"fsdp", "tp"});
  scenario.roles.tp_dim = 1;
  if (tensor_dim >= 0) scenario.placements = {{Replicate{}, Shard{tensor_dim}}};
  return scenario;
}

/// The parts of one run: "0..2 of 2 from 0 by 2, slot 2".
std::string told(const PartRun& run) {
  std::string text;
  for (std::size_t i = 0; i < run.coordinates.size(); ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(run.coordinates[i].begin) + ".." +
            std::to_string(run.coordinates[i].end - 1);
  }
  text +=
      " of " + std::to_string(run.length()) + " from " + std::to_string(run.first.begin) + " by";
  for (const std::int64_t stride : run.strides)
    text += " " + std::to_string(stride);
  return text + ", slot " + std::to_string(run.slot);
}

std::vector<std::string> told(const AxisCut& cut) {
  std::vector<std::string> texts;
  for (const PartRun& run : cut.runs)
    texts.push_back(told(run));
  return texts;
}

using Texts = std::vector<std::string>;

std::vector<AxisCut> cuts_of(const Scenario& scenario) {
  const Plan plan = build_plan(scenario);
  return axis_cuts(plan.mesh(), plan.parameters.at(0));
}

TEST_CASE("cuts of tensor dims, in runs") {
  const auto rows = cuts_of(fsdp_scenario(elementwise_model({{"w", {7, 8}}}), 4));
  REQUIRE(rows.size() == 1);
  CHECK(rows[0].tensor_dim == 0);
  CHECK(rows[0].mesh_dims == MeshDims{0});
  CHECK(told(rows[0]) == Texts{"0..2 of 2 from 0 by 2, slot 2", "3..3 of 1 from 6 by 1, slot 2"});

  const auto grid = cuts_of(tp_scenario({8, 8}, 4, 2, 1));
  REQUIRE(grid.size() == 2);
  CHECK(told(grid[0]) == Texts{"0..3 of 2 from 0 by 2, slot 2"});
  CHECK(grid[1].tensor_dim == 1);
  CHECK(grid[1].mesh_dims == MeshDims{1});
  CHECK(told(grid[1]) == Texts{"0..1 of 4 from 0 by 4, slot 4"});

  const auto nested = cuts_of(tp_scenario({7, 2}, 4, 2, 0));
  REQUIRE(nested.size() == 1);
  CHECK(nested[0].mesh_dims == MeshDims{1, 0});
  CHECK(told(nested[0]) == Texts{"0..0, 0..3 of 1 from 0 by 4 1, slot 1",
                                 "1..1, 0..2 of 1 from 4 by 3 1, slot 1",
                                 "1..1, 3..3 of 0 from 7 by 3 0, slot 1"});

  const auto many = cuts_of(tp_scenario({70, 2}, 4, 7, 0));
  REQUIRE(many.size() == 1);
  CHECK(told(many[0]) ==
        Texts{"0..6, 0..2 of 3 from 0 by 10 3, slot 3", "0..6, 3..3 of 1 from 9 by 10 1, slot 3"});
  CHECK_FALSE(many[0].runs[0].is_contiguous());
  CHECK(many[0].runs[0].part(4) == Interval{13, 16});  // (1, 1): 10 + 3
  CHECK(many[0].runs[0].last() == Interval{66, 69});   // (6, 2): 60 + 6
  CHECK(rows[0].runs[0].is_contiguous());

  CHECK(cuts_of(fsdp_scenario(elementwise_model({{"w", {32, 64}}}), 1)).empty());
}

TEST_CASE("parts in order are what each rank holds") {
  for (const std::int64_t extent : {1, 2, 5, 7, 9, 16, 23}) {
    for (const int tensor_dim : {-1, 0, 1}) {
      Scenario scenario = tp_scenario({extent, 5}, 4, 3, tensor_dim);
      const bool balances = extent % 2 == 1 && tensor_dim != 0;
      if (balances) scenario.fully_shard.chunking = Chunking::Balanced;
      const Plan plan = build_plan(scenario);
      const PlannedParameter& parameter = plan.parameters[0];
      CAPTURE(extent, tensor_dim);
      for (const AxisCut& cut : axis_cuts(plan.mesh(), parameter)) {
        const std::vector<Band> bands = bands_of(cut);
        CHECK(static_cast<std::int64_t>(bands.size()) ==
              plan.mesh().size(union_of(cut.mesh_dims, {})));
        std::int64_t end = 0;
        for (const Band& band : bands) {
          CHECK(band.indices.begin == end);
          end = band.indices.end;
          Coordinate coordinate(2, 0);
          for (std::size_t i = 0; i < cut.mesh_dims.size(); ++i)
            coordinate[static_cast<std::size_t>(cut.mesh_dims[i])] = band.coordinates[i];
          const Box box = held_shard(plan.mesh(), parameter, coordinate).boxes.at(0);
          const auto dim = static_cast<std::size_t>(cut.tensor_dim);
          CHECK(band.indices == Interval{box.offset[dim], box.offset[dim] + box.shape[dim]});
          CHECK(band.slot == padded_shape_at(plan.mesh(), parameter, coordinate)[dim]);
        }
        CHECK(end == parameter.shape[static_cast<std::size_t>(cut.tensor_dim)]);
      }
    }
  }
}

TEST_CASE("numbers of indices in words") {
  CHECK(counted_indices({7, 8}, 0, 2) == "2 rows");
  CHECK(counted_indices({7, 8}, 0, 1) == "1 row");
  CHECK(counted_indices({7, 8}, 1, 4) == "4 columns");
  CHECK(counted_indices({7}, 0, 2) == "2 elements");
  CHECK(counted_indices({5, 3, 6}, 0, 2) == "2 rows");
  CHECK(counted_indices({5, 3, 6}, 2, 3) == "3 indices of dim 2");
  CHECK(noun_of_indices({7, 8}, 1, true) == "column");
}

std::string rule(const Scenario& scenario, int mesh_dim, int parameter = 0) {
  return dim_facts(build_plan(scenario), parameter).at(static_cast<std::size_t>(mesh_dim)).rule;
}

TEST_CASE("rules of placements") {
  const auto fsdp = [](const Shape& shape, std::int64_t ranks) {
    return fsdp_scenario(elementwise_model({{"w", shape}}), ranks);
  };
  CHECK(rule(fsdp({7, 8}, 4), 0) == "7 % 4 != 0: ceil rule, chunks of 2 rows (ragged RFC 6.4)");
  CHECK(rule(fsdp({32, 64}, 8), 0) == "32 % 8 == 0: 4 rows each (multi-dim RFC 2.1.1)");
  CHECK(rule(fsdp({7, 8}, 1), 0) ==
        "role fsdp_shard_dim (multi-dim RFC 2.1.1): one rank, nothing is cut");
  CHECK(rule(tp_scenario({10, 3}, 2, 2, 0), 0) ==
        "tp leaves 5 rows, 5 % 2 != 0: ceil rule, chunks of 3 rows (ragged RFC 6.4); "
        "split_factor 2 = tp 2, which cuts the same tensor dim first (ragged RFC 6.4)");
  CHECK(rule(tp_scenario({7, 2}, 4, 2, 0), 0) ==
        "tp leaves 4 or 3 rows, 3 % 4 != 0: uneven on every rank, as their placements must agree; "
        "ceil rule (ragged RFC 6.4); split_factor 2 = tp 2, which cuts the same tensor dim first "
        "(ragged RFC 6.4)");
  CHECK(rule(tp_scenario({7, 2}, 4, 2, 0), 1) ==
        "as the scenario's placements say, role tp_dim (multi-dim RFC 2.1.1): 7 % 2 != 0, ceil "
        "rule, chunks of 4 rows (torch.chunk)");
  CHECK(rule(tp_scenario({8, 8}, 4, 2, 1), 1) ==
        "as the scenario's placements say, role tp_dim (multi-dim RFC 2.1.1): 8 % 2 == 0, 4 "
        "columns each");
  CHECK(rule(tp_scenario({8, 8}, 4, 2, -1), 1) ==
        "holds copies: role tp_dim, and no placement cuts it (multi-dim RFC 2.1.1)");

  Scenario scenario = fsdp({6, 4}, 4);
  scenario.fully_shard.chunking = Chunking::Balanced;
  CHECK(rule(scenario, 0) ==
        "6 % 4 != 0: balanced by chunking, lengths differ by at most 1 (HyperParallel on "
        "MindSpore)");
  scenario = fsdp({32, 64}, 8);
  scenario.fully_shard.shard_placements = {{{1}, {}}};
  CHECK(rule(scenario, 0) ==
        "64 % 8 == 0: 8 columns each (multi-dim RFC 2.1.1); no rows of dim 0: chunked and "
        "concatenated around collectives (ragged RFC 6.4)");
  scenario = fsdp({2, 64}, 4);
  scenario.fully_shard.shard_placements = {{{0, 1}, {21, 21, 22, 0}}};
  CHECK(rule(scenario, 0) ==
        "shard_placement cuts the cells of dims 0, 1 into 64 units and gives each rank those "
        "listed; no rows of dim 0: chunked and concatenated around collectives (ragged RFC 6.4)");
  scenario.fully_shard.shard_placements = {};
  scenario.fully_shard.shards_parameters = false;
  CHECK(rule(scenario, 0) == "not cut: enable_param_shard is false (multi-dim RFC 4.1)");
}

TEST_CASE("rules of what is not cut, and of copies") {
  Scenario scenario = hsdp_scenario(elementwise_model({{"w", {6}}, {"v", {40}}}), 2, 4);
  CHECK(rule(scenario, 0) == "holds copies: role dp_replicate_dim (multi-dim RFC 2.1.1)");
  scenario.fully_shard.min_shard_bytes = 64;
  CHECK(rule(scenario, 1) == "not cut: 24 bytes < min_shard_bytes 64 (multi-dim RFC 2.2.5)");
  CHECK(rule(scenario, 1, 1) == "40 % 4 == 0: 10 elements each (multi-dim RFC 2.1.1)");
  scenario.fully_shard.replicate_params = {1};
  CHECK(rule(scenario, 1, 1) == "not cut: in replicate_params");
  scenario.fully_shard.replicate_params = {};
  scenario.fully_shard.ignored_params = {1};
  scenario.units = assign_units(scenario.model, scenario.parameters, {}, false,
                                scenario.fully_shard.ignored_params);
  CHECK(rule(scenario, 1, 1) == "not cut: in ignored_params, fully_shard leaves it alone");
  scenario.roles.shard_replicate_dim = 0;
  scenario.roles.dp_replicate_dim.reset();
  CHECK(rule(scenario, 0) == "holds copies: shard_size leaves 2 replicas (multi-dim RFC 2.2.5)");
  scenario.roles.shard_replicate_dim.reset();
  CHECK(rule(scenario, 0) == "holds copies: the dim has no role");
}

/// "all_gather forward" of each.
Texts sent(const Plan& plan, const std::vector<int>& steps) {
  Texts texts;
  for (const int index : steps) {
    const Step& step = plan.steps.at(static_cast<std::size_t>(index));
    texts.push_back(std::string(name_of(step.collective->op)) + " " +
                    std::string(name_of(step.phase)));
  }
  return texts;
}

TEST_CASE("FSDP of seven rows: groups, gradient, scale, the last rank") {
  const Plan plan = build_plan(fsdp_scenario(elementwise_model({{"w", {7, 8}}}), 4));
  const ParameterFacts facts = Explainer(plan).explain(0, {3});
  REQUIRE(facts.groups.size() == 3);
  CHECK(facts.groups[0].kind == GroupKind::Sharded);
  CHECK(facts.groups[0].group == GroupInfo{{0}, 4});
  CHECK(sent(plan, facts.groups[0].steps) ==
        Texts{"all_gather forward", "all_gather backward", "reduce_scatter backward"});
  CHECK(facts.groups[1].steps.empty());
  CHECK(facts.groups[2].steps.empty());

  REQUIRE(facts.gradient.size() == 1);
  CHECK(facts.gradient[0].state == GradientState::Partial);
  CHECK(sent(plan, facts.gradient[0].steps) == Texts{"reduce_scatter backward"});
  CHECK(facts.scale.factor == 1);
  CHECK(facts.scale.divisor == 4);
  CHECK(facts.scale.factor_step == -1);
  CHECK(plan.steps.at(static_cast<std::size_t>(facts.scale.divisor_step)).kind ==
        StepKind::ReduceScatter);

  std::vector<std::pair<std::int64_t, std::int64_t>> bytes;
  for (const LifeStep& step : facts.life)
    bytes.emplace_back(step.bytes_before, step.bytes_after);
  CHECK(bytes == std::vector<std::pair<std::int64_t, std::int64_t>>{{64, 256},
                                                                    {224, 224},
                                                                    {256, 64},
                                                                    {64, 256},
                                                                    {0, 256},
                                                                    {256, 64},
                                                                    {256, 64},
                                                                    {64, 32},
                                                                    {32, 32}});

  CHECK(facts.rank.held.boxes == std::vector<Box>{{{6, 0}, {1, 8}}});
  CHECK(facts.rank.padding_elems == 8);
  CHECK(facts.rank.offset_elems == 0);
  CHECK(facts.rank.row_elems == 16);
  CHECK(facts.rank.same_dims.empty());
}

TEST_CASE("layouts of a parameter's life are those that the plan gives as reasons") {
  std::vector<Scenario> scenarios = {
      fsdp_scenario(elementwise_model({{"w", {7, 8}}}), 4),
      hsdp_scenario(elementwise_model({{"w", {7, 8}}}), 2, 4),
      tp_scenario({7, 2}, 4, 2, 0),
      tp_scenario({5, 8}, 2, 2, 1),
  };
  scenarios.push_back(tp_scenario({8, 8}, 4, 2, -1));  // copies over tp, which splits the batch
  scenarios.back().data.data_dims = {0, 1};
  scenarios.push_back(hsdp_scenario(elementwise_model({{"w", {7, 8}}}), 2, 4));
  scenarios.back().fully_shard.shards_parameters = false;
  for (Scenario& scenario : scenarios) {
    const Plan plan = *verify_plan(build_plan(scenario));
    std::size_t compared = 0;
    for (const LifeStep& life :
         Explainer(plan).explain(0, Coordinate(plan.mesh().shape().size(), 0)).life) {
      const Step& step = plan.steps.at(static_cast<std::size_t>(life.step));
      if (step.why.before.empty()) continue;
      CHECK(to_string(life.before) == step.why.before);
      CHECK(to_string(life.after) == step.why.after);
      ++compared;
    }
    CHECK(compared >= 1);
  }
}

TEST_CASE("gradients are complete where ranks see the same samples, cut where the tensor is") {
  Scenario scenario = hsdp_scenario(elementwise_model({{"w", {8, 4}}}), 2, 2);
  scenario.data.data_dims = {0};
  Plan plan = build_plan(scenario);
  ParameterFacts facts = Explainer(plan).explain(0, {0, 0});
  CHECK(facts.gradient.at(0).state == GradientState::Partial);
  CHECK(facts.gradient.at(1).state == GradientState::Complete);
  CHECK(facts.gradient.at(1).steps.empty());
  CHECK(sent(plan, facts.groups.at(0).steps) == Texts{"all_gather forward", "all_gather backward"});

  scenario = tp_scenario({8, 4}, 2, 2, 1);
  scenario.data.data_dims = {0, 1};
  plan = build_plan(scenario);
  facts = Explainer(plan).explain(0, {0, 0});
  CHECK(facts.gradient.at(1).state == GradientState::Cut);
  CHECK(facts.gradient.at(1).steps.empty());
  CHECK(facts.groups.at(2).steps.empty());

  scenario = tp_scenario({8, 4}, 2, 2, -1);
  scenario.data.data_dims = {0, 1};
  plan = build_plan(scenario);
  facts = Explainer(plan).explain(0, {0, 0});
  CHECK(facts.gradient.at(1).state == GradientState::Partial);
  CHECK(sent(plan, facts.groups.at(2).steps) == Texts{"all_reduce backward"});
  CHECK(sent(plan, facts.gradient.at(1).steps) == Texts{"all_reduce backward"});
}

TEST_CASE("members of one bucket: each has its own slot, and only its own partial range") {
  Scenario scenario = tp_scenario({6, 4}, 2, 2, 1);
  scenario.model = elementwise_model({{"cut", {6, 4}}, {"copied", {5}}});
  scenario.placements = {{Replicate{}, Shard{1}}, {Replicate{}, Replicate{}}};
  scenario.data.data_dims = {0, 1};
  finish_scenario(scenario);
  const Plan plan = build_plan(scenario);
  REQUIRE(plan.buckets.size() == 1);
  const Explainer explainer(plan);
  const ParameterFacts cut = explainer.explain(0, {0, 0});
  const ParameterFacts copied = explainer.explain(1, {0, 0});
  CHECK(cut.rank.offset_elems == 0);
  CHECK(copied.rank.offset_elems == 6);  // 3 rows of 2 columns
  CHECK(copied.rank.row_elems == 9);
  CHECK(cut.groups.at(2).steps.empty());
  CHECK(copied.groups.at(2).steps.size() == 1);
  CHECK(copied.rank.same_dims == MeshDims{1});
}

TEST_CASE("where no collective carries k/F, a local step does") {
  Scenario scenario = fsdp_scenario(elementwise_model({{"w", {5, 3}}}), 1);
  scenario.fully_shard.gradient_divide_factor = 4;
  scenario.fully_shard.gradient_scaling_factor = 2;
  const Plan plan = build_plan(scenario);
  const ScaleFact scale = Explainer(plan).explain(0, {0}).scale;
  CHECK(scale.factor == 2);
  CHECK(scale.divisor == 4);
  CHECK(scale.why == "gradient_divide_factor");
  CHECK(scale.factor_step == scale.divisor_step);
  CHECK(plan.steps.at(static_cast<std::size_t>(scale.factor_step)).kind == StepKind::ScaleGradient);
}

/// Mesh (fsdp 2, tp 2): a norm and an mlp of two linears, sequences of 4 split over tp before the
/// norm and after the mlp; one unit.
Plan sequence_parallel_plan() {
  return build_plan(test::scenario_of(
      {"2, 2",
       R"("fsdp", "tp")",
       {R"({"name": "norm", "type": "layer_norm", "dim": 4})", test::linear_json("up", 4, 6),
        test::linear_json("down", 6, 4)},
       R"("data": {"sample_shape": [4, 4]}, "fully_shard": {"units": []}, "parallelize":
          {"norm": "sequence_parallel", "up": "colwise", "down": "rowwise_sp"})"}));
}

TEST_CASE("groups of a parameter list what carries it, and no change of activations") {
  const Plan plan = sequence_parallel_plan();
  REQUIRE_FALSE(plan.redistributions.empty());
  const Explainer explainer(plan);
  for (int p = 0; p < static_cast<int>(plan.parameters.size()); ++p) {
    const ParameterFacts facts = explainer.explain(p, {0, 0});
    for (const GroupFact& group : facts.groups) {
      for (const int step : group.steps)
        CHECK(plan.steps.at(static_cast<std::size_t>(step)).redistribution == -1);
    }
    CHECK(sent(plan, facts.groups[0].steps) ==
          Texts{"all_gather forward", "all_gather backward", "reduce_scatter backward"});
    CHECK(facts.groups[1].steps.empty());
    const bool is_norm = facts.groups[2].group.size > 1;
    CHECK(is_norm == (p < 2));
    CHECK(sent(plan, facts.groups[2].steps) == (is_norm ? Texts{"all_reduce backward"} : Texts{}));
  }
}

TEST_CASE("a gradient is Partial for what is split: samples, or sequences") {
  const Plan plan = sequence_parallel_plan();
  const ParameterFacts facts = Explainer(plan).explain(0, {0, 0});
  REQUIRE(facts.gradient.size() == 2);
  CHECK(facts.gradient[0].why == "the batch is split over it");
  CHECK(facts.gradient[1].why == "sequences are split over it");
  CHECK(facts.gradient[1].state == GradientState::Partial);
  CHECK_THAT(facts.groups[2].why, Catch::Matchers::StartsWith("sequences are split over tp, "));

  // No role for ep: the batch is split over it outside the fully_shard domain.
  const Plan both = build_plan(test::scenario_of(
      {"2, 2, 2",
       R"("fsdp", "ep", "tp")",
       {R"({"name": "norm", "type": "layer_norm", "dim": 4})", test::linear_json("up", 4, 6)},
       R"("data": {"sample_shape": [4, 4], "data_dims": ["fsdp", "ep"]},
          "parallelize": {"norm": "sequence_parallel", "up": "colwise"})"}));
  CHECK_THAT(
      Explainer(both).explain(0, {0, 0, 0}).groups[2].why,
      Catch::Matchers::StartsWith("the batch is split over ep, sequences over tp, outside the "));
}

TEST_CASE("a cast alone sends nothing, and changes bytes") {
  // 6 x 4 whole on both replicas, in bfloat16 for compute; gradients in bfloat16 too.
  Scenario scenario = test::hsdp_scenario(test::elementwise_model({{"w", {6, 4}}}), 2, 1);
  scenario.fully_shard.mp_policy.param_dtype = DType::BFloat16;
  const Plan plan = build_plan(scenario);
  const ParameterFacts facts = Explainer(plan).explain(0, {0, 0});
  for (const GroupFact& fact : facts.groups) {
    for (const int step : fact.steps)
      CHECK(plan.steps.at(static_cast<std::size_t>(step)).collective.has_value());
  }
  CHECK(facts.groups.at(0).steps.empty());
  REQUIRE_FALSE(facts.life.empty());
  CHECK(plan.steps.at(static_cast<std::size_t>(facts.life[0].step)).kind == StepKind::Unshard);
  CHECK(facts.life[0].bytes_before == 24 * 4);
  CHECK(facts.life[0].bytes_after == 24 * 2);
}

TEST_CASE("between forward and backward a rank keeps one of k parts, and gathers from it") {
  // 7 rows of 8 floats over 4 ranks: slots of 2 rows, 64 B, 256 B gathered; k = 2 keeps 128 B.
  for (const std::int64_t ahead : {0, 1}) {
    Scenario scenario = test::fsdp_scenario(test::elementwise_model({{"w", {7, 8}}}), 4);
    scenario.fully_shard.post_forward_size = 2;
    scenario.fully_shard.backward_prefetch = ahead;
    const Plan plan = build_plan(scenario);
    std::vector<std::pair<std::int64_t, std::int64_t>> bytes;
    for (const LifeStep& life : Explainer(plan).explain(0, {3}).life) {
      const StepKind kind = plan.steps.at(static_cast<std::size_t>(life.step)).kind;
      if (kind != StepKind::Unshard && kind != StepKind::Reshard) continue;
      bytes.emplace_back(life.bytes_before, life.bytes_after);
    }
    CHECK(bytes == std::vector<std::pair<std::int64_t, std::int64_t>>{
                       {64, 256}, {256, 128}, {128, 256}, {256, 64}});
  }
}

}  // namespace
}  // namespace hpsim
