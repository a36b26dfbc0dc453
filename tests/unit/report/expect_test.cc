#include "report/expect.h"

#include <limits>
#include <nlohmann/json.hpp>

#include "support/catch.h"

namespace hpsim {
namespace {

/// A report as the format describes it, small enough to see every leaf.
nlohmann::ordered_json small_report() {
  return nlohmann::ordered_json::parse(R"json({
    "report": 1, "backend": "local", "world_size": 2, "verdict": "pass", "findings": [],
    "parameters": [
      {"name": "w", "global_shape": [3, 2], "placements": {"sharded": ["Shard(0)"]},
       "shards": [{"rank": 0, "offset": [0, 0]}, {"rank": 1, "offset": [2, 0]}]
},
      {"name": "a/b~c", "global_shape": [4], "placements": {"sharded": ["Replicate"]}}],
    "collectives": [
      {"op": "all_gather", "phase": "forward", "step": 0},
      {"op": "all_gather", "phase": "backward", "step": 0},
      {"op": "reduce_scatter", "phase": "backward", "step": 0},
      {"op": "all_reduce", "phase": "optimizer", "step": 0},
      {"op": "all_to_all", "phase": "forward", "step": 1},
      {"op": "all_to_all", "phase": "backward", "step": 1},
      {"op": "all_gather", "phase": "forward", "step": 1},
      {"op": "reduce_scatter", "phase": "backward", "step": 1}],
    "losses": [0.5, 0.25], "baseline_losses": [0.5, 0.25], "grad_norms": [1, 2],
    "ledger": {
  "padding" : {
    "peak" : 8, "after_step" : [ 8, 8 ]
  }
}
})json");
}

const ExpectBounds kBounds{
    .has_numbers = true, .losses = {0.03125, 0.03125}, .grad_norms = {0, 0.25}};

struct Row {
  const char* expect;
  std::int64_t compared;
  std::vector<std::string> pointers;  ///< of the findings
};

TEST_CASE("expect is a subset of the report") {
  const std::vector<Row> rows = {
      {R"json({"backend": "local"})json", 1, {}},
      {R"json({"backend": "gloo"})json", 1, {"/expect/backend"}},
      {R"json({"world_size": 2, "verdict": "pass"})json", 2, {}},
      {R"json({"world_size": 2.0})json", 1, {}},
      {R"json({"world_size": "2"})json", 1, {"/expect/world_size"}},
      {R"json({"world_size": 3, "backend": "gloo"})json",
       2,
       {"/expect/world_size", "/expect/backend"}},
      {R"json({"world_sise": 2})json", 1, {"/expect/world_sise"}},
      {R"json({"findings": []})json", 1, {}},
      {R"json({"findings": [{}]})json", 1, {"/expect/findings"}},
      {R"json({"findings": {}})json", 1, {"/expect/findings"}},
      {R"json({"ledger": {"padding": {"after_step": [8, 9]}}})json",
       2,
       {"/expect/ledger/padding/after_step/1"}},
      {R"json({"ledger": {"padding": {"after_step": [8]}}})json",
       1,
       {"/expect/ledger/padding/after_step"}},
      {R"json({"ledger": {"pad": {}}})json", 1, {"/expect/ledger/pad"}},
      {"{}", 0, {"/expect"}},
      {R"json({"ledger": {"padding": {}}})json", 0, {"/expect"}},
  };
  for (const Row& row : rows) {
    CAPTURE(row.expect);
    const ExpectResult result = check_expect(row.expect, small_report(), kBounds);
    REQUIRE(result.check);
    CHECK(result.check->compared == row.compared);
    CHECK(result.check->passed == row.pointers.empty());
    std::vector<std::string> pointers;
    for (const Finding& finding : result.findings) {
      pointers.push_back(finding.pointer);
      CHECK(finding.code == FindingCode::Expect);
      CHECK(finding.message.rfind(finding.pointer + ": ", 0) == 0);
    }
    CHECK(pointers == row.pointers);
  }
}

TEST_CASE("entries of parameters are matched by name") {
  const std::vector<Row> rows = {
      {R"json({"parameters": [{"name": "a/b~c", "global_shape": [4]}]})json", 2, {}},
      {R"json({"parameters": [{"name": "a/b~c", "global_shape": [5]}]})json",
       2,
       {"/expect/parameters/0/global_shape/0"}},
      {R"json({"parameters": [{"name": "a/b~c", "global_shape": [4]},
                          {"name": "w", "placements": {"sharded": ["Replicate"]}}]})json",
       4,
       {"/expect/parameters/1/placements/sharded/0"}},
      {R"json({"parameters": [{"name": "w", "shards": [{"rank": 0}]}]})json",
       2,
       {"/expect/parameters/0/shards"}},
      {R"json({"parameters": [{"name": "w", "shards": [{"offset": [0, 0]}, {"offset": [3, 0]}]}]})json",
       5,
       {"/expect/parameters/0/shards/1/offset/0"}},
      {R"json({"parameters": [{"name": "v"}]})json", 1, {"/expect/parameters/0/name"}},
      {R"json({"parameters": [{"global_shape": [4]}]})json", 1, {"/expect/parameters/0"}},
      {R"json({"parameters": []})json", 1, {"/expect/parameters"}},
      {R"json({"parameters": {"w": {}}})json", 1, {"/expect/parameters"}},
      {R"json({"parameters": [{"name": "w", "x/y~z": 1}]})json",
       2,
       {"/expect/parameters/0/x~1y~0z"}},
  };
  for (const Row& row : rows) {
    CAPTURE(row.expect);
    const ExpectResult result = check_expect(row.expect, small_report(), kBounds);
    REQUIRE(result.check);
    CHECK(result.check->compared == row.compared);
    std::vector<std::string> pointers;
    for (const Finding& finding : result.findings)
      pointers.push_back(finding.pointer);
    CHECK(pointers == row.pointers);
  }
}

