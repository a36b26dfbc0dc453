// Trainings on ranks in float32, judged by what PyTorch computed in float64 on one process from the
// same float32 data: its numbers stand where the baseline's would, under the baseline's bounds.

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "baseline/eigen_baseline.h"
#include "exec/local.h"
#include "plan/build_plan.h"
#include "plan/verify_plan.h"
#include "scenario/parse.h"
#include "support/catch.h"
#include "verify/compare_runs.h"

namespace hpsim {
namespace {

using Json = nlohmann::ordered_json;

std::vector<Json> fixtures() {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry :
       std::filesystem::directory_iterator(HPSIM_SOURCE_DIR "/tests/data/torch")) {
    paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  std::vector<Json> all;
  for (const auto& path : paths) {
    std::ifstream file(path);
    all.push_back(Json::parse(file));
  }
  return all;
}

/// How a module of each type is parallelized, with parts of the sequence between modules or not.
std::string style_of(const std::string& type, bool has_sequence_parts) {
  if (type == "linear") return "colwise";
  if (type == "attention" || type == "mlp") return has_sequence_parts ? "rowwise_sp" : "colwise";
  if (type == "embedding") return has_sequence_parts ? "rowwise_sp" : "rowwise";
  const bool is_norm = type == "layer_norm" || type == "rms_norm";
  return is_norm && has_sequence_parts ? "sequence_parallel" : "replicate";
}

void add_styles(const Json& module, const std::string& name, bool has_sequence_parts,
                Json& styles) {
  const std::string type = module["type"];
  if (type == "repeat")
    return add_styles(module["module"], name + ".*", has_sequence_parts, styles);
  if (!module.contains("modules")) {
    const std::string style = style_of(type, has_sequence_parts);
    if (style != "replicate") styles[name] = style;
    return;
  }
  for (const Json& inner : module["modules"])
    add_styles(inner, name + "." + inner["name"].get<std::string>(), has_sequence_parts, styles);
}

/// The style of mixtures of experts.
void add_experts(const Json& module, const std::string& name, Json& styles) {
  if (module["type"] == "repeat") return add_experts(module["module"], name + ".*", styles);
  if (module["type"] == "moe") styles[name] = "expert";
  if (!module.contains("modules")) return;
  for (const Json& inner : module["modules"])
    add_experts(inner, name + "." + inner["name"].get<std::string>(), styles);
}

/// A fixture's training on meshes of its own: data-parallel, with TP and SP for models, and with EP
/// for mixtures of experts.
std::vector<Json> scenarios_of(const Json& fixture) {
  std::vector<Json> scenarios;
  const auto on = [&](const Json& shape, const Json& names) -> Json& {
    Json scenario = fixture["scenario"];
    scenario["hpsim"] = 1;
    scenario["mesh"] = {{"shape", shape}, {"mesh_dim_names", names}};
    scenario["fully_shard"]["units"] = Json::array();  // a tied weight lies in one unit
    scenarios.push_back(std::move(scenario));
    return scenarios.back();
  };
  on({1}, {"fsdp"});
  on({2, 2}, {"dp_replicate", "fsdp"});
  if (!fixture["scenario"].contains("model")) return scenarios;
  const bool has_sequence =
      fixture["scenario"].contains("data") && fixture["scenario"]["data"].contains("sample_shape");
  for (const bool has_sequence_parts : {false, true}) {
    if (has_sequence_parts && !has_sequence) continue;
    Json styles = Json::object();
    for (const Json& module : fixture["scenario"]["model"])
      add_styles(module, module["name"], has_sequence_parts, styles);
    on({2, 2}, {"fsdp", "tp"})["parallelize"] = styles;
    on({4, 2}, {"fsdp", "tp"})["parallelize"] = styles;
    if (fixture["scenario"].dump().find("\"moe\"") == std::string::npos) continue;
    Json experts = Json::object();
    for (const Json& module : fixture["scenario"]["model"])
      add_experts(module, module["name"], experts);
    on({2, 2}, {"fsdp", "ep"})["parallelize"] = experts;
    experts.update(styles);
    on({2, 2}, {"ep", "tp"})["parallelize"] = experts;
  }
  return scenarios;
}

/// The baseline's bounds about PyTorch's losses, gradients and parameters. Steps follow one another
/// freely: nothing starts from what the run held.
ReferenceRun torch_reference(const Scenario& scenario, const Json& fixture) {
  ReferenceRun reference = run_baseline(scenario);
  REQUIRE(fixture["steps"].size() == reference.steps.size());
  for (std::size_t t = 0; t < reference.steps.size(); ++t) {
    ReferenceStep& step = reference.steps[t];
    const double loss = fixture["losses"][t];
    const double grad_norm = fixture["grad_norms"][t];
    step.loss.value = loss;
    step.grad_norm.value = grad_norm;
    reference.losses[t].value = loss;
    reference.grad_norms[t].value = grad_norm;
    const Json& numbers = fixture["steps"][t];
    REQUIRE(numbers["grads"].size() == scenario.parameters.size());
    for (std::size_t p = 0; p < scenario.parameters.size(); ++p) {
      const std::string& name = scenario.parameters[p].name;
      step.gradients[p].value = numbers["grads"].at(name).get<std::vector<double>>();
      step.parameters[p].value = numbers["params"].at(name).get<std::vector<double>>();
    }
  }
  return reference;
}

Verdict judged_by_torch(const Json& json, const Json& fixture) {
  const VerifiedPlan plan = verify_plan(build_plan(parse_scenario(json.dump(), "fixture.json")));
  const RunResult run = LocalExecutor().run(plan, {});
  return compare_runs(plan, run, torch_reference(plan->scenario, fixture));
}

std::string told(const Verdict& verdict) {
  std::string text;
  for (const Finding& finding : verdict.findings)
    text += finding.param + ": " + finding.message + "\n";
  return text;
}

TEST_CASE("trainings on ranks equal PyTorch's on one process, whatever the mesh") {
  int num_sequence_parallel = 0;
  for (const Json& fixture : fixtures()) {
    for (const Json& scenario : scenarios_of(fixture)) {
      CAPTURE(scenario["name"], scenario["mesh"].dump(),
              scenario.value("parallelize", Json::object()).dump());
      num_sequence_parallel += scenario.dump().find("rowwise_sp") != std::string::npos ? 1 : 0;
      const Verdict verdict = judged_by_torch(scenario, fixture);
      CAPTURE(told(verdict));
      CHECK(verdict.passed());
    }
  }
  CHECK(num_sequence_parallel >= 8);
}

TEST_CASE("planted: PyTorch's numbers off by one part in 100 are seen") {
  for (const Json& fixture : fixtures()) {
    const Json scenario = scenarios_of(fixture).back();
    const auto is_seen = [&](const std::function<void(Json&)>& damage) {
      Json damaged = fixture;
      damage(damaged);
      return !judged_by_torch(scenario, damaged).passed();
    };
    CAPTURE(scenario["name"]);
    const auto damage_all = [](Json& numbers) {
      for (Json& number : numbers)
        number = number.get<double>() * 1.01;
    };
    CHECK(is_seen([&](Json& damaged) { damage_all(damaged["losses"]); }));
    CHECK(is_seen([&](Json& damaged) { damage_all(damaged["grad_norms"]); }));
    for (const char* const kind : {"grads", "params"}) {
      for (const auto& [name, numbers] : fixture["steps"].back()[kind].items()) {
        CAPTURE(kind, name);
        CHECK(is_seen(
            [&, key = name](Json& damaged) { damage_all(damaged["steps"].back()[kind][key]); }));
      }
    }
  }
}

}  // namespace
}  // namespace hpsim
