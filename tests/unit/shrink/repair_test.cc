#include "shrink/repair.h"

#include <nlohmann/json.hpp>

#include "support/catch.h"

namespace hpsim {
namespace {

using Json = nlohmann::ordered_json;

std::vector<Diagnostic> at(const std::vector<std::string>& pointers) {
  std::vector<Diagnostic> diagnostics;
  for (const std::string& pointer : pointers)
    diagnostics.push_back({.pointer = pointer, .message = "refused"});
  return diagnostics;
}

const char* const kScenario =
    R"x({"hpsim": 1, "mesh": {"shape": [2], "mesh_dim_names": ["tp"]},
    "parameters": {"w": {"shape": [3], "placements": {"tp": "Shard(0)"}}},
    "data": {"data_dims": ["a", "b", "c"]}, "training": {"frozen": ["x"]}})x";

TEST_CASE("what is refused is left out, elements of one list from the back") {
  Json scenario = Json::parse(kScenario);
  CHECK(
      leave_out_refused(scenario, at({"/data/data_dims/0", "/data/data_dims/2", "/data/data_dims/0",
                                      "/parameters/w/placements/tp", "/training"})));
  CHECK(scenario == Json::parse(R"({"hpsim": 1, "mesh": {"shape": [2], "mesh_dim_names": ["tp"]},
      "parameters": {"w": {"shape": [3], "placements": {}}}, "data": {"data_dims": ["b"]}})"));
}

TEST_CASE("a value and what is in it go together") {
  Json scenario = Json::parse(kScenario);
  CHECK(leave_out_refused(scenario, at({"/data", "/data/data_dims/1"})));
  CHECK_FALSE(scenario.contains("data"));
}

TEST_CASE("what every scenario has is not left out, and nothing else then either") {
  for (const char* pointer : {"", "/hpsim", "/mesh", "/mesh/shape", "/mesh/shape/0",
                              "/mesh/mesh_dim_names/0", "/model", "/parameters", "/no/such"}) {
    Json scenario = Json::parse(kScenario);
    CAPTURE(pointer);
    CHECK_FALSE(leave_out_refused(scenario, at({"/training", pointer})));
    CHECK(scenario == Json::parse(kScenario));
  }
}

}  // namespace
}  // namespace hpsim
