#include "plan/recomputation_replay.h"

#include <fmt/format.h>

#include <algorithm>

#include "plan/recomputation.h"

namespace hpsim {

RecomputationReplay::RecomputationReplay(const Plan& plan)
    : plan_(plan), parameters_(parameters_of_modules(plan.scenario)) {
  begin_pass();
}

void RecomputationReplay::begin_pass() {
  parts_.assign(plan_.scenario.training.recomputed.size(), {});
  awaiting_.clear();
}

std::optional<RecomputationReplay::Fault> RecomputationReplay::take(const Step& step) {
  const std::pair<std::int64_t, std::int64_t> pass = {step.step, step.micro_batch};
  if (std::exchange(pass_, pass) != pass) begin_pass();
  if (step.phase == Phase::Optimizer) return std::nullopt;
  if (step.kind == StepKind::Reshard) return reshard(step.bucket);
  const int part = recomputed_part_of(plan_.scenario, step.module);
  if (step.is_recomputed) return repeat(step, part);
  if (part < 0) return std::nullopt;
  if (step.kind == StepKind::Backward) return backward(step.module, part);
  if (step.phase == Phase::Forward) {
    parts_[static_cast<std::size_t>(part)].forward.push_back(
        {step.kind, step.module, step.redistribution});
  }
  return std::nullopt;
}

std::optional<RecomputationReplay::Fault> RecomputationReplay::repeat(const Step& step, int part) {
  const auto at = static_cast<std::size_t>(part);
  if (part < 0 || !is_computed_again(plan_, plan_.scenario.training.recomputed[at]))
    return Fault{FindingCode::CommCount, "it is computed again, and nothing asks for it"};
  PartState& state = parts_[at];
  if (state.is_faulty) return std::nullopt;
  if (state.repeated == state.forward.size()) {
    state.is_faulty = true;
    return Fault{FindingCode::CommCount, "all of its part is computed again already"};
  }
  const Work& wanted = state.forward[state.repeated++];
  const Work got{step.kind, step.module, step.redistribution};
  if (got != wanted) {
    state.is_faulty = true;
    return Fault{FindingCode::CommOrder,
                 fmt::format("computed again, expected {} next, as in forward", text_of(wanted))};
  }
  if (step.kind == StepKind::Forward &&
      plan_.modules.at(static_cast<std::size_t>(step.module)).output_gradient >= 0) {
    awaiting_.push_back(step.module);
  }
  return std::nullopt;
}

std::optional<RecomputationReplay::Fault> RecomputationReplay::backward(int module, int part) {
  std::erase(awaiting_, module);
  PartState& state = parts_[static_cast<std::size_t>(part)];
  if (state.is_faulty || state.repeated == state.forward.size()) return std::nullopt;
  state.is_faulty = true;
  return Fault{FindingCode::CommOrder,
               fmt::format("{} of {} steps of its part are not computed again, the first is {}",
                           state.forward.size() - state.repeated, state.forward.size(),
                           text_of(state.forward[state.repeated]))};
}

std::optional<RecomputationReplay::Fault> RecomputationReplay::reshard(int bucket) const {
  for (const int module : awaiting_) {
    const std::vector<int>& own = parameters_.at(static_cast<std::size_t>(module));
    const bool is_used = std::any_of(own.begin(), own.end(),
                                     [&](int p) { return plan_.parameter(p).bucket == bucket; });
    if (!is_used) continue;
    return Fault{FindingCode::CommOrder,
                 fmt::format("\"{}\" is computed again, its backward would gather it once more",
                             module_name(plan_.scenario.model, module))};
  }
  return std::nullopt;
}

std::string RecomputationReplay::text_of(const Work& work) const {
  if (work.redistribution >= 0) {
    const auto at = static_cast<std::size_t>(work.redistribution);
    const Redistribution& change = plan_.redistributions.at(at);
    return fmt::format("{} of the {}", name_of(change.transition.op),
                       activation_text(plan_, change));
  }
  return fmt::format("{} of \"{}\"", name_of(work.kind),
                     module_name(plan_.scenario.model, work.module));
}

}  // namespace hpsim