TEST_CASE("counts are compared in every step, by phase") {
  struct CountRow {
    const char* expect;
    std::vector<std::pair<std::int64_t, double>> got;  ///< step and count of each finding
  };
  const std::vector<CountRow> rows = {
      {R"json({"counts": {"reduce_scatter": 1, "all_reduce": 0}})json", {}},
      {R"json({"counts": {"all_gather": 2}})json", {{1, 1}}},
      {R"json({"counts": {"all_gather": 1}})json", {{0, 2}}},
      {R"json({"counts": {"all_reduce": 1}})json", {{0, 0}, {1, 0}}},
      {R"json({"counts": {"all_to_all": 2}})json", {{0, 0}}},
      {R"json({"counts": {"all_to_all": 0}})json", {{1, 2}}},
      {R"json({"optimizer_counts": {"all_to_all": 0}})json", {}},
      {R"json({"optimizer_counts": {"all_reduce": 1}})json", {{1, 0}}},
      {R"json({"optimizer_counts": {"all_gather": 0}})json", {}},
  };
  for (const CountRow& row : rows) {
    CAPTURE(row.expect);
    const ExpectResult result = check_expect(row.expect, small_report(), kBounds);
    REQUIRE(result.findings.size() == row.got.size());
    for (std::size_t i = 0; i < row.got.size(); ++i) {
      CHECK(result.findings[i].step == row.got[i].first);
      CHECK(result.findings[i].got == row.got[i].second);
    }
  }
  const ExpectResult unknown =
      check_expect(R"json({"counts": {"all_gathr": 1}})json", small_report(), kBounds);
  REQUIRE(unknown.findings.size() == 1);
  CHECK(unknown.findings[0].message ==
        "/expect/counts/all_gathr: no collective is named \"all_gathr\"; did you mean "
        "\"all_gather\"?");
  CHECK(check_expect(R"json({"counts": 3})json", small_report(), kBounds).findings.size() == 1);
}

