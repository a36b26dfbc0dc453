#include "report/golden.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "baseline/eigen_baseline.h"
#include "exec/executor.h"
#include "plan/build_plan.h"
#include "report/golden_numbers.h"
#include "report/report.h"
#include "scenario/parse.h"
#include "support/catch.h"
#include "verify/compare_runs.h"

namespace hpsim {
namespace {

using Json = nlohmann::ordered_json;

Report report_on(const std::string& text, Backend backend = Backend::Local) {
  const Scenario scenario = parse_scenario(text, "sample.json");
  const VerifiedPlan plan = verify_plan(build_plan(scenario));
  const RunResult run = make_executor(backend)->run(plan, {});
  const ReferenceRun reference = run.has_numbers() ? run_baseline(scenario) : ReferenceRun{};
  return make_report(plan, run, reference, compare_runs(plan, run, reference));
}

/// A mesh of one dim "fsdp"; `more` follows the mesh.
std::string on_fsdp(int num_ranks, const std::string& more) {
  return fmt::format(
      R"x({{"hpsim": 1, "name": "sample", "mesh": {{"shape": [{}], "mesh_dim_names": ["fsdp"]}}, {}}})x",
      num_ranks, more);
}

/// Linears of width 8 named l0, l1, ...
std::string chain(int num_layers) {
  std::string modules;
  for (int i = 0; i < num_layers; ++i) {
    modules += fmt::format(
        R"x({}{{"type": "linear", "name": "l{}", "in_features": 8, "out_features": 8, "bias": false}})x",
        i == 0 ? "" : ", ", i);
  }
  return fmt::format(R"x("model": [{}])x", modules);
}

const std::string kWeight = R"x("parameters": {"weight": [7, 8]})x";

std::vector<std::string> messages_of(const GoldenComparison& comparison) {
  std::vector<std::string> messages;
  for (const GoldenDifference& difference : comparison.differences)
    messages.push_back(difference.message);
  return messages;
}

/// What a run of `now` differs in from the golden of a run of `before`.
std::vector<std::string> changes(const std::string& before, const std::string& now) {
  const std::string golden = golden_text(make_golden(report_on(before)));
  return messages_of(compare_golden("golden.json", golden, report_on(now)));
}

/// The same for a golden that was edited by a JSON patch.
GoldenComparison compared_after(const Report& report, const std::string& patch) {
  const Json golden = make_golden(report).patch(Json::parse(patch));
  return compare_golden("golden.json", golden_text(golden), report);
}

using Messages = std::vector<std::string>;

TEST_CASE("the golden of the smallest scenario, as derived by hand") {
  const Json golden = make_golden(report_on(on_fsdp(4, kWeight)));
  CHECK(golden["golden"] == 1);
  CHECK(golden["name"] == "sample");
  CHECK(golden["mesh"] == Json::parse(R"x({"shape": [4], "mesh_dim_names": ["fsdp"]})x"));
  CHECK(golden["numerics"] == Json::parse(R"x({"dtype": "float32", "mode": "derived"})x"));
  CHECK(golden["steps"] == 1);
  CHECK(golden["groups"] == Json::parse(R"x({"fsdp": [[0, 1, 2, 3]]})x"));
  CHECK(golden["parameters"] == Json::parse(R"x([{
      "name": "weight", "global_shape": [7, 8], "dtype": "float32",
      "placements": {"sharded": ["RaggedShard((0,), (2, 2, 2, 1))"], "unsharded": ["Replicate"]},
      "sharded_group": {"mesh_dims": ["fsdp"], "size": 4},
      "unsharded_group": {"mesh_dims": [], "size": 1},
      "partial_group": {"mesh_dims": [], "size": 1},
      "padded_shape": [2, 8],
      "shards": [{"rank": 0, "offset": [0, 0], "shape": [2, 8]},
                 {"rank": 1, "offset": [2, 0], "shape": [2, 8]},
                 {"rank": 2, "offset": [4, 0], "shape": [2, 8]},
                 {"rank": 3, "offset": [6, 0], "shape": [1, 8]}]}])x"));
  CHECK(golden["units"] == Json::parse(R"x([{"unit": "(root)", "params": ["weight"]
}])x"));
  // A slot has 2 rows of 8, so 16 elements of 4 bytes; four of them make the gathered bucket.
  CHECK(golden["collectives"] == Json::parse(R"x([{"first_step": 0, "last_step": 0,
      "forward": [{"op": "all_gather", "unit": "(root)", "mesh_dims": ["fsdp"],
                   "dtype": "float32", "elements": [16, 64], "bytes": [64, 256]
}],
      "backward": [{"op": "all_gather", "unit": "(root)", "mesh_dims": ["fsdp"],
                    "dtype": "float32", "elements": [16, 64], "bytes": [64, 256]},
                   {"op": "reduce_scatter", "unit": "(root)", "mesh_dims": ["fsdp"],
                    "dtype": "float32", "scale": 0.25, "elements": [64, 16], "bytes": [256, 64]}],
      "optimizer": [],
      "totals": [{"phase": "forward", "op": "all_gather", "mesh_dims": ["fsdp"],
                  "dtype": "float32", "count": 1, "bytes_in": 64, "bytes_out": 256},
                 {"phase": "backward", "op": "all_gather", "mesh_dims": ["fsdp"],
                  "dtype": "float32", "count": 1, "bytes_in": 64, "bytes_out": 256},
                 {"phase": "backward", "op": "reduce_scatter", "mesh_dims": ["fsdp"],
                  "dtype": "float32", "count": 1, "bytes_in": 256, "bytes_out": 64}]
}])x"));
  CHECK(golden["memory"]["sharded_parameters"] == 64);
  CHECK(golden["memory"]["padding"] == 32);  // one row of rank 3
  CHECK(golden["memory"]["unsharded_parameters"] == 256);
  CHECK(golden["warnings"] == Json::array());
  CHECK(golden["losses"].size() == 1);
  CHECK(golden["grad_norms"].size() == 1);
}

