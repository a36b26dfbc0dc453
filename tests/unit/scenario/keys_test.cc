#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "scenario/json_text.h"
#include "scenario/schema.h"
#include "scenario/type_expr.h"
#include "scenario_text.h"
#include "support/catch.h"

namespace hpsim {
namespace {

/// A scenario of which `{}` is replaced by one more member of an object of this type.
const std::map<std::string_view, std::string_view> kPlaces = {
    {"Scenario", R"({"hpsim": 1, "mesh": {"shape": [4], "mesh_dim_names": ["fsdp"]},
"parameters": {"weight": [7, 8]},
@
})"},
    {"Mesh", R"({"hpsim": 1, "mesh": {
@
}, "parameters": {"weight": [7, 8]}})"},
    {"Roles", R"({"hpsim": 1, "mesh": {"shape": [4], "mesh_dim_names": ["fsdp"]}, "roles": {
@
}, "parameters": {"weight": [7, 8]}})"},
    {"Elementwise", R"({"hpsim": 1, "mesh": {"shape": [4], "mesh_dim_names": ["fsdp"]},
"parameters": {"weight": {"shape": [7, 8],
@
}}})"},
    {"Module", R"({"hpsim": 1, "mesh": {"shape": [4], "mesh_dim_names": ["fsdp"]},
"model": [{"type": "linear", "in_features": 2, "out_features": 2,
@
}]})"},
    {"Module.linear", R"({"hpsim": 1, "mesh": {"shape": [4], "mesh_dim_names": ["fsdp"]},
"model": [{"type": "linear",
@
}]})"},
    {"Module.gelu", R"({"hpsim": 1, "mesh": {"shape": [4], "mesh_dim_names": ["fsdp"]},
"model": [{"type": "linear", "in_features": 2, "out_features": 2}, {"type": "gelu",
@
}]})"},
    {"Module.layer_norm", R"({"hpsim": 1, "mesh": {"shape": [4], "mesh_dim_names": ["fsdp"]},
"model": [{"type": "layer_norm",
@
}]})"},
    {"Module.rms_norm", R"({"hpsim": 1, "mesh": {"shape": [4], "mesh_dim_names": ["fsdp"]},
"model": [{"type": "rms_norm",
@
}]})"},
    {"Module.embedding", R"({"hpsim": 1, "mesh": {"shape": [4], "mesh_dim_names": ["fsdp"]},
"model": [{"type": "embedding",
@
}]})"},
    {"Module.attention", R"({"hpsim": 1, "mesh": {"shape": [4], "mesh_dim_names": ["fsdp"]},
"model": [{"type": "attention",
@
}]})"},
    {"Module.mlp", R"({"hpsim": 1, "mesh": {"shape": [4], "mesh_dim_names": ["fsdp"]},
"model": [{"type": "mlp",
@
}]})"},
    {"Module.residual", R"({"hpsim": 1, "mesh": {"shape": [4], "mesh_dim_names": ["fsdp"]},
"model": [{"type": "residual",
@
}]})"},
    {"Module.sequential", R"({"hpsim": 1, "mesh": {"shape": [4], "mesh_dim_names": ["fsdp"]},
"model": [{"type": "sequential",
@
}]})"},
    {"Module.repeat", R"({"hpsim": 1, "mesh": {"shape": [4], "mesh_dim_names": ["fsdp"]},
"model": [{"type": "repeat",
@
}]})"},
    {"FullyShard", R"({"hpsim": 1, "mesh": {"shape": [4], "mesh_dim_names": ["fsdp"]},
"parameters": {"weight": [7, 8]}, "fully_shard": {
@
}})"},
    {"MpPolicy", R"({"hpsim": 1, "mesh": {"shape": [4], "mesh_dim_names": ["fsdp"]},
"parameters": {"weight": [7, 8]}, "fully_shard": {"mp_policy": {
@
}}})"},
    {"Training", R"({"hpsim": 1, "mesh": {"shape": [4], "mesh_dim_names": ["fsdp"]},
"parameters": {"weight": [7, 8]}, "training": {
@
}})"},
    {"Optimizer.sgd", R"({"hpsim": 1, "mesh": {"shape": [4], "mesh_dim_names": ["fsdp"]},
"parameters": {"weight": [7, 8]}, "training": {"optimizer": {"name": "sgd",
@
}}})"},
    {"Optimizer.adam", R"({"hpsim": 1, "mesh": {"shape": [4], "mesh_dim_names": ["fsdp"]},
"parameters": {"weight": [7, 8]}, "training": {"optimizer": {"name": "adam",
@
}}})"},
    {"Optimizer.adamw", R"({"hpsim": 1, "mesh": {"shape": [4], "mesh_dim_names": ["fsdp"]},
"parameters": {"weight": [7, 8]}, "training": {"optimizer": {"name": "adamw",
@
}}})"},
    {"Data", R"({"hpsim": 1, "mesh": {"shape": [4], "mesh_dim_names": ["fsdp"]},
"parameters": {"weight": [7, 8]}, "data": {
@
}})"},
    {"Fill.uniform", R"({"hpsim": 1, "mesh": {"shape": [4], "mesh_dim_names": ["fsdp"]},
"parameters": {"weight": [7, 8]}, "data": {"input": {"kind": "uniform",
@
}}})"},
    {"Fill.integer", R"({"hpsim": 1, "mesh": {"shape": [4], "mesh_dim_names": ["fsdp"]},
"parameters": {"weight": [7, 8]}, "data": {"input": {"kind": "integer",
@
}}})"},
    {"Fault", R"({"hpsim": 1, "mesh": {"shape": [4], "mesh_dim_names": ["fsdp"]},
"parameters": {"weight": [7, 8]}, "faults": [{"fault": "kill", "ranks": [0],
@
}]})"},
    {"ClipGradNorm", R"({"hpsim": 1, "mesh": {"shape": [4], "mesh_dim_names": ["fsdp"]},
"parameters": {"weight": [7, 8]}, "training": {"clip_grad_norm": {
@
}}})"},
    {"Inactive", R"({"hpsim": 1, "mesh": {"shape": [4], "mesh_dim_names": ["fsdp"]},
"parameters": {"weight": [7, 8]}, "data": {"inactive": [{
@
}]}})"},
    {"Numerics", R"({"hpsim": 1, "mesh": {"shape": [4], "mesh_dim_names": ["fsdp"]},
"parameters": {"weight": [7, 8]}, "numerics": {
@
}})"},
};

