#include "plan/token_replay.h"

#include <fmt/format.h>

#include "plan/token_exchange.h"

namespace hpsim {
TokenReplay::TokenReplay(const Plan& plan) : plan_(plan) {
  for (const int module : experts_modules(plan.scenario.model)) {
    if (exchange_dims(plan, module).empty()) continue;
    const ModulePlan& planned = plan.modules.at(static_cast<std::size_t>(module));
    std::vector<StepKind>& wanted = wanted_[module];
    wanted = {StepKind::Route, StepKind::Dispatch, StepKind::Forward, StepKind::Combine};
    if (planned.output_gradient < 0) continue;
    wanted.insert(wanted.end(), {StepKind::Dispatch, StepKind::Backward});
    if (planned.input_gradients.at(0) >= 0) wanted.push_back(StepKind::Combine);
  }
}

std::optional<TokenReplay::Fault> TokenReplay::take(const Step& step) {
  const std::pair<std::int64_t, std::int64_t> pass = {step.step, step.micro_batch};
  const bool is_update = step.phase == Phase::Optimizer;
  std::optional<Fault> ended;
  if (is_update ? step.kind == StepKind::Optimizer : pass != pass_) {
    if (pass_) ended = end_pass();
    taken_.clear();
    pass_.reset();
  }
  if (is_update) return ended;
  pass_ = pass;
  std::optional<Fault> fault = take_in_pass(step);
  return ended ? ended : fault;
}

std::optional<TokenReplay::Fault> TokenReplay::take_in_pass(const Step& step) {
  const bool is_compute = step.kind == StepKind::Forward || step.kind == StepKind::Backward;
  if (!is_compute && !moves_tokens(step.kind)) return std::nullopt;
  const auto wanted = wanted_.find(step.module);
  if (wanted == wanted_.end()) {
    if (is_compute) return std::nullopt;
    return Fault{FindingCode::CommCount, "the module exchanges no positions"};
  }
  std::size_t& taken = taken_[step.module];
  if (taken == wanted->second.size()) {
    return Fault{FindingCode::CommCount, "all steps of the exchange have come before"};
  }
  const StepKind next = wanted->second[taken];
  if (next != step.kind) {
    return Fault{FindingCode::CommOrder, fmt::format("expected {} next", name_of(next))};
  }
  ++taken;
  if (is_compute) return std::nullopt;
  const auto [known, is_new] = collectives_.try_emplace({step.module, step.kind});
  if (is_new) known->second = token_collective(plan_, step.module, step.kind);
  if (step.collective == known->second) return std::nullopt;
  return Fault{FindingCode::CommShape, "its collective is not that of its experts"};
}

std::optional<TokenReplay::Fault> TokenReplay::end_pass() const {
  for (const auto& [module, wanted] : wanted_) {
    const auto taken = taken_.find(module);
    const std::size_t count = taken == taken_.end() ? 0 : taken->second;
    if (count == wanted.size()) continue;
    return Fault{FindingCode::CommCount,
                 fmt::format("\"{}\" lacks {}", module_name(plan_.scenario.model, module),
                             name_of(wanted[count]))};
  }
  return std::nullopt;
}

}  // namespace hpsim