TEST_CASE("nothing that varies stands in a golden, and every object has a line") {
  const std::string text = golden_text(make_golden(report_on(on_fsdp(4, kWeight))));
  for (const char* varying : {"time", "sample.json", "host", "hash", "local", "version"}) {
    CAPTURE(varying);
    CHECK(text.find(varying) == std::string::npos);
  }
  CHECK(text.find("\n        {\"rank\": 3, \"offset\": [6, 0], \"shape\": [1, 8]}\n") !=
        std::string::npos);
  CHECK(text.find("\n    {\"unit\": \"(root)\", \"params\": [\"weight\"]}\n") != std::string::npos);
}

TEST_CASE("backends have one golden, but symbolic has no numbers") {
  for (const std::string& more :
       {kWeight, chain(2), kWeight + R"x(, "numerics": {"mode": "exact"})x"}) {
    const Json local = make_golden(report_on(on_fsdp(4, more)));
    Json symbolic = make_golden(report_on(on_fsdp(4, more), Backend::Symbolic));
    for (const char* key : {"losses", "grad_norms", "digest"}) {
      CHECK_FALSE(symbolic.contains(key));
      if (local.contains(key)) symbolic[key] = local[key];
    }
    CHECK(symbolic == local);
  }
  const Report symbolic = report_on(on_fsdp(4, kWeight), Backend::Symbolic);
  const GoldenComparison comparison = compare_golden(
      "golden.json", golden_text(make_golden(report_on(on_fsdp(4, kWeight)))), symbolic);
  CHECK(comparison.state == GoldenState::Same);
  CHECK(comparison.not_compared == Messages{"losses", "grad_norms"});
  // The other way round something is missing.
  CHECK(messages_of(compare_golden("golden.json", golden_text(make_golden(symbolic)),
                                   report_on(on_fsdp(4, kWeight)))) ==
        Messages{"losses: the golden has none", "grad_norms: the golden has none"});
}

TEST_CASE("symbolic leaves warnings of numbers as they are") {
  const std::string scenario = on_fsdp(
      4, R"x("model": [{"name": "l", "type": "linear", "in_features": 3, "out_features": 2}],
             "data": {"tokens": [2, 1, 1, 1]})x");
  const std::string golden = golden_text(make_golden(report_on(scenario)));
  REQUIRE(golden.find("LOCAL_MEAN") != std::string::npos);
  const Report symbolic = report_on(scenario, Backend::Symbolic);
  const GoldenComparison comparison = compare_golden("golden.json", golden, symbolic);
  CHECK(comparison.state == GoldenState::Same);
  CHECK(comparison.not_compared == Messages{"warning LOCAL_MEAN", "losses", "grad_norms"});
  CHECK(updated_golden(golden, symbolic) == golden);
}

