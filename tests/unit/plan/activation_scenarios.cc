#include "unit/plan/activation_scenarios.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "scenario/parse.h"

namespace hpsim::test {

std::string linear_json(const std::string& name, int in, int out) {
  return fmt::format(
      R"({{"name": "{}", "type": "linear", "in_features": {}, "out_features": {}, "bias": false}})",
      name, in, out);
}

std::string function_json(const std::string& name, const std::string& type) {
  return fmt::format(R"({{"name": "{}", "type": "{}"}})", name, type);
}

ActivationCase colwise_chain() {
  return {"2, 2",
          R"("fsdp", "tp")",
          {linear_json("in", 4, 6), linear_json("up", 6, 8), linear_json("mid", 8, 10),
           function_json("act"), linear_json("down", 10, 4)},
          R"("parallelize": {"up": "colwise", "mid": "colwise", "down": "rowwise"})"};
}

Scenario scenario_of(const ActivationCase& test) {
  return parse_scenario(
      fmt::format(
          R"({{"hpsim": 1, "mesh": {{"shape": [{}], "mesh_dim_names": [{}]}}, "model": [{}]{}{}}})",
          test.shape, test.names, fmt::join(test.modules, ", "), test.more.empty() ? "" : ", ",
          test.more),
      "test.json");
}

namespace {

std::string told_change(const Plan& plan, const Step& step) {
  const Redistribution& change =
      plan.redistributions.at(static_cast<std::size_t>(step.redistribution));
  std::string text =
      fmt::format("{}({}) {}", name_of(change.transition.op),
                  plan.mesh().names(change.transition.mesh_dims), activation_text(plan, change));
  if (step.collective) {
    text += fmt::format(" {}->{}", to_string(plan.mesh(), step.collective->elems_in),
                        to_string(plan.mesh(), step.collective->elems_out));
  }
  return text;
}

}  // namespace

std::vector<std::string> told_steps(const Plan& plan, std::int64_t step) {
  std::vector<std::string> texts;
  for (const Step& each : plan.steps) {
    if (each.step != step) continue;
    if (each.redistribution >= 0) {
      texts.push_back(told_change(plan, each));
    } else if (each.bucket >= 0) {
      texts.push_back(
          fmt::format("{} {}", name_of(each.kind), plan.unit_name(plan.bucket(each.bucket))));
    } else if (each.module >= 0) {
      texts.push_back(
          fmt::format("{} {}", name_of(each.kind), module_name(plan.scenario.model, each.module)));
    } else {
      texts.emplace_back(name_of(each.kind));
    }
  }
  return texts;
}

std::vector<std::string> told_changes(const Plan& plan, std::int64_t step) {
  std::vector<std::string> texts;
  for (const Step& each : plan.steps) {
    if (each.step == step && each.redistribution >= 0) texts.push_back(told_change(plan, each));
  }
  return texts;
}

}  // namespace hpsim::test
