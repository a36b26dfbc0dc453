#include "plan/token_replay.h"

#include <fmt/format.h>

#include <utility>

#include "plan/recomputation.h"
#include "plan/spec_difference.h"
#include "plan/token_exchange.h"

namespace hpsim {

TokenReplay::TokenReplay(const Plan& plan) : plan_(plan) {
  for (const int module : experts_modules(plan.scenario.model)) {
    if (exchange_dims(plan, module).empty()) continue;
    const ModulePlan& planned = plan.modules.at(static_cast<std::size_t>(module));
    std::vector<Wanted>& wanted = wanted_[module];
    const auto add_forward = [&](bool is_recomputed) {
      for (const StepKind kind :
           {StepKind::Route, StepKind::Dispatch, StepKind::Forward, StepKind::Combine}) {
        wanted.push_back({kind, is_recomputed});
      }
    };
    add_forward(false);
    const int part = recomputed_part_of(plan.scenario, module);
    const auto& parts = plan.scenario.training.recomputed;
    if (part >= 0 && is_computed_again(plan, parts[static_cast<std::size_t>(part)]))
      add_forward(true);
    if (planned.output_gradient < 0) continue;
    wanted.insert(wanted.end(), {{StepKind::Dispatch}, {StepKind::Backward}});
    if (planned.input_gradients.at(0) >= 0) wanted.push_back({StepKind::Combine});
  }
}

std::string TokenReplay::Wanted::text() const {
  return fmt::format("{}{}", name_of(kind), is_recomputed ? " of the recomputation" : "");
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
  const Wanted& next = wanted->second[taken];
  if (next.kind != step.kind || next.is_recomputed != step.is_recomputed) {
    return Fault{FindingCode::CommOrder, fmt::format("expected {} next", next.text())};
  }
  ++taken;
  if (is_compute) return std::nullopt;
  const auto [known, is_new] = collectives_.try_emplace({step.module, step.kind});
  if (is_new) known->second = token_collective(plan_, step.module, step.kind);
  auto difference = difference_of(plan_.mesh(), step.collective, known->second);
  if (!difference) return std::nullopt;
  return Fault{difference->code, std::move(difference->message)};
}

std::optional<TokenReplay::Fault> TokenReplay::end_pass() const {
  for (const auto& [module, wanted] : wanted_) {
    const auto taken = taken_.find(module);
    const std::size_t count = taken == taken_.end() ? 0 : taken->second;
    if (count == wanted.size()) continue;
    return Fault{FindingCode::CommCount,
                 fmt::format("\"{}\" lacks {}", module_name(plan_.scenario.model, module),
                             wanted[count].text())};
  }
  return std::nullopt;
}

}  // namespace hpsim