TEST_CASE("what changes about a scenario is told in words") {
  const std::string seed = R"x(, "data": {"init": {"kind": "uniform", "bound": 0.5}})x";
  struct Row {
    std::string before;
    std::string now;
    Messages first;  ///< the differences begin with these
  };
  const std::vector<Row> rows = {
      {on_fsdp(4, chain(2)),
       on_fsdp(4, chain(3)),
       {"l2.weight: new, the golden has no such parameter", "unit l2: new, with (l2.weight,)",
        "forward: all_gather 2 → 3 over fsdp (unit l2 added)",
        "backward: all_gather 2 → 3 over fsdp (unit l2 added)",
        "backward: reduce_scatter 2 → 3 over fsdp (unit l2 added)"}},
      {on_fsdp(4, chain(3)),
       on_fsdp(4, chain(2)),
       {"l2.weight: gone, the golden has it", "unit l2: gone",
        "forward: all_gather 3 → 2 over fsdp (unit l2 gone)",
        "backward: all_gather 3 → 2 over fsdp (unit l2 gone)",
        "backward: reduce_scatter 3 → 2 over fsdp (unit l2 gone)"}},
      // 6 rows over 4: 2 2 2 0 by the ceil rule, 2 2 1 1 balanced; slots have 2 rows either way.
      {on_fsdp(4, R"x("parameters": {"w": [6, 4]})x"),
       on_fsdp(4, R"x("parameters": {"w": [6, 4]}, "fully_shard": {"chunking": "balanced"})x"),
       {"w: over fsdp: RaggedShard((0,), (2, 2, 2, 0)) → RaggedShard((0,), (2, 2, 1, 1))",
        "w: rank 2 holds 1 row, golden 2", "w: rank 3 holds 1 row, golden 0"}},
      {on_fsdp(4, kWeight),
       on_fsdp(4, kWeight + R"x(, "fully_shard": {"reshard_after_forward": false})x"),
       {"backward: all_gather 1 → 0 over fsdp (unit (root) gone)"}},
      {on_fsdp(4, kWeight),
       on_fsdp(4, kWeight + R"x(, "fully_shard": {"reduce_op": "sum"})x"),
       {"backward: reduce_scatter over fsdp: scale 0.25 → 1 (unit (root))"}},
      {on_fsdp(4, kWeight),
       on_fsdp(2, kWeight),
       {"mesh: fsdp 4 → fsdp 2", "groups over fsdp: number 0 has ranks (0, 1), golden (0, 1, 2, 3)",
        "weight: over fsdp: RaggedShard((0,), (2, 2, 2, 1)) → RaggedShard((0,), (4, 3))",
        "weight: sharded group over fsdp 4 → fsdp 2", "weight: padded shape (2, 8) → (4, 8)",
        "weight: rank 0 holds 4 rows, golden 2", "weight: rank 1 holds rows [4, 7), golden [2, 4)",
        "weight: rank 2 holds nothing, golden (2, 8) from (4, 0)",
        "weight: rank 3 holds nothing, golden (1, 8) from (6, 0)"}},
      {on_fsdp(4, kWeight),
       on_fsdp(4, R"x("parameters": {"weight": [8, 8]})x"),
       {"weight: shape (7, 8) → (8, 8)",
        "weight: over fsdp: RaggedShard((0,), (2, 2, 2, 1)) → Shard(0)"}},
      {on_fsdp(4, kWeight + seed),
       on_fsdp(4, kWeight + seed + R"x(, "numerics": {"dtype": "float64"})x"),
       {"numerics/dtype: \"float32\" → \"float64\"", "weight: dtype float32 → float64",
        "forward: all_gather over fsdp: bytes in and out (64, 256) → (128, 512) (unit (root))",
        "forward: all_gather over fsdp: dtype float32 → float64 (unit (root))"}},
      {on_fsdp(4, kWeight),
       on_fsdp(4, kWeight + R"x(, "training": {"steps": 2})x"),
       {"steps: 1 → 2", "pad allocations 2 → 3", "pad copies 2 → 3", "losses: 1 → 2 of them",
        "grad_norms: 1 → 2 of them"}},
  };
  for (const Row& row : rows) {
    CAPTURE(row.before, row.now);
    Messages found = changes(row.before, row.now);
    CHECK(found.size() >= row.first.size());
    found.resize(row.first.size());
    CHECK(found == row.first);
    CHECK(changes(row.before, row.before).empty());
    CHECK(changes(row.now, row.now).empty());
  }
}