std::string placed(std::string_view object, const std::string& member) {
  std::string text(kPlaces.at(object));
  text.replace(text.find('@'), 1, member);
  return text;
}

std::int64_t line_of_member(std::string_view object) {
  const std::string_view text = kPlaces.at(object);
  return 1 + std::count(text.begin(), text.begin() + static_cast<long>(text.find('@')), '\n');
}

/// Keys that the places above give themselves cannot be given again.
bool is_taken(const KeySpec& key) {
  return kPlaces.at(key.object).find(fmt::format("\"{}\":", key.key)) != std::string_view::npos;
}

Json wrong_value(const TypeExpr& type) {
  for (const char* text : {"true", "-1.5", "\"~\"", "[[[]]]", "{\"~\": 0}"}) {
    Json value = Json::parse(text);
    if (std::none_of(type.begin(), type.end(),
                     [&](const auto& alternative) { return matches(value, alternative); })) {
      return value;
    }
  }
  return nullptr;
}

bool has_diagnostic(const std::vector<Diagnostic>& diagnostics, std::string_view key,
                    std::string_view message, std::int64_t line) {
  return std::any_of(diagnostics.begin(), diagnostics.end(), [&](const Diagnostic& diagnostic) {
    return diagnostic.pointer.ends_with(fmt::format("/{}", key)) && diagnostic.line == line &&
           diagnostic.message.starts_with(message);
  });
}

TEST_CASE("every key of a supported object refuses values of a wrong type, where they stand") {
  int checked = 0;
  for (const KeySpec& key : all_keys()) {
    if (kPlaces.count(key.object) == 0 || is_taken(key)) continue;
    const TypeExpr type = parse_type(key.type);
    const std::string member = fmt::format("\"{}\": {}", key.key, wrong_value(type).dump());
    INFO(key.object << " " << member);
    const auto diagnostics = diagnostics_of(placed(key.object, member));
    CHECK(has_diagnostic(diagnostics, key.key, "expected " + describe(type) + ", found ",
                         line_of_member(key.object)));
    ++checked;
  }
  CHECK(checked > 100);
}

TEST_CASE("every misspelt key is refused with the key that was meant") {
  for (const KeySpec& key : all_keys()) {
    if (kPlaces.count(key.object) == 0 || key.key.size() < 4) continue;
    std::string misspelt(key.key);
    std::swap(misspelt[1], misspelt[2]);
    if (misspelt == key.key) misspelt.erase(1, 1);
    INFO(key.object << " " << misspelt);
    const auto diagnostics = diagnostics_of(placed(key.object, fmt::format("\"{}\": 1", misspelt)));
    const auto found =
        std::find_if(diagnostics.begin(), diagnostics.end(), [&](const Diagnostic& diagnostic) {
          return diagnostic.message == fmt::format("unknown key \"{}\"", misspelt);
        });
    REQUIRE(found != diagnostics.end());
    CHECK(found->help == fmt::format("did you mean \"{}\"?", key.key));
    CHECK(found->line == line_of_member(key.object));
    CHECK(found->column == 1);
  }
}

TEST_CASE("a key that is not supported yet may have its default") {
  int checked = 0;
  for (const KeySpec& key : all_keys()) {
    if (key.presence != Presence::NotYet || kPlaces.count(key.object) == 0) continue;
    if (key.fallback.empty()) continue;
    const std::string member = fmt::format("\"{}\": {}", key.key, key.fallback);
    INFO(key.object << " " << member);
    CHECK_NOTHROW(parsed(placed(key.object, member)));
    ++checked;
  }
  CHECK(checked == 2);  // of Training
}

TEST_CASE("harmless ways to write a default are accepted together") {
  CHECK_NOTHROW(parsed(minimal_with(
      R"("faults": [], "parallelize": {}, "roles": {"tp_dim": null}, "fully_shard": {"chunking": "ceil",)"
      R"("reshard_after_backward": true, "forward_prefetch": 0, "mp_policy": {"param_dtype": null}},)"
      R"("training": {"micro_batches": 1, "clip_grad_norm": null}, "data": {"inactive": []})")));
}

TEST_CASE("the type of a module, optimizer or fill decides which keys it has") {
  CHECK(messages_of(
            minimal_with(R"("training": {"optimizer": {"name": "adam", "momentum": 0.9}})")) ==
        "unknown key \"momentum\"\n");
  CHECK(messages_of(minimal_with(R"("data": {"init": {"kind": "uniform", "max": 2}})")) ==
        "unknown key \"max\"\n");
  CHECK(messages_of(minimal_with(R"("data": {"init": {"kind": "unifrom", "bound": 2}})")) ==
        "expected \"uniform\" or \"integer\", found \"unifrom\"\n");
}

}  // namespace
}  // namespace hpsim