TEST_CASE("losses and norms may be off by their bound, no more") {
  const std::vector<Row> rows = {
      {R"json({"losses": [0.5, 0.25]})json", 2, {}},
      {R"json({"losses": [0.53125, 0.28125]})json", 2, {}},
      {R"json({"losses": [0.5, 0.2813]})json", 2, {"/expect/losses/1"}},
      {R"json({"losses": [0.5]})json", 1, {"/expect/losses"}},
      {R"json({"losses": ["x", 0.25]})json", 2, {"/expect/losses/0"}},
      {R"json({"baseline_losses": [0.48, 0.25]})json", 2, {}},
      {R"json({"grad_norms": [1, 2.25]})json", 2, {}},
      {R"json({"grad_norms": [1.001, 2]})json", 2, {"/expect/grad_norms/0"}},
      {R"json({"losses": 0.5})json", 1, {"/expect/losses"}},
  };
  for (const Row& row : rows) {
    CAPTURE(row.expect);
    const ExpectResult result = check_expect(row.expect, small_report(), kBounds);
    CHECK(result.check->compared == row.compared);
    std::vector<std::string> pointers;
    for (const Finding& finding : result.findings)
      pointers.push_back(finding.pointer);
    CHECK(pointers == row.pointers);
  }
}

TEST_CASE("a bound that is large beside the number it bounds fails, however near the numbers are") {
  const double infinity = std::numeric_limits<double>::infinity();
  for (const double bound : {0.0626, 1.0, infinity}) {
    const ExpectBounds bounds{.has_numbers = true, .losses = {bound, bound}, .grad_norms = {}};
    const ExpectResult result =
        check_expect(R"json({"losses": [0.5001, 0.25]})json", small_report(), bounds);
    CHECK_FALSE(result.check->passed);
    REQUIRE(result.findings.size() == 1);
    CHECK(result.findings[0].code == FindingCode::VacuousBound);
    CHECK(result.findings[0].step == 0);
  }
}

TEST_CASE("without numbers, what needs them is named and left out") {
  const ExpectBounds none{.has_numbers = false};
  const ExpectResult losses =
      check_expect(R"json({"losses": [0.5], "digest": "x"})json", small_report(), none);
  CHECK_FALSE(losses.check);
  CHECK(losses.findings.empty());
  CHECK(losses.not_compared == std::vector<std::string>{"losses", "digest"});

  const ExpectResult both =
      check_expect(R"json({"losses": [0.5], "world_size": 3})json", small_report(), none);
  REQUIRE(both.check);
  CHECK_FALSE(both.check->passed);
  CHECK(both.check->compared == 1);

  // A warning of numbers is never given; the others are compared.
  nlohmann::ordered_json report = small_report();
  report["warnings"] =
      nlohmann::ordered_json::array({{{"code", "SPEC_DISAGREES"}, {"param", "w"}}});
  const ExpectResult warnings = check_expect(
      R"json({"warnings": [{"code": "SPEC_DISAGREES"}, {"code": "LOCAL_MEAN", "step": 0}]})json",
      report, none);
  REQUIRE(warnings.check);
  CHECK(warnings.check->passed);
  CHECK(warnings.not_compared == std::vector<std::string>{"warning LOCAL_MEAN"});

  const ExpectResult missing =
      check_expect(R"json({"warnings": [{"code": "LOCAL_MEAN"}]})json", report, none);
  REQUIRE(missing.check);
  CHECK_FALSE(missing.check->passed);
}

TEST_CASE("a mismatch shows both values and the parameter") {
  const ExpectResult result = check_expect(
      R"json({"parameters": [{"name": "w", "placements": {"sharded": ["Replicate"]}}]})json",
      small_report(), kBounds);
  REQUIRE(result.findings.size() == 1);
  CHECK(result.findings[0].param == "w");
  CHECK(result.findings[0].message ==
        "/expect/parameters/0/placements/sharded/0: expected \"Replicate\", got \"Shard(0)\"");
  CHECK_FALSE(result.findings[0].expected);

  const ExpectResult numbers =
      check_expect(R"json({"world_size": 3})json", small_report(), kBounds);
  REQUIRE(numbers.findings.size() == 1);
  CHECK(numbers.findings[0].expected == 3.0);
  CHECK(numbers.findings[0].got == 2.0);
}

}  // namespace
}  // namespace hpsim