TEST_CASE("replicas: one change on several ranks is one line, groups have their ranks") {
  const auto hsdp = [](const char* ranks) {
    return fmt::format(
        R"x({{"hpsim": 1, "mesh": {{"shape": [2, 2], "mesh_dim_names": ["rep", "fsdp"]{}}},
             "parameters": {{"w": [5, 3]}}}})x",
        ranks);
  };
  const Report report = report_on(hsdp(""));
  CHECK(messages_of(compared_after(
            report, R"x([{"op": "replace", "path": "/parameters/0/shards/1/shape", "value": [1, 3]},
                        {"op": "replace", "path": "/parameters/0/shards/3/shape", "value": [1, 3]}])x")) ==
        Messages{"w: ranks 1, 3 hold 2 rows, golden 1"});
  // Ranks 1 and 2 change places: fsdp groups are {0, 2}, {1, 3} then, and rank 1 holds rows 0 to 3.
  const Messages permuted = changes(hsdp(""), hsdp(R"x(, "ranks": [0, 2, 1, 3])x"));
  REQUIRE(permuted.size() == 5);
  CHECK(permuted[0] == "mesh: rep 2 x fsdp 2 → rep 2 x fsdp 2 with ranks (0, 2, 1, 3)");
  CHECK(permuted[1] == "groups over rep: number 0 has ranks (0, 1), golden (0, 2)");
  CHECK(permuted[2] == "groups over fsdp: number 0 has ranks (0, 2), golden (0, 1)");
  CHECK(permuted[3] == "w: rank 1 holds rows [0, 3), golden [3, 5)");
  CHECK(permuted[4] == "w: rank 2 holds rows [3, 5), golden [0, 3)");
}

TEST_CASE("edits of a golden, each told by what it says") {
  struct Row {
    const char* patch;
    std::string message;
  };
  const Report report = report_on(on_fsdp(4, chain(3) + R"x(, "training": {"steps": 3})x"));
  for (
      const Row& row : std::vector<Row>{
          {R"x([{"op": "remove", "path": "/collectives/0/backward/1"}])x",
           "backward: reduce_scatter 2 → 3 over fsdp (unit l2 added)"},
          {R"x([{"op": "copy", "from": "/collectives/0/backward/1", "path": "/collectives/0/backward/2"}])x",
           "backward: reduce_scatter 4 → 3 over fsdp (unit l2 gone)"},
          {R"x([{"op": "move", "from": "/collectives/0/forward/0", "path": "/collectives/0/forward/2"}])x",
           "forward: the same collectives in another order: number 0 is all_gather of unit l0, "
           "golden all_gather of unit l1"},
          {R"x([{"op": "replace", "path": "/collectives/0/backward/1/dtype", "value": "bfloat16"}])x",
           "backward: reduce_scatter over fsdp: dtype bfloat16 → float32 (unit l2)"},
          {R"x([{"op": "replace", "path": "/collectives/0/backward/1/mesh_dims", "value": ["rep", "fsdp"]}])x",
           "backward: reduce_scatter over (rep, fsdp) → fsdp (unit l2)"},
          {R"x([{"op": "replace", "path": "/collectives/0/backward/1/bytes/0", "value": 100}])x",
           "backward: reduce_scatter over fsdp: bytes in and out (100, 64) → (256, 64) (unit l2)"},
          {R"x([{"op": "replace", "path": "/collectives/0/totals/2/count", "value": 12}])x",
           "totals of backward reduce_scatter over fsdp: count 12 → 3"},
          {R"x([{"op": "replace", "path": "/groups/fsdp/0", "value": [0, 2, 1, 3]}])x",
           "groups over fsdp: number 0 has ranks (0, 1, 2, 3), golden (0, 2, 1, 3)"},
          {R"x([{"op": "add", "path": "/groups/rep", "value": [[0, 2]]}])x",
           "groups over rep: gone"},
          {R"x([{"op": "replace", "path": "/parameters/1/shards/3/shape/0", "value": 1}])x",
           "l1.weight: rank 3 holds 2 rows, golden 1"},
          {R"x([{"op": "replace", "path": "/parameters/1/shards/3/offset/0", "value": 5}])x",
           "l1.weight: rank 3 holds rows [6, 8), golden [5, 7)"},
          {R"x([{"op": "replace", "path": "/parameters/1/shards/3/shape/1", "value": 4}])x",
           "l1.weight: rank 3 holds (2, 8) from (6, 0), golden (2, 4) from (6, 0)"},
          {R"x([{"op": "remove", "path": "/parameters/1/shards/3"}])x",
           "l1.weight: rank 3 holds (2, 8) from (6, 0), golden nothing"},
          {R"x([{"op": "replace", "path": "/parameters/1/unsharded_group/size", "value": 2}])x",
           "l1.weight: unsharded group over no mesh dim 2 → no mesh dim 1"},
          {R"x([{"op": "replace", "path": "/parameters/1/placements/unsharded/0", "value": "Shard(1)"}])x",
           "l1.weight: over fsdp in compute: Shard(1) → Replicate"},
          {R"x([{"op": "replace", "path": "/memory/padding", "value": 3000}])x",
           "memory: padding 2.93 KiB → 0 B"},
          {R"x([{"op": "replace", "path": "/memory/pad_copies", "value": 7}])x",
           "pad copies 7 → 0"},
          {R"x([{"op": "add", "path": "/warnings/-", "value": {"code": "SPEC_DISAGREES", "param": "l1.weight"}}])x",
           "l1.weight: warning SPEC_DISAGREES: gone"},
          {R"x([{"op": "replace", "path": "/units/1/params", "value": ["l1.weight", "l1.bias"]}])x",
           "unit l1 carries (l1.weight,), golden (l1.weight, l1.bias)"},
          {R"x([{"op": "add", "path": "/extra", "value": 1}])x",
           "extra: the golden has it, a golden of this run has not"},
          {R"x([{"op": "add", "path": "/parameters/0/extra", "value": 1}])x",
           "parameters/0/extra: 1 → none"},
          {R"x([{"op": "replace", "path": "/name", "value": "other"}])x",
           "name: other → sample"}}) {
    CAPTURE(row.patch);
    const GoldenComparison comparison = compared_after(report, row.patch);
    CHECK(comparison.state == GoldenState::Differs);
    CHECK(messages_of(comparison) == Messages{row.message});
  }
}

