#include "shrink/feature_sizes.h"

#include <nlohmann/json.hpp>

#include "support/catch.h"

namespace hpsim {
namespace {

using Json = nlohmann::ordered_json;

Json fitted(const char* text) {
  Json scenario = Json::parse(text);
  fit_features(scenario);
  return scenario;
}

TEST_CASE("every module takes what the one before it gives") {
  CHECK(fitted(R"({"model": [{"type": "linear", "in_features": 4, "out_features": 6},
                             {"type": "tanh"},
                             {"type": "linear", "in_features": 5, "out_features": 2}]})") ==
        Json::parse(R"({"model": [{"type": "linear", "in_features": 4, "out_features": 6},
                                  {"type": "tanh"},
                                  {"type": "linear", "in_features": 6, "out_features": 2}]})"));
}

TEST_CASE("a residual and a repeat give what they take, by their last linear") {
  const Json got = fitted(R"({"model": [
      {"type": "linear", "in_features": 4, "out_features": 6},
      {"type": "residual", "modules": [{"type": "rms_norm", "dim": 5},
                                       {"type": "linear", "in_features": 5, "out_features": 5}]},
      {"type": "repeat", "count": 2,
       "module": {"type": "linear", "in_features": 3, "out_features": 3}}]})");
  CHECK(got["model"][1]["modules"] == Json::parse(R"([{"type": "rms_norm", "dim": 6},
                        {"type": "linear", "in_features": 6, "out_features": 6}])"));
  CHECK(got["model"][2]["module"] ==
        Json::parse(R"({"type": "linear", "in_features": 6, "out_features": 6})"));
}

TEST_CASE("the first module takes what the samples have, but for tokens") {
  CHECK(fitted(R"({"data": {"sample_shape": [5, 3]},
                   "model": [{"type": "rms_norm", "dim": 8}]})")["model"][0]["dim"] == 3);
  CHECK(fitted(R"({"data": {"sample_shape": [5]},
                   "model": [{"type": "embedding", "num_embeddings": 7, "embedding_dim": 8},
                             {"type": "rms_norm", "dim": 4}]})")["model"][1]["dim"] == 8);
}

TEST_CASE("a number of features is replaced wherever the model has it, and heads divide it") {
  Json scenario = Json::parse(R"({"data": {"sample_shape": [8, 8]}, "model": [
      {"type": "attention", "dim": 8, "heads": 4, "kv_heads": 2},
      {"type": "mlp", "dim": 8, "hidden": 10}]})");
  CHECK(feature_sizes(scenario) == std::vector<std::int64_t>{10, 8});
  replace_feature_size(scenario, 8, 6);
  // gcd(4, 6) = 2 heads, gcd(2, 2) = 2 key and value heads; the 8 positions are no features.
  CHECK(scenario == Json::parse(R"({"data": {"sample_shape": [8, 6]}, "model": [
      {"type": "attention", "dim": 6, "heads": 2, "kv_heads": 2},
      {"type": "mlp", "dim": 6, "hidden": 10}]})"));
}

TEST_CASE("a scenario without a model has no features") {
  const Json scenario = Json::parse(R"({"parameters": {"weight": [7, 8]}})");
  Json same = scenario;
  fit_features(same);
  replace_feature_size(same, 8, 1);
  CHECK(same == scenario);
  CHECK(feature_sizes(scenario).empty());
}

}  // namespace
}  // namespace hpsim
