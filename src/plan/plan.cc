#include "plan/plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "plan/recomputation.h"

namespace hpsim {

std::string activation_text(const Plan& plan, const Redistribution& redistribution) {
  const ModelSpec& model = plan.scenario.model;
  const int asker = redistribution.asked_by;
  if (asker < 0) return "output of the model";
  const bool is_output = redistribution.activation > asker;
  return fmt::format("{}{} of \"{}\"", redistribution.is_gradient ? "gradient of the " : "",
                     is_output ? "output" : "input", module_name(model, asker));
}

std::string tokens_text(const Plan& plan, const Step& step) {
  const char* const what = runs_forward(step) ? "tokens" : "gradients";
  const std::string& name = module_name(plan.scenario.model, step.module);
  if (step.kind == StepKind::Route) return fmt::format("counts of tokens of \"{}\"", name);
  return fmt::format("{} {} \"{}\"", what, step.kind == StepKind::Dispatch ? "to" : "from", name);
}

std::string payload_text(const Plan& plan, const Step& step) {
  if (step.kind == StepKind::Loss) return kLossPayload;
  if (step.kind == StepKind::ClipGradients) return kNormPayload;
  if (moves_tokens(step.kind)) return tokens_text(plan, step);
  if (step.redistribution < 0)
    return fmt::format("unit \"{}\"", plan.unit_name(plan.bucket(step.bucket)));
  return activation_text(plan,
                         plan.redistributions.at(static_cast<std::size_t>(step.redistribution)));
}

int Plan::position_in(const GradientRow& row, int p) {
  const auto found = std::find(row.parameters.begin(), row.parameters.end(), p);
  return found == row.parameters.end() ? -1 : static_cast<int>(found - row.parameters.begin());
}

PerCoordinate partial_elems(const Plan& plan, const GradientRow& row, const PartialRange& range) {
  PerCoordinate elems;
  for (std::int64_t i = range.members.begin; i < range.members.end; ++i) {
    const int p = row.parameters.at(static_cast<std::size_t>(i));
    elems = elems.plus(plan.mesh(), plan.parameter(p).padded_elems);
  }
  return elems;
}

}  // namespace hpsim