TEST_CASE("a change in some optimizer steps names them, one in all does not") {
  const Report report = report_on(on_fsdp(4, kWeight + R"x(, "training": {"steps": 5})x"));
  Json golden = make_golden(report);
  // Steps 0..1 and 3..4 as they are, step 2 without its reduce_scatter.
  const Json run = golden["collectives"][0];
  Json other = run;
  other["backward"].erase(1);
  const auto steps = [](Json json, int first, int last) {
    json["first_step"] = first;
    json["last_step"] = last;
    return json;
  };
  golden["collectives"] = {steps(run, 0, 1), steps(other, 2, 2), steps(run, 3, 4)};
  GoldenComparison comparison = compare_golden("golden.json", golden_text(golden), report);
  REQUIRE(messages_of(comparison) ==
          Messages{"step 2, backward: reduce_scatter 0 → 1 over fsdp (unit (root) added)"});
  CHECK(comparison.differences[0].step == 2);
  golden["collectives"] = {steps(other, 0, 1), steps(run, 2, 2), steps(other, 3, 4)};
  comparison = compare_golden("golden.json", golden_text(golden), report);
  CHECK(messages_of(comparison) ==
        Messages{"steps 0..1, 3..4, backward: reduce_scatter 0 → 1 over fsdp (unit (root) added)"});
  golden["collectives"] = {steps(other, 0, 1), steps(other, 2, 4)};
  comparison = compare_golden("golden.json", golden_text(golden), report);
  CHECK(messages_of(comparison) ==
        Messages{"backward: reduce_scatter 0 → 1 over fsdp (unit (root) added)"});
  // Runs that are cut otherwise say the same, but the golden is not what would be written.
  golden["collectives"] = {steps(run, 0, 1), steps(run, 2, 4)};
  comparison = compare_golden("golden.json", golden_text(golden), report);
  CHECK(comparison.state == GoldenState::Differs);
}

/// Linears with those names, all of width 8.
std::string layers(const std::vector<std::string>& names) {
  std::string modules;
  for (const std::string& name : names) {
    modules += fmt::format(
        R"x({}{{"type": "linear", "name": "{}", "in_features": 8, "out_features": 8, "bias": false}})x",
        modules.empty() ? "" : ", ", name);
  }
  return fmt::format(R"x("model": [{}])x", modules);
}

TEST_CASE("a unit put in front or in between is one unit, not all of those behind it") {
  const Messages in_front =
      changes(on_fsdp(4, layers({"l0", "l1"})), on_fsdp(4, layers({"x", "l0", "l1"})));
  REQUIRE(in_front.size() > 5);
  CHECK(in_front[0] == "x.weight: new, the golden has no such parameter");
  CHECK(in_front[1] == "unit x: new, with (x.weight,)");
  CHECK(in_front[2] == "forward: all_gather 2 → 3 over fsdp (unit x added)");
  const Messages out =
      changes(on_fsdp(4, layers({"l0", "x", "l1"})), on_fsdp(4, layers({"l0", "l1"})));
  CHECK(out[1] == "unit x: gone");
  const Messages swapped =
      changes(on_fsdp(4, layers({"l0", "l1"})), on_fsdp(4, layers({"l1", "l0"})));
  REQUIRE(swapped.size() >= 4);
  CHECK(swapped[0] == "parameters in another order: number 0 is l1.weight, golden l0.weight");
  CHECK(swapped[1] == "units: the same in another order");
  CHECK(swapped[2] ==
        "forward: the same collectives in another order: number 0 is all_gather of "
        "unit l1, golden all_gather of unit l0");
}

