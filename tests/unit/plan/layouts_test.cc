// Plans of parameters that TP and EP cut too, and of all that fully_shard can be told about one.

#include <algorithm>
#include <functional>

#include "plan/build_plan.h"
#include "plan/rank_layout.h"
#include "plan/verify_plan.h"
#include "scenario/parse.h"
#include "support/catch.h"

namespace hpsim {
namespace {

Plan plan_of(const std::string& members) {
  return build_plan(parse_scenario("{\"hpsim\": 1, " + members + "}", "test.json"));
}

const std::string kFsdpTp = R"x("mesh": {"shape": [4, 2], "mesh_dim_names": ["fsdp", "tp"]}, )x";

/// "reduce_scatter fsdp 4x, forward" and so on, of every collective.
std::vector<std::string> collectives(const Plan& plan) {
  std::vector<std::string> texts;
  for (const Step& step : plan.steps) {
    if (!step.collective) continue;
    const CollectiveSpec& spec = *step.collective;
    texts.push_back(std::string(name_of(spec.op)) + " over " + plan.mesh().names(spec.dims) + " " +
                    to_string(plan.mesh(), spec.elems_in) + " -> " +
                    to_string(plan.mesh(), spec.elems_out) + ", " +
                    std::string(name_of(step.phase)));
  }
  return texts;
}

using Texts = std::vector<std::string>;

TEST_CASE("units per coordinate are in the order of the mesh, whichever dim cuts first") {
  // tp cuts 2 rows into 1 and 1, then ep cuts each into 1 and 0; over fsdp 3 the first rank has it.
  const Plan plan = plan_of(
      R"x("mesh": {"shape": [3, 2, 2], "mesh_dim_names": ["fsdp", "ep", "tp"]},
          "parameters": {"w": [2]},
          "placements": {"w": {"ep": "StridedShard(0, 2)", "tp": "Shard(0)"}})x");
  const auto* sharded = std::get_if<RaggedStridedShard>(&plan.parameter(0).sharded.at(0));
  REQUIRE(sharded != nullptr);
  const LocalUnits one = {1, 0, 0};
  const LocalUnits none = {0, 0, 0};
  CHECK(sharded->local_units == std::vector<LocalUnits>{one, one, none, none});
  CHECK_NOTHROW(verify_plan(plan));
}

TEST_CASE("sizes that differ by rank stand per coordinate in the plan") {
  // tp leaves 4 and 3 rows of 2; over fsdp 4 both are padded to 1 row.
  const Plan same = plan_of(kFsdpTp + R"x("parameters": {"w": [7, 2]},)x"
                                      R"x("placements": {"w": {"tp": "Shard(0)"}})x");
  CHECK(same.parameter(0).padded_elems == 2);
  // tp leaves 5 and 4 rows: padded to 2 and 1.
  const Plan plan = plan_of(kFsdpTp + R"x("parameters": {"w": [9, 2], "v": [8, 3]},)x"
                                      R"x("placements": {"w": {"tp": "Shard(0)"}})x");
  CHECK(to_string(plan.mesh(), plan.parameter(0).padded_elems) == "(tp: 4, 2)");
  CHECK(plan.parameter(1).padded_elems == 6);
  CHECK(to_string(plan.mesh(), plan.parameter(1).offset_elems) == "(tp: 4, 2)");
  CHECK(collectives(plan) ==
        Texts{"all_gather over fsdp (tp: 10, 8) -> (tp: 40, 32), forward",
              "all_gather over fsdp (tp: 10, 8) -> (tp: 40, 32), backward",
              "reduce_scatter over fsdp (tp: 40, 32) -> (tp: 10, 8), backward"});
  CHECK_NOTHROW(verify_plan(plan));
  CHECK(padded_shape_at(plan.mesh(), plan.parameter(0), {3, 0}) == Shape{2, 2});
  CHECK(padded_shape_at(plan.mesh(), plan.parameter(0), {3, 1}) == Shape{1, 2});
  const HeldShard empty = held_shard(plan.mesh(), plan.parameter(0), {3, 0});
  CHECK(empty.elems == 0);
  CHECK(empty.boxes == std::vector<Box>{{{5, 0}, {0, 2}}});
  CHECK(empty.whole == Box{{0, 0}, {5, 2}});
}

TEST_CASE(
    "what is Partial along further dims is reduced in one range of its bucket, after the rest") {
  // Batch split over tp: the copied parameters are Partial along it, the cut one is not.
  const Plan plan = plan_of(
      kFsdpTp +
      R"x("parameters": {"a": [8, 2], "cut": [8, 2], "b": [4, 2]},)x"
      R"x("placements": {"cut": {"tp": "Shard(0)"}}, "data": {"data_dims": ["fsdp", "tp"]})x");
  REQUIRE(plan.buckets.size() == 1);
  const Bucket& bucket = plan.bucket(0);
  CHECK(bucket.parameters == std::vector<int>{1, 0, 2});
  REQUIRE(plan.gradient_rows.size() == 1);
  CHECK(plan.gradient_rows[0].parameters == bucket.parameters);
  CHECK(plan.gradient_rows[0].partials == std::vector<PartialRange>{{{1}, {1, 3}}});
  CHECK(collectives(plan) ==
        Texts{"all_gather over fsdp 8 -> 32, forward", "all_gather over fsdp 8 -> 32, backward",
              "reduce_scatter over fsdp 32 -> 8, backward", "all_reduce over tp 6 -> 6, backward"});
  CHECK_NOTHROW(verify_plan(plan));
}

TEST_CASE("ignored parameters are reduced one by one in the optimizer phase, without k") {
  const Plan plan = plan_of(
      kFsdpTp + R"x("parameters": {"w": [8, 2], "i": [5], "j": [3]},)x"
                R"x("fully_shard": {"ignored_params": ["i", "j"], "gradient_scaling_factor": 2})x");
  CHECK(collectives(plan) ==
        Texts{"all_gather over fsdp 4 -> 16, forward", "all_gather over fsdp 4 -> 16, backward",
              "reduce_scatter over fsdp 16 -> 4, backward",
              "all_reduce over fsdp 5 -> 5, optimizer", "all_reduce over fsdp 3 -> 3, optimizer"});
  for (const Step& step : plan.steps) {
    if (!step.collective) continue;
    const bool is_first_reduction = step.kind == StepKind::ReduceScatter;
    CHECK(step.collective->prescale == (is_first_reduction ? 2 : 1));
    CHECK(step.collective->scale == (step.kind == StepKind::Unshard ? 1 : 0.25));
  }
  CHECK(plan.unit_name(plan.bucket(1)) == "(ignored)");
  CHECK(plan.parameter(1).partial_group == GroupInfo{{0}, 4});
  CHECK(plan.parameter(1).rank_size() == 1);
  CHECK_NOTHROW(verify_plan(plan));
}

TEST_CASE("parameters smaller than min_shard_bytes stay whole; one of exactly that size is cut") {
  const Plan plan = plan_of(kFsdpTp + R"x("parameters": {"at": [4, 8], "below": [31]},)x"
                                      R"x("fully_shard": {"min_shard_bytes": 128})x");
  CHECK(plan.parameter(0).shard_size() == 4);
  CHECK(plan.parameter(1).shard_size() == 1);
  CHECK(plan.parameter(1).dp_size() == 4);
  CHECK(to_string(plan.parameter(1).sharded) == "[Replicate, Replicate]");
}

TEST_CASE("groups of a parameter: the domain of fully_shard, or all dims that do not cut it") {
  const auto groups = [](const std::string& mesh, const std::string& rest) {
    const Plan plan = plan_of(mesh + R"x("parameters": {"w": [8, 8]})x" + rest);
    const PlannedParameter& w = plan.parameter(0);
    return plan.mesh().names(w.sharded_group.dims) + " | " +
           plan.mesh().names(w.unsharded_group.dims) + " | " +
           plan.mesh().names(w.partial_group.dims);
  };
  const auto mesh = [](const std::string& shape, const std::string& names) {
    return "\"mesh\": {\"shape\": [" + shape + "], \"mesh_dim_names\": [" + names + "]}, ";
  };
  const std::string all = mesh("2, 2, 2", R"x("rep", "fsdp", "tp")x");
  CHECK(groups(all, "") == "fsdp | rep | ");
  CHECK(groups(all, R"x(, "fully_shard": {"enable_param_shard": false})x") == " | rep, fsdp | ");
  CHECK(groups(all, R"x(, "fully_shard": {"replicate_params": ["w"]})x") == " | rep, fsdp | ");
  CHECK(groups(all, R"x(, "fully_shard": {"ignored_params": ["w"]})x") == " |  | rep, fsdp");
  CHECK(groups(all, R"x(, "data": {"data_dims": ["rep", "tp"]})x") == "fsdp | rep | tp");
  // Without data-parallel dims copies lie along every dim that does not cut the parameter.
  const std::string tp_ep = mesh("4, 2", R"x("tp", "ep")x");
  CHECK(groups(tp_ep, "") == " | tp, ep | ");
  CHECK(groups(tp_ep, R"x(, "placements": {"w": {"tp": "Shard(1)"}})x") == " | ep | ");
  CHECK(groups(mesh("8", R"x("dp")x"), R"x(, "fully_shard": {"shard_size": 4})x") ==
        "dp.shard | dp.replicate | ");
  // Dense parameters are copies along ep and reduced over it; those cut along it are not.
  const std::string fsdp_ep = mesh("2, 2", R"x("fsdp", "ep")x");
  CHECK(groups(fsdp_ep, "") == "fsdp |  | ep");
  CHECK(groups(fsdp_ep, R"x(, "placements": {"w": {"ep": "Shard(0)"}})x") == "fsdp |  | ");
}

TEST_CASE("a vocabulary that cannot say what ranks hold is a warning, and names the parameter") {
  const auto warnings = [](const std::string& fully_shard, const std::string& parameters,
                           const std::string& rest = "") {
    const VerifiedPlan plan = verify_plan(plan_of(kFsdpTp + "\"parameters\": " + parameters +
                                                  ", \"fully_shard\": " + fully_shard + rest));
    for (const Finding& finding : plan.checks().warnings) {
      CHECK(finding.code == FindingCode::SpecDisagrees);
      CHECK(finding.severity == Severity::Warning);
      CHECK(finding.param == "w");
    }
    return plan.checks().warnings.size();
  };
  const std::string six = R"x({"w": [6, 2]})x";
  const std::string seven = R"x({"w": [7, 2]})x";
  const std::string on_tp = R"x(, "placements": {"w": {"tp": "Shard(0)"}})x";
  CHECK(warnings(R"x({"vocabulary": "ragged", "chunking": "balanced"})x", six) == 0);
  CHECK(warnings(R"x({"vocabulary": "uneven_flag", "chunking": "balanced"})x", six) == 1);
  CHECK(warnings(R"x({"vocabulary": "torch", "chunking": "balanced"})x", six) == 1);
  // 7 rows over 4: both rules cut 2, 2, 2, 1.
  CHECK(warnings(R"x({"vocabulary": "torch", "chunking": "balanced"})x", seven) == 0);
  CHECK(warnings(R"x({"vocabulary": "uneven_flag"})x", seven) == 0);
  // tp leaves 4 rows, which divide, and 3, which do not: ranks would set the flag differently.
  CHECK(warnings(R"x({"vocabulary": "ragged"})x", seven, on_tp) == 0);
  CHECK(warnings(R"x({"vocabulary": "uneven_flag"})x", seven, on_tp) == 1);
  CHECK(warnings(R"x({"vocabulary": "torch"})x", seven, on_tp) == 0);
  const std::string units =
      R"x("shard_placement": {"w": {"dims": [0], "local_units": [1, 2, 2, 1]}})x";
  CHECK(warnings("{\"vocabulary\": \"ragged\", " + units + "}", six) == 0);
  CHECK(warnings("{\"vocabulary\": \"uneven_flag\", " + units + "}", six) == 0);
  CHECK(warnings("{\"vocabulary\": \"torch\", " + units + "}", six) == 1);
  CHECK(warnings("{\"vocabulary\": \"uneven_flag\", " + units + "}", R"x({"w": [12, 2]})x",
                 on_tp) == 1);
}

std::vector<FindingCode> findings_after(const std::function<void(Plan&)>& fault) {
  Plan plan = plan_of(
      kFsdpTp +
      R"x("parameters": {"a": [9, 2], "cut": [9, 2]},)x"
      R"x("placements": {"cut": {"tp": "Shard(0)"}}, "data": {"data_dims": ["fsdp", "tp"]})x");
  fault(plan);
  std::vector<FindingCode> codes;
  try {
    (void)verify_plan(plan);
  } catch (const PlanRejected& rejected) {
    for (const Finding& finding : rejected.findings())
      codes.push_back(finding.code);
  }
  return codes;
}

TEST_CASE("planted faults of cuts by TP and of partial ranges are refused by name") {
  const auto has = [](const std::vector<FindingCode>& codes, FindingCode code) {
    return std::find(codes.begin(), codes.end(), code) != codes.end();
  };
  const auto partial = [](Plan& plan) {
    return std::find_if(plan.steps.begin(), plan.steps.end(),
                        [](const Step& step) { return step.partial >= 0; });
  };
  CHECK(findings_after([](Plan&) {}).empty());
  CHECK(has(findings_after([&](Plan& p) { p.steps.erase(partial(p)); }),
            FindingCode::UnreducedPartial));
  // The whole row where a range was meant: what tp cuts is summed over it.
  CHECK(
      has(findings_after([&](Plan& p) { partial(p)->partial = -1; }), FindingCode::DoubleReduced));
  CHECK(has(findings_after([&](Plan& p) { partial(p)->collective->dims = {0}; }),
            FindingCode::UnreducedPartial));
  CHECK(has(findings_after([](Plan& p) {
              p.steps.front().collective->elems_in = p.bucket(0).row_elems.largest();
            }),
            FindingCode::CommShape));
  // Ranks of one group that would send different sizes.
  CHECK(has(findings_after([&](Plan& p) {
              partial(p)->collective->elems_in = p.bucket(0).row_elems;
              partial(p)->collective->elems_out = p.bucket(0).row_elems;
            }),
            FindingCode::CommShape));
  CHECK(has(findings_after([](Plan& p) { p.parameters[1].padded_elems = 4; }),
            FindingCode::CommShape));
  // Both plain: fsdp would cut first.
  CHECK(has(findings_after([](Plan& p) { p.parameters[1].sharded[0] = Shard{0}; }),
            FindingCode::OffsetWrong));
  CHECK(has(findings_after([](Plan& p) { p.parameters[1].unsharded[1] = Shard{1}; }),
            FindingCode::OffsetWrong));
  CHECK(has(findings_after([](Plan& p) { p.parameters[1].cut.chunking = Chunking::Balanced; }),
            FindingCode::OffsetWrong));
}

TEST_CASE("telling coordinates hold shards of every size that there is") {
  const Plan plan = plan_of(R"x("mesh": {"shape": [6, 4], "mesh_dim_names": ["fsdp", "tp"]},)x"
                            R"x("parameters": {"w": [29, 3], "v": [17]},)x"
                            R"x("placements": {"w": {"tp": "Shard(0)"}})x");
  const Mesh& mesh = plan.mesh();
  for (const PlannedParameter& parameter : plan.parameters) {
    std::vector<std::int64_t> told;
    for (const Coordinate& coordinate : telling_coordinates(mesh, parameter))
      told.push_back(held_shard(mesh, parameter, coordinate).elems);
    for (std::int64_t rank = 0; rank < mesh.num_ranks(); ++rank) {
      const auto elems = held_shard(mesh, parameter, mesh.coordinate_of(Rank{rank})).elems;
      CHECK(std::find(told.begin(), told.end(), elems) != told.end());
    }
  }
  // Classes: ranks up to the next class along every dim hold as much as the first of theirs.
  const std::vector<RankClass> classes = rank_classes(plan);
  std::int64_t num_ranks = 0;
  for (const RankClass& each : classes)
    num_ranks += each.num_ranks;
  CHECK(num_ranks == 24);
  CHECK(num_rank_classes(plan) == static_cast<double>(classes.size()));
  const auto sizes = [&](const Coordinate& coordinate) {
    std::vector<std::int64_t> elems;
    for (const PlannedParameter& parameter : plan.parameters)
      elems.push_back(held_shard(mesh, parameter, coordinate).elems);
    return elems;
  };
  for (std::int64_t rank = 0; rank < 24; ++rank) {
    const Coordinate coordinate = mesh.coordinate_of(Rank{rank});
    const RankClass* own = nullptr;
    for (const RankClass& each : classes) {
      if (each.first[0] > coordinate[0] || each.first[1] > coordinate[1]) continue;
      if (own == nullptr || each.first[0] > own->first[0] ||
          (each.first[0] == own->first[0] && each.first[1] > own->first[1])) {
        own = &each;
      }
    }
    REQUIRE(own != nullptr);
    CHECK(sizes(own->first) == sizes(coordinate));
  }
}

}  // namespace
}  // namespace hpsim
