#pragma once

#include <string>
#include <vector>

#include "plan/plan.h"

namespace hpsim::test {

/// JSON of a linear module without bias.
[[nodiscard]] std::string linear_json(const std::string& name, int in, int out);
/// JSON of an activation function.
[[nodiscard]] std::string function_json(const std::string& name, const std::string& type = "gelu");

/// What the tests of activations vary. Sizes and names of the mesh as JSON lists: "2, 2",
/// "\"fsdp\", \"tp\"".
struct ActivationCase {
  std::string shape;
  std::string names;
  std::vector<std::string> modules;  ///< JSON
  std::string more;                  ///< further keys, JSON
};

/// Mesh (fsdp 2, tp 2): in 4 -> 6 replicate, up 6 -> 8 and mid 8 -> 10 colwise, act, down 10 -> 4
/// rowwise; two samples on each data rank.
[[nodiscard]] ActivationCase colwise_chain();

[[nodiscard]] Scenario scenario_of(const ActivationCase& test);

/// The optimizer step `step` as texts: "forward up", "all_reduce(tp) output of \"down\" 8->8",
/// "unshard up", "loss"; a change without collective is "slice(tp) input of ...".
[[nodiscard]] std::vector<std::string> told_steps(const Plan& plan, std::int64_t step = 0);

/// Those of told_steps that change a layout.
[[nodiscard]] std::vector<std::string> told_changes(const Plan& plan, std::int64_t step = 0);

}  // namespace hpsim::test