TEST_CASE("what many parameters have in common is one line") {
  std::vector<std::string> names;
  for (int i = 0; i < 30; ++i)
    names.push_back(fmt::format("l{}", i));
  const Messages found = changes(on_fsdp(4, layers(names)), on_fsdp(2, layers(names)));
  CHECK(found.size() < 25);
  CHECK(std::find(found.begin(), found.end(),
                  "l0.weight, l1.weight, l2.weight and 27 more: sharded group over fsdp 4 → fsdp "
                  "2") != found.end());
}

TEST_CASE("other parameters in a unit's collective are a change of it") {
  const std::string two = R"x("parameters": {"w": [8, 8], "b": [8]})x";
  const Messages found = changes(
      on_fsdp(4, two), on_fsdp(4, two + R"x(, "fully_shard": {"replicate_params": ["b"]})x"));
  const auto has = [&](const std::string& message) {
    return std::find(found.begin(), found.end(), message) != found.end();
  };
  CAPTURE(found);
  // Both gathered 16 + 2 elements of a rank; w alone is 16 of 64 bytes.
  CHECK(has("forward: all_gather over fsdp: bytes in and out (72, 288) → (64, 256) (unit (root))"));
  CHECK(has("forward: all_gather over fsdp: params none → (w,) (unit (root))"));
  CHECK(has("unit (root) carries (w,), golden (w, b)"));
}

TEST_CASE("above 64 ranks: shards that are not listed are not said to be empty") {
  // 250 rows over 128: ceil gives 2 each to 125 and none to 3; balanced 2 to 122 and 1 to 6.
  const std::string rows = R"x("parameters": {"w": [250, 2]})x";
  const Messages found = [&] {
    const Report before = report_on(on_fsdp(128, rows), Backend::Symbolic);
    const Report now = report_on(
        on_fsdp(128, rows + R"x(, "fully_shard": {"chunking": "balanced"})x"), Backend::Symbolic);
    return messages_of(compare_golden("g", golden_text(make_golden(before)), now));
  }();
  CAPTURE(found);
  CHECK(std::any_of(found.begin(), found.end(), [](const std::string& message) {
    return message.find("w: sizes change at shards ") == 0;
  }));
  for (const std::string& message : found)
    CHECK(message.find("nothing") == std::string::npos);
  CHECK(std::count(found.begin(), found.end(), "w: shard 127 holds 1 row, golden 0") == 1);
}

TEST_CASE("of many steps that differ the first are told") {
  const Report report = report_on(on_fsdp(4, kWeight + R"x(, "training": {"steps": 40})x"));
  Json golden = make_golden(report);
  for (Json& entry : golden["losses"])
    entry["loss"] = 7;
  const Messages found = messages_of(compare_golden("g", golden_text(golden), report));
  REQUIRE(found.size() == 5);
  CHECK(found[0].find("loss step 0: 7.000 → ") == 0);
  CHECK(found[4] == "losses: 40 of 40 steps differ");
}

TEST_CASE("a section that was emptied, and a factor that is left out") {
  const Report report = report_on(on_fsdp(4, kWeight));
  for (const char* section : {"collectives", "parameters", "units", "groups", "memory"}) {
    Json golden = make_golden(report);
    golden[section] = golden[section].is_array() ? Json::array() : Json::object();
    CHECK(messages_of(compare_golden("g", golden_text(golden), report)) ==
          Messages{fmt::format("{}: the golden lists none", section)});
  }
  CHECK(messages_of(compared_after(
            report,
            R"x([{"op": "add", "path": "/collectives/0/backward/1/prescale", "value": 2}])x")) ==
        Messages{"backward: reduce_scatter over fsdp: prescale 2 → 1 (unit (root))"});
}

