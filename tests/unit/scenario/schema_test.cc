#include "scenario/schema.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <valijson/adapters/nlohmann_json_adapter.hpp>
#include <valijson/schema.hpp>
#include <valijson/schema_parser.hpp>
#include <valijson/validator.hpp>

#include "scenario/parse.h"
#include "scenario/type_expr.h"
#include "scenario_text.h"
#include "support/catch.h"

namespace hpsim {
namespace {

class SchemaValidator {
 public:
  SchemaValidator() : document_(nlohmann::json::parse(schema_json())) {
    valijson::SchemaParser parser(valijson::SchemaParser::kDraft7);
    parser.populateSchema(valijson::adapters::NlohmannJsonAdapter(document_), schema_);
  }

  bool accepts(const std::string& text) {
    const auto scenario = nlohmann::json::parse(text, nullptr, true, /*ignore_comments=*/true);
    valijson::Validator validator;
    return validator.validate(schema_, valijson::adapters::NlohmannJsonAdapter(scenario), nullptr);
  }

 private:
  nlohmann::json document_;
  valijson::Schema schema_;
};

TEST_CASE("the schema next to the scenarios is the schema that hpsim prints") {
  CHECK(read_file("scenarios/scenario.schema.json") == schema_json());
}

/// The folders of shipped scenarios, "fsdp", "hsdp", ...
std::vector<std::string> shipped_folders() {
  std::vector<std::string> folders;
  for (const auto& entry : std::filesystem::directory_iterator("scenarios")) {
    if (entry.is_directory() && entry.path().filename() != "invalid")
      folders.push_back(entry.path().filename().string());
  }
  return folders;
}

TEST_CASE("every shipped scenario satisfies the schema and the reader") {
  SchemaValidator validator;
  int checked = 0;
  for (const std::string& folder : shipped_folders()) {
    for (const std::string& name : files_in("scenarios/" + folder, ".json")) {
      const std::string path = "scenarios/" + folder + "/" + name;
      INFO(path);
      const std::string text = read_file(path);
      CHECK(validator.accepts(text));
      const Scenario scenario = parse_scenario(text, path);
      CHECK(scenario.name + ".json" == name);
      CHECK_FALSE(scenario.description.empty());
      CHECK_FALSE(scenario.expect.empty());
      ++checked;
    }
  }
  CHECK(checked >= 100);
}

TEST_CASE("every shipped scenario is listed in the readme once") {
  const std::string readme = read_file("scenarios/README.md");
  for (const std::string& folder : shipped_folders()) {
    for (const std::string& name : files_in("scenarios/" + folder, ".json")) {
      const std::string entry = "`" + folder + "/" + name + "`";
      INFO(entry);
      const std::size_t first = readme.find(entry);
      CHECK(first != std::string::npos);
      CHECK(readme.find(entry, first + 1) == std::string::npos);
    }
  }
}

TEST_CASE("the schema refuses what the reader refuses for its type") {
  SchemaValidator validator;
  CHECK(validator.accepts(minimal_with("")));
  for (const char* members : {
           R"("trainning": {})",
           R"("training": {"steps": 0})",
           R"("training": {"steps": "1"})",
           R"("training": {"optimizer": {"name": "adam", "momentum": 0.9}})",
           R"("training": {"optimizer": {"name": "adam", "betas": [0.9, 1]}})",
           R"("training": {"optimizer": {"lr": 0.1}})",
           R"("fully_shard": {"reduce_op": "mean"})",
           R"("fully_shard": {"gradient_divide_factor": 0})",
           R"("data": {"seed": -1})",
           R"("data": {"init": {"max": 2}})",
           R"("numerics": {"mode": {"rtol": 1}})",
           R"("model": [{"type": "linear", "in_features": 2}])",
           R"("model": [{"type": "residual", "modules": [{"type": "linear"}]}])",
           R"("expect": [])",
       }) {
    INFO(members);
    CHECK_FALSE(validator.accepts(minimal_with(members)));
    CHECK_FALSE(diagnostics_of(minimal_with(members)).empty());
  }
  CHECK_FALSE(validator.accepts(R"({"hpsim": 1, "parameters": {"weight": [7, 8]}})"));
  CHECK_FALSE(validator.accepts(on_mesh("[0]", R"(["fsdp"])")));
  CHECK_FALSE(validator.accepts("[]"));
}

TEST_CASE("the schema knows the policies of training, and so does the reader") {
  SchemaValidator validator;
  for (
      const char* members : {
          R"("training": {"micro_batches": 3, "clip_grad_norm": {"max_norm": 1, "norm_type": "inf"}})",
          R"("training": {"micro_batches": 2, "requires_all_reduce": [false, true], "frozen": []})",
          R"("fully_shard": {"reshard_after_forward": 2, "mp_policy": {"param_dtype": "bfloat16"}})",
          R"("fully_shard": {"forward_prefetch": 2, "backward_prefetch": 1, "reshard_after_forward": null})",
          R"("data": {"inactive": [{"params": ["weight"]}]}, "training": {"reduce_unused": true})",
          R"("numerics": {"dtype": "float16", "parameter_dtypes": {"*": "float64"}})",
      }) {
    INFO(members);
    CHECK(validator.accepts(minimal_with(members)));
    CHECK_NOTHROW(parsed(minimal_with(members)));
  }
}

TEST_CASE("the schema knows the whole format, also what is not supported yet") {
  SchemaValidator validator;
  for (
      const char* members : {
          R"("training": {"checkpoint": {"save_at": 1, "resume_on": {"shape": [2], "mesh_dim_names": ["fsdp"]}}})",
          R"("numerics": {"dtype": "float16", "mode": {"rtol": 1e-5, "atol": 0}})",
          R"("model": [{"type": "repeat", "count": 2, "module": {"type": "residual", "modules": [{"type": "mlp", "dim": 8, "hidden": 16}]}}])",
      }) {
    INFO(members);
    CHECK(validator.accepts(minimal_with(members)));
    CHECK_THAT(messages_of(minimal_with(members)),
               Catch::StartsWith("not supported yet: ") || Catch::StartsWith("both "));
  }
}

TEST_CASE("every row of the key table is well formed") {
  std::set<std::pair<std::string_view, std::string_view>> seen;
  for (const KeySpec& key : all_keys()) {
    INFO(key.object << " " << key.key);
    CHECK(seen.emplace(key.object, key.key).second);
    CHECK_FALSE(key.meaning.empty());
    const TypeExpr type = parse_type(key.type);
    if (key.fallback.empty()) continue;
    CHECK(key.presence != Presence::Required);
    const Json fallback = Json::parse(key.fallback);
    CHECK(std::any_of(type.begin(), type.end(),
                      [&](const auto& option) { return matches(fallback, option); }));
  }
}

}  // namespace
}  // namespace hpsim
