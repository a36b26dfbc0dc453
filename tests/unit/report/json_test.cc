#include "report/json.h"

#include <limits>
#include <nlohmann/json.hpp>

#include "support/catch.h"
#include "unit/report/sample_report.h"

namespace hpsim {
namespace {

using Json = nlohmann::ordered_json;

Json parsed(const char* text) {
  return Json::parse(text);
}

TEST_CASE("the report of 7 rows over 4 ranks says what the format says") {
  const Json json = comparable_json(sample_report(), false);
  CHECK(json["report"] == 1);
  CHECK(json["scenario"] == parsed(R"json({"name": "uneven", "file": "scenarios/fsdp/uneven.json",
                                       "hash": "0123456789abcdef"})json"));
  CHECK(json["backend"] == "local");
  CHECK(json["world_size"] == 4);
  CHECK(json["verdict"] == "pass");
  CHECK(json["exit_code"] == 0);
  CHECK(json["parameters"] == parsed(R"json([{
      "name": "weight", "global_shape": [7, 8], "dtype": "float32",
      "placements": {"sharded": ["RaggedShard((0,), (2, 2, 2, 1))"], "unsharded": ["Replicate"]
}
, "shard_size" : 4, "dp_size" : 1, "rank_size" : 4, "sharded_group" : [[ 0, 1, 2, 3 ]],
                                                                      "unsharded_group"
    : [ [0], [1], [2], [3] ],
      "partial_group" : [ [0], [1], [2], [3] ],
                        "padded_shape" : [ 2, 8 ],
                                         "shards" : [
                                           {"rank" : 0, "offset" : [ 0, 0 ], "shape" : [ 2, 8 ]},
                                           {"rank" : 1, "offset" : [ 2, 0 ], "shape" : [ 2, 8 ]},
                                           {"rank" : 2, "offset" : [ 4, 0 ], "shape" : [ 2, 8 ]},
                                           {"rank" : 3, "offset" : [ 6, 0 ], "shape" : [ 1, 8 ]}
                                         ]
}])json"));
  REQUIRE(json["collectives"].size() == 3);
  CHECK(json["collectives"][0]["reduce_op"].is_null());
  CHECK(json["collectives"][2] == parsed(R"json({
      "seq": 2, "op": "reduce_scatter", "phase": "backward", "step": 0, "micro_batch": 0,
      "unit": "(root)", "params": ["weight"], "mesh_dims": ["fsdp"], "groups": [[0, 1, 2, 3]],
      "dtype": "float32", "reduce_op": "sum", "prescale": 1, "scale": 0.25,
      "elements_in": 64, "elements_out": 16, "bytes_in": 256, "bytes_out": 64
  })json"));
  CHECK(json["counters"] == parsed(R"json({"pad_allocations": 1, "pad_copies": 2,
                                       "peak_unsharded_bytes": 256, "peak_bytes": 640})json"));
  CHECK(json["ledger"]["padding"] == parsed(R"json({"peak": 32, "after_step": [32]})json"));
  CHECK(json["ledger"].size() == 8);
  CHECK(json["memory"] == parsed(R"json({
      "init": {"peak": 288, "sharded_parameters": 64, "unsharded_parameters": 224},
      "peak": {"bytes": 640, "plan_step": 0, "at": "unshard of unit \"(root)\"", "step": 0},
      "events": [
        {"plan_step": 0, "peak": 640, "live": 352, "sharded_parameters": 64, "padding": 32,
         "unsharded_parameters": 256},
        {"plan_step": 1, "peak": 352, "live": 96, "sharded_parameters": 64, "padding": 32}
      ]})json"));
  CHECK(json["checks"][5] ==
        parsed(R"json({"id": "gradient-parity", "verdict": "pass", "compared": 56,
      "worst": {"param": "weight", "rank": 3, "step": 0, "ratio": 0.125}})json"));
  CHECK_FALSE(json.contains("digest"));
  CHECK_FALSE(json.contains("timing"));
  CHECK(report_json(sample_report(), false).contains("timing"));
}

TEST_CASE("a permuted mesh gives a rank the rows of its coordinate") {
  Report report = sample_report();
  report.scenario->mesh = Mesh({4}, {"fsdp"}, {3, 2, 1, 0});
  const Json json = comparable_json(report, false);
  CHECK(json["parameters"][0]["shards"][0] ==
        parsed(R"json({"rank": 0, "offset": [6, 0], "shape": [1, 8]})json"));
  CHECK(json["parameters"][0]["sharded_group"] == parsed("[[3, 2, 1, 0]]"));
}

TEST_CASE("above 64 ranks shards and groups are folded, unless all is asked for") {
  const Json folded = comparable_json(large_report(), false);
  const Json& parameter = folded["parameters"][0];
  REQUIRE(parameter["shards"].size() == 64);
  CHECK(parameter["shards"][31] ==
        parsed(R"json({"shard": 31, "offset": [31, 0], "shape": [1, 64]})json"));
  CHECK(parameter["shards"][63] ==
        parsed(R"json({"shard": 63, "offset": [32, 0], "shape": [0, 64]})json"));
  CHECK(parameter["unsharded_group"] ==
        parsed(R"json({"mesh_dims": ["rep"], "size": 2, "count": 64, "first": [0, 64]})json"));
  CHECK(parameter["sharded_group"]["first"].size() == 64);
  CHECK(folded["collectives"][0]["groups"]["count"] == 64);

  const Json full = comparable_json(large_report(), true);
  REQUIRE(full["parameters"][0]["shards"].size() == 128);
  CHECK(full["parameters"][0]["shards"][65] ==
        parsed(R"json({"rank": 65, "offset": [1, 0], "shape": [1, 64]})json"));
  CHECK(full["parameters"][0]["unsharded_group"].size() == 64);
}

TEST_CASE("numbers: integers where integral, and words for what JSON lacks") {
  Report report = sample_report();
  report.losses = {2.0,
                   0.1,
                   -0.0,
                   std::numeric_limits<double>::quiet_NaN(),
                   -std::numeric_limits<double>::infinity(),
                   1e300};
  const Json losses = comparable_json(report, false)["losses"];
  CHECK(losses.dump() == R"json([2,0.1,0,"NaN","-Infinity",1e+300])json");
}

TEST_CASE("findings leave out what does not apply; warnings are listed twice") {
  Report report = sample_report();
  Finding warning;
  warning.code = FindingCode::VacuousBound;
  warning.severity = Severity::Warning;
  warning.check = CheckId::GradientParity;
  warning.message = "m";
  Finding scale;
  scale.code = FindingCode::GradScale;
  scale.check = CheckId::GradientParity;
  scale.param = "weight";
  scale.rank = 3;
  scale.coordinate = {3};
  scale.step = 0;
  scale.index = {6, 0};
  scale.expected = 0.25;
  scale.got = 1;
  scale.ratio = 4;
  scale.explains = {"S=4"};
  scale.message = "n";
  report.findings = {warning, scale};
  const Json json = comparable_json(report, false);
  CHECK(json["findings"] == parsed(R"json([
      {"code": "VACUOUS_BOUND", "severity": "warning", "check": "gradient-parity", "message": "m"},
      {"code": "GRAD_SCALE", "severity": "error", "check": "gradient-parity", "param": "weight",
       "rank": 3, "coordinate": [3], "step": 0, "index": [6, 0], "expected": 0.25, "got": 1,
       "ratio": 4, "explains": ["S=4"], "message": "n"}])json"));
  CHECK(json["warnings"] == Json::array({json["findings"][0]}));
}

TEST_CASE("an error report has diagnostics and no run") {
  const Error error(ErrorKind::InvalidScenario, {Diagnostic{.file = "a.json",
                                                            .line = 3,
                                                            .column = 5,
                                                            .pointer = "/mesh",
                                                            .message = "m",
                                                            .help = "h"}});
  const Json json = comparable_json(make_error_report("a.json", "gloo", error), false);
  CHECK(json["verdict"] == "error");
  CHECK(json["exit_code"] == 3);
  CHECK(json["diagnostics"] == parsed(R"json([{"file": "a.json", "line": 3, "column": 5,
                                           "pointer": "/mesh", "message": "m", "help": "h"}])json"));
  CHECK_FALSE(json.contains("parameters"));
  CHECK_FALSE(json.contains("world_size"));
}

TEST_CASE("JSON text keeps short values on one line and parses back") {
  CHECK(json_text(parsed(R"json({"a": [1, 2], "b": {}, "c": "x\"y"})json")) ==
        "{\"a\": [1, 2], \"b\": {}, \"c\": \"x\\\"y\"}\n");
  const std::string long_word(90, 'x');
  CHECK(json_text(Json{{"a", {1, 2}}, {"b", long_word}}) ==
        "{\n  \"a\": [1, 2],\n  \"b\": \"" + long_word + "\"\n}\n");
  const Json json = report_json(large_report(), true);
  const std::string text = json_text(json);
  CHECK(Json::parse(text) == json);
  std::size_t longest = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = text.find('\n', begin);
    longest = std::max(longest, end - begin);
    begin = end + 1;
  }
  CHECK(longest <= 100);
  CHECK(json_text(Json("\xff")) == "\"\xef\xbf\xbd\"\n");
}

}  // namespace
}  // namespace hpsim
