#include "shrink/reductions.h"

#include <nlohmann/json.hpp>

#include "support/catch.h"

namespace hpsim {
namespace {

using Json = nlohmann::ordered_json;
using Numbers = std::vector<std::int64_t>;
using Parts = std::vector<std::pair<std::size_t, std::size_t>>;

std::vector<Reduction> reductions_of(std::string_view kind, const Json& scenario) {
  for (const ReductionKind& each : reduction_kinds()) {
    if (each.name == kind) return each.of(scenario);
  }
  FAIL("no such kind");
  return {};
}

/// What becomes of the scenario by the reduction that says so.
Json reduced(std::string_view kind, const Json& scenario, std::string_view what) {
  Json smaller = scenario;
  for (const Reduction& reduction : reductions_of(kind, scenario)) {
    if (reduction.what != what) continue;
    reduction.apply(smaller);
    return smaller;
  }
  FAIL("no reduction says " << what);
  return {};
}

TEST_CASE("smaller numbers: the least, 2, half, one less") {
  CHECK(smaller_numbers(16, 1) == Numbers{1, 2, 8, 15});
  CHECK(smaller_numbers(3, 1) == Numbers{1, 2});
  CHECK(smaller_numbers(2, 0) == Numbers{0, 1});
  CHECK(smaller_numbers(1, 1).empty());
  CHECK(smaller_numbers(0, 0).empty());
}

TEST_CASE("parts of a list: halves, quarters, single elements, from the back") {
  CHECK(parts_of(4) == Parts{{2, 4}, {0, 2}, {3, 4}, {2, 3}, {1, 2}, {0, 1}});
  CHECK(parts_of(1) == Parts{{0, 1}});
  CHECK(parts_of(3) == Parts{{2, 3}, {1, 2}, {0, 1}});
  CHECK(parts_of(0).empty());
}

const char* const kScenario = R"({
  "$schema": "s", "hpsim": 1, "name": "n", "description": "d",
  "mesh": {"shape": [2, 4], "mesh_dim_names": ["rep", "fsdp"], "ranks": [7, 6, 5, 4, 3, 2, 1, 0]},
  "model": [{"name": "e", "type": "embedding", "num_embeddings": 9, "embedding_dim": 8},
            {"type": "repeat", "count": 4, "module":
             {"type": "residual", "modules": [{"type": "attention", "dim": 8, "heads": 2}]}},
            {"type": "linear", "in_features": 8, "out_features": 9, "bias": false}],
  "data": {"seed": 7, "sample_shape": [5]}, "training": {"steps": 3, "frozen": ["a", "b"]},
  "expect": {"world_size": 8}})";

TEST_CASE("a mesh dim goes with its name, and the array of ranks with it") {
  const Json scenario = Json::parse(kScenario);
  CHECK(reduced("mesh", scenario, "mesh dim 0 left out")["mesh"] ==
        Json::parse(R"({"shape": [4], "mesh_dim_names": ["fsdp"]})"));
  CHECK(reduced("mesh", scenario, "/mesh/shape/1: 4 -> 2")["mesh"] ==
        Json::parse(R"({"shape": [2, 2], "mesh_dim_names": ["rep", "fsdp"]})"));
}

TEST_CASE("a module is replaced by what is in it") {
  const Json scenario = Json::parse(kScenario);
  CHECK(reduced("modules", scenario, "/model/1: what is in it")["model"][1]["type"] == "residual");
  CHECK(reduced("modules", scenario, "/model/1/count: 4 -> 1")["model"][1]["count"] == 1);
  CHECK(reduced("modules", scenario, "/model/1/module/modules/0: a linear")
            .at(Json::json_pointer("/model/1/module/modules/0")) ==
        Json::parse(R"({"type": "linear", "in_features": 8, "out_features": 8, "bias": false})"));
}

TEST_CASE("a repeat of two is written out, and the only child of a repeat's module unwrapped") {
  const Json scenario = Json::parse(R"({"model": [{"type": "repeat", "count": 2, "module":
      {"type": "sequential", "modules": [{"type": "rms_norm", "dim": 1}]}}]})");
  CHECK(reduced("modules", scenario, "/model/0: written out")["model"] ==
        Json::parse(
            R"([{"type": "sequential", "modules": [{"type": "rms_norm", "dim": 1}]},
          {"type": "sequential", "modules": [{"type": "rms_norm", "dim": 1}]}])"));
  CHECK(reduced("modules", scenario, "/model/0/module: what is in it")["model"] ==
        Json::parse(R"([{"type": "repeat", "count": 2,
                         "module": {"type": "rms_norm", "dim": 1}}])"));
}

TEST_CASE("without its embedding, a model takes features beside positions") {
  const Json got = reduced("modules", Json::parse(kScenario), "/model: modules 0 to 0 left out");
  CHECK(got["model"].size() == 2);
  CHECK(got["data"]["sample_shape"] == Json::parse("[5, 8]"));
}

TEST_CASE("a number of features changes everywhere at once") {
  const Json got = reduced("features", Json::parse(kScenario), "8 features: 2");
  CHECK(got["model"][0]["embedding_dim"] == 2);
  CHECK(got.at(Json::json_pointer("/model/1/module/modules/0/dim")) == 2);
  CHECK(got["model"][2]["in_features"] == 2);
}

TEST_CASE("the seed stays, and so does what expect says") {
  const Json scenario = Json::parse(kScenario);
  for (const ReductionKind& kind : reduction_kinds()) {
    for (const Reduction& reduction : kind.of(scenario)) {
      Json smaller = scenario;
      reduction.apply(smaller);
      CAPTURE(kind.name, reduction.what);
      CHECK(smaller.at("data").at("seed") == 7);
      if (smaller.contains("expect") && smaller["expect"].contains("world_size"))
        CHECK(smaller["expect"]["world_size"] == 8);
    }
  }
  CHECK(reduced("sections", scenario, "/data left out")["data"] == Json::parse(R"({"seed": 7})"));
}

TEST_CASE("every reduction makes the text shorter or a number smaller, and none grows") {
  const Json scenario = Json::parse(kScenario);
  std::size_t count = 0;
  for (const ReductionKind& kind : reduction_kinds()) {
    for (const Reduction& reduction : kind.of(scenario)) {
      // A linear says more than the attention that it stands for, and samples get features.
      if (reduction.what.find("a linear") != std::string::npos ||
          reduction.what == "/model: modules 0 to 0 left out")
        continue;
      Json smaller = scenario;
      reduction.apply(smaller);
      CAPTURE(kind.name, reduction.what);
      CHECK(smaller.dump().size() <= scenario.dump().size());
      ++count;
    }
  }
  CHECK(count > 40);
}

TEST_CASE("keys that must be there stay, others are left out one by one") {
  const Json scenario = Json::parse(kScenario);
  std::vector<std::string> whats;
  for (const Reduction& reduction : reductions_of("keys", scenario))
    whats.push_back(reduction.what);
  const auto has = [&](const char* what) {
    return std::find(whats.begin(), whats.end(), what) != whats.end();
  };
  CHECK(has("/training/frozen left out"));
  CHECK(has("/model/2/bias left out"));
  CHECK(has("/expect/world_size left out"));
  CHECK_FALSE(has("/hpsim left out"));
  CHECK_FALSE(has("/mesh/shape left out"));
  CHECK_FALSE(has("/model/2/type left out"));
  CHECK_FALSE(has("/data/seed left out"));
  CHECK(reduced("elements", scenario,
                "/training/frozen: elements 1 to 1 left out")["training"]["frozen"] ==
        Json::parse(R"(["a"])"));
}

}  // namespace
}  // namespace hpsim
