#include "shrink/shrink.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "scenario/json_text.h"
#include "scenario/parse.h"
#include "support/catch.h"

namespace hpsim {
namespace {

using Predicate = std::function<bool(const Scenario&)>;

std::string transformer() {
  std::ifstream file(HPSIM_SOURCE_DIR "/scenarios/transformer/train_tp_2_sp_adamw.json");
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

ShrinkResult shrunk(const std::string& text, const Predicate& fails_alike,
                    std::int64_t most_runs = 100000) {
  std::int64_t num_runs = 0;
  const ShrinkHooks hooks{.fails_alike =
                              [&](const Scenario& scenario) {
                                ++num_runs;
                                return fails_alike(scenario);
                              },
                          .has_time = [&] { return num_runs < most_runs; },
                          .on_run = [](std::int64_t, std::int64_t) {}};
  const JsonText source(text, "large.json");
  ShrinkResult result = shrink(source.root(), "large.json", hooks);
  CHECK(result.runs == num_runs);
  return result;
}

bool has_mean_over_two(const Scenario& scenario) {
  return scenario.num_data_ranks() >= 2;
}

TEST_CASE("what does not matter goes: two ranks and one module are left") {
  const ShrinkResult result = shrunk(transformer(), has_mean_over_two);
  CHECK(result.is_minimal);
  // A mesh of two data ranks; of the model the smallest module that has a parameter.
  const Scenario scenario = parse_scenario(result.text, "small.json");
  CHECK(scenario.mesh.num_ranks() == 2);
  CHECK(scenario.mesh.num_dims() == 1);
  CHECK(scenario.model.modules.size() == 1);
  CHECK(scenario.training.steps == 1);
  CHECK(nlohmann::json::parse(result.text).size() <= 4);  // hpsim, mesh, model, data
}

TEST_CASE("what matters stays: three steps, and a head of its own on each of two tp ranks") {
  const ShrinkResult result = shrunk(transformer(), [](const Scenario& scenario) {
    return scenario.training.steps >= 3 && scenario.mesh.num_ranks() >= 2 &&
           std::any_of(scenario.parameters.begin(), scenario.parameters.end(),
                       [](const ParameterSpec& each) {
                         return each.name.find("wk.weight") != std::string::npos;
                       });
  });
  const nlohmann::json json = nlohmann::json::parse(result.text);
  CHECK(json.at("training") == nlohmann::json::parse(R"({"steps": 3})"));
  CHECK(json.at("mesh").at("shape") == nlohmann::json::parse("[2]"));
  CHECK(json.at("model").size() == 1);
  CHECK(json.at("model").at(0) ==
        nlohmann::json::parse(R"({"type": "attention", "dim": 1, "heads": 1})"));
}

TEST_CASE("the same scenario and the same answers give the same bytes") {
  const ShrinkResult first = shrunk(transformer(), has_mean_over_two);
  const ShrinkResult second = shrunk(transformer(), has_mean_over_two);
  CHECK(first.text == second.text);
  CHECK(first.change == second.change);
  CHECK(first.runs == second.runs);
}

TEST_CASE("the smallest scenario cannot be made smaller, and is given back") {
  const ShrinkResult small = shrunk(transformer(), has_mean_over_two);
  const ShrinkResult again = shrunk(small.text, has_mean_over_two);
  CHECK(again.is_minimal);
  CHECK(again.text == small.text);
  CHECK(again.change.empty());
}

TEST_CASE("without time for another run the best so far is given") {
  const ShrinkResult some = shrunk(transformer(), has_mean_over_two, 3);
  CHECK_FALSE(some.is_minimal);
  CHECK(some.runs == 3);
  CHECK(some.text.size() > shrunk(transformer(), has_mean_over_two).text.size());
  CHECK_NOTHROW(parse_scenario(some.text, "some.json"));
  const ShrinkResult none = shrunk(transformer(), has_mean_over_two, 0);
  CHECK(none.runs == 0);
  CHECK(none.text == JsonText(transformer(), "large.json").root().dump());
}

TEST_CASE("every scenario that is run is valid and no text is run twice") {
  std::vector<std::string> hashes;
  const ShrinkResult result = shrunk(transformer(), [&](const Scenario& scenario) {
    hashes.push_back(*scenario.source);
    return has_mean_over_two(scenario);
  });
  const std::size_t count = hashes.size();
  CHECK(count == static_cast<std::size_t>(result.runs));
  std::sort(hashes.begin(), hashes.end());
  hashes.erase(std::unique(hashes.begin(), hashes.end()), hashes.end());
  CHECK(hashes.size() == count);
}

TEST_CASE("parameters, lists and shapes of a layout shrink too") {
  const ShrinkResult result = shrunk(
      R"({"hpsim": 1, "mesh": {"shape": [2, 8], "mesh_dim_names": ["rep", "fsdp"]},
          "parameters": {"a": [7, 8], "b": {"shape": [16, 4, 2], "frozen": false}, "c": [9]},
          "data": {"seed": 5}, "fully_shard": {"units": ["a", "b"], "replicate_params": ["c"]}})",
      [](const Scenario& scenario) {
        return std::any_of(
            scenario.parameters.begin(), scenario.parameters.end(),
            [](const ParameterSpec& each) { return each.name == "b" && each.shape[0] >= 3; });
      });
  CHECK(nlohmann::json::parse(result.text) ==
        nlohmann::json::parse(
            R"({"hpsim": 1, "mesh": {"shape": [1], "mesh_dim_names": ["rep"]},
          "parameters": {"b": {"shape": [3]}}, "data": {"seed": 5}})"));
}

}  // namespace
}  // namespace hpsim