TEST_CASE("numbers to the digits that their bound leaves") {
  const auto frozen = [](double value, double bound, double own_bound = 0) {
    const std::optional<GoldenNumber> number = golden_number(value, bound, own_bound);
    return number ? fmt::format("{} ± {}", number->value, number->bound) : std::string("none");
  };
  // The second digit of the bound is 1e-8: the quantum is 1e-9, and half of it is added.
  CHECK(frozen(0.16106228576, 9.0e-7) == "0.161062286 ± 9.1e-07");
  CHECK(frozen(0.16106228576, 8.994e-7) == "0.161062286 ± 9e-07");
  CHECK(frozen(0.16106228576, 9.0e-7, 1.7e-15) == "0.161062286 ± 9.1e-07");
  CHECK(frozen(0.38413815996, 2.2e-15, 2.2e-15) == "0.38413815996 ± 5.1e-12");
  CHECK(frozen(1234.5678, 9.95e-2) == "1234.568 ± 0.1");
  CHECK(frozen(-2.5, 0.3) == "-2.5 ± 0.31");
  CHECK(frozen(123456, 10000) == "123500 ± 11000");
  CHECK(frozen(2.4, 0.3) == "2.4 ± 0.31");  // 2.4 / 8 is 0.3
  CHECK(frozen(2.39, 0.3) == "none");
  CHECK(frozen(0, 1e-9) == "none");
  CHECK(frozen(2.5, 0) == "none");
  CHECK(frozen(0.3, 0.03, 0.01) == "none");  // a digit of 10 would be left, with a bound of 5
  const double nan = std::nan("");
  CHECK(frozen(nan, 1) == "none");
  CHECK(frozen(1, nan) == "none");
  CHECK(frozen(INFINITY, 1) == "none");
  CHECK(frozen(1, INFINITY) == "none");

  CHECK(is_same_bound(9.1e-7, 9.2e-7));
  CHECK(is_same_bound(9.9e-7, 1.0e-6));
  CHECK_FALSE(is_same_bound(9.1e-7, 9.3e-7));
  CHECK_FALSE(is_same_bound(1.0e-6, 9.8e-7));
}

TEST_CASE("a frozen number and its bound cover whatever the exact ones cover") {
  // Over many magnitudes: |x - value| <= bound implies |x - frozen value| <= frozen bound, and the
  // frozen bound is wider by less than an eighth.
  for (int i = 0; i < 2000; ++i) {
    const double value = std::ldexp(1 + 0.37 * i / 2000, i % 80 - 40) * (i % 2 == 0 ? 1 : -1);
    const double bound = std::abs(value) * std::pow(10, -1 - (i % 1370) / 100.0);
    const auto frozen = golden_number(value, bound, 0);
    REQUIRE(frozen.has_value());
    CHECK(std::abs(frozen->value - value) + bound <= frozen->bound);
    CHECK(frozen->bound <= 1.125 * bound);
  }
}

TEST_CASE("a loss just inside its bound is the same, just outside it is not") {
  Report report = report_on(on_fsdp(4, kWeight + R"x(, "training": {"steps": 3})x"));
  const Json golden = make_golden(report);
  const std::string text = golden_text(golden);
  const auto loss = golden["losses"][2]["loss"].get<double>();
  const auto bound = golden["losses"][2]["bound"].get<double>();
  for (const double sign : {1.0, -1.0}) {
    report.losses[2] = loss + sign * 0.999 * bound;
    CHECK(compare_golden("golden.json", text, report).state == GoldenState::Same);
    report.losses[2] = loss + sign * 1.001 * bound;
    const GoldenComparison outside = compare_golden("golden.json", text, report);
    REQUIRE(outside.differences.size() == 1);
    CHECK(outside.differences[0].section == "losses");
    CHECK(outside.differences[0].step == 2);
    CHECK(outside.differences[0].message.find("loss step 2: ") == 0);
    CHECK(outside.differences[0].message.find(", 1.001 times the bound") != std::string::npos);
  }
  report.losses[2] = std::nan("");
  CHECK(compare_golden("golden.json", text, report).state == GoldenState::Differs);
}

TEST_CASE("the words for a loss and a norm") {
  Report report = report_on(on_fsdp(4, kWeight));
  Json golden = make_golden(report);
  golden["losses"][0] = {{"step", 0}, {"loss", 0.4197}, {"bound", 2e-5}};
  golden["grad_norms"][0] = {{"step", 0}, {"grad_norm", 0.25}, {"bound", 0.001}};
  report.losses = {0.41970 + 31 * 2e-5};
  report.grad_norms = {0.5};
  CHECK(messages_of(compare_golden("golden.json", golden_text(golden), report)) ==
        Messages{"loss step 0: 0.4197 → 0.4203, 31 times the bound",
                 "grad norm step 0: 0.2500 → 0.5000, 250 times the bound"});
}

