#include "plan/step_text.h"

#include <fmt/format.h>

namespace hpsim {
namespace {

std::string subject_of(const Plan& plan, const Step& step) {
  if (step.redistribution >= 0) {
    const auto at = static_cast<std::size_t>(step.redistribution);
    return fmt::format(" of the {}", activation_text(plan, plan.redistributions.at(at)));
  }
  if (moves_tokens(step.kind)) return " of " + tokens_text(plan, step);
  if (step.module >= 0) {
    return fmt::format(" of \"{}\"", module_name(plan.scenario.model, step.module));
  }
  if (step.bucket >= 0) {
    return fmt::format(" of unit \"{}\"", plan.unit_name(plan.bucket(step.bucket)));
  }
  return {};
}

}  // namespace

std::string step_text(const Plan& plan, const Step& step) {
  std::string_view kind = name_of(step.kind);
  if (step.redistribution >= 0) {
    const auto at = static_cast<std::size_t>(step.redistribution);
    kind = name_of(plan.redistributions.at(at).transition.op);
  }
  return fmt::format("{}{}{}", kind, subject_of(plan, step),
                     step.is_recomputed ? ", once more" : "");
}

}  // namespace hpsim