TEST_CASE("a bound that grows tenfold is a difference, though the loss is within it") {
  const Report report = report_on(on_fsdp(4, kWeight));
  Json golden = make_golden(report);
  const double bound = golden["losses"][0]["bound"].get<double>();
  golden["losses"][0]["bound"] = bound / 10;
  const GoldenComparison comparison = compare_golden("golden.json", golden_text(golden), report);
  REQUIRE(comparison.differences.size() == 1);
  CHECK(comparison.differences[0].message ==
        fmt::format("loss step 0: bound {:.1e} → {:.1e}", bound / 10, bound));
}

TEST_CASE("exact mode: losses as they are, and a digest") {
  const std::string scenario = on_fsdp(4, kWeight + R"x(, "numerics": {"mode": "exact"})x");
  const Report report = report_on(scenario);
  const Json golden = make_golden(report);
  CHECK(golden["digest"] == report.digest);
  CHECK(golden["losses"][0].get<double>() == report.losses[0]);
  CHECK_FALSE(golden.contains("grad_norms"));
  CHECK(messages_of(compared_after(
            report, R"x([{"op": "replace", "path": "/digest", "value": "0123456789abcdef"}])x")) ==
        Messages{fmt::format("digest: \"0123456789abcdef\" → \"{}\"", report.digest)});
  CHECK(messages_of(compared_after(report, R"x([{"op": "remove", "path": "/digest"}])x")) ==
        Messages{"digest: the golden has none"});
  // Another bit of one loss is another loss.
  Json edited = golden;
  edited["losses"][0] = std::nextafter(report.losses[0], 1e9);
  CHECK(compare_golden("golden.json", golden_text(edited), report).state == GoldenState::Differs);
  // Exact against derived.
  CHECK_FALSE(changes(scenario, on_fsdp(4, kWeight)).empty());
  CHECK_FALSE(changes(on_fsdp(4, kWeight), scenario).empty());
}

TEST_CASE("a loss that rounding may move by more than an eighth is null") {
  Report report = report_on(on_fsdp(4, kWeight));
  report.loss_bounds[0] = report.baseline_losses[0] / 4;
  const Json golden = make_golden(report);
  CHECK(golden["losses"][0] == Json::parse(R"x({"step": 0, "loss": null, "bound": null})x"));
  CHECK(compare_golden("golden.json", golden_text(golden), report).state == GoldenState::Same);
  const Report sound = report_on(on_fsdp(4, kWeight));
  CHECK(messages_of(compare_golden("golden.json", golden_text(golden), sound)) ==
        Messages{"loss step 0: could be compared, but the golden has null"});
  CHECK(messages_of(compare_golden("golden.json", golden_text(make_golden(sound)), report)) ==
        Messages{"loss step 0: its bound passes 1/8 of it now, the golden has a number"});
}

TEST_CASE("what is no golden is unreadable") {
  const Report report = report_on(on_fsdp(4, kWeight));
  for (const char* text :
       {"", "{", "[]", "{}", "7", R"x({"golden": 2})x", R"x({"golden": "1"})x", "\xff"}) {
    CAPTURE(text);
    const GoldenComparison comparison = compare_golden("golden.json", text, report);
    CHECK(comparison.state == GoldenState::Unreadable);
    CHECK(comparison.differences.size() == 1);
  }
}

TEST_CASE("an update keeps numbers that hold and replaces those that do not") {
  const Report report = report_on(on_fsdp(4, kWeight + R"x(, "training": {"steps": 2})x"));
  Json golden = make_golden(report);
  // The last digit, as another build may have it.
  const double moved =
      golden["losses"][0]["loss"].get<double>() + 0.01 * golden["losses"][0]["bound"].get<double>();
  golden["losses"][0]["loss"] = moved;
  golden["grad_norms"][1]["grad_norm"] = 7;
  golden["memory"]["padding"] = 1;
  const Json updated = Json::parse(updated_golden(golden_text(golden), report));
  CHECK(updated["losses"][0]["loss"] == moved);
  CHECK(updated["grad_norms"] == make_golden(report)["grad_norms"]);
  CHECK(updated["memory"] == make_golden(report)["memory"]);
  CHECK(updated_golden("", report) == golden_text(make_golden(report)));
  CHECK(updated_golden("no JSON", report) == golden_text(make_golden(report)));
}

}  // namespace
}  // namespace hpsim
