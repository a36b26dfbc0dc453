// Faults of what modules compute.

#include <algorithm>
#include <map>

#include "engine/faults/fault_tools.h"
#include "scenario/gradients.h"

namespace hpsim {
namespace {

/// The bias of a linear module whose ranks give terms of its output; -1: none.
int bias_of_terms(const Plan& plan, int module) {
  if (plan.scenario.model.is_elementwise()) return -1;
  const auto at = static_cast<std::size_t>(module);
  if (plan.scenario.model.modules.at(at).type != ModuleType::Linear) return -1;
  const auto& layout = plan.values.at(static_cast<std::size_t>(plan.modules.at(at).output)).layout;
  const bool is_sum = std::any_of(layout.begin(), layout.end(), [](const Placement& placement) {
    return std::holds_alternative<Partial>(placement);
  });
  if (!is_sum) return -1;
  const std::vector<std::vector<int>> parameters = parameters_of_modules(plan.scenario);
  for (const int p : parameters.at(at)) {
    if (plan.scenario.parameters[static_cast<std::size_t>(p)].kind ==
        ParameterSpec::Kind::LinearBias)
      return p;
  }
  return -1;
}

/// Whether the rank's term is the one to which the bias belongs: it is first along all dims.
bool is_first_term(const Plan& plan, int module, Rank rank) {
  const auto& planned = plan.modules.at(static_cast<std::size_t>(module));
  const auto& layout = plan.values.at(static_cast<std::size_t>(planned.output)).layout;
  const Coordinate coordinate = plan.mesh().coordinate_of(rank);
  for (std::size_t dim = 0; dim < layout.size(); ++dim) {
    if (std::holds_alternative<Partial>(layout[dim]) && coordinate[dim] > 0) return false;
  }
  return true;
}

/// Every rank of tp adds the bias to its term.
template <class T>
class BiasTpTimes : public AimedFault<T> {
 public:
  using AimedFault<T>::AimedFault;

  void after(EngineParts<T>& engine, std::int64_t plan_step) override {
    if (!this->is_at(plan_step, StepKind::Forward)) return;
    const int module = this->step_at(plan_step).module;
    const int p = bias_of_terms(this->plan(), module);
    if (p < 0 || !is_aimed_at(this->plan(), this->fault(), p)) return;
    if (is_first_term(this->plan(), module, this->rank())) return;
    const std::span<T> output = engine.model.output_of(module);
    const RowBlocks<T> bias = engine.memory.whole(p);
    const std::int64_t features = bias.rows;
    bias.each_block([&](const T* block, std::int64_t first, std::int64_t rows) {
      for (std::size_t at = 0; at < output.size(); at += static_cast<std::size_t>(features)) {
        for (std::int64_t i = 0; i < rows; ++i)
          output[at + static_cast<std::size_t>(first + i)] += block[i];
      }
    });
  }
};

bool bias_has_place(const Plan& plan, const FaultSpec& fault) {
  if (plan.scenario.model.is_elementwise()) return false;
  for (const Step& step : plan.steps) {
    if (step.kind != StepKind::Forward || !fault.is_in(step.step)) continue;
    const int p = bias_of_terms(plan, step.module);
    if (p < 0 || !is_aimed_at(plan, fault, p)) continue;
    for (std::int64_t rank = 0; rank < plan.mesh().num_ranks(); ++rank) {
      if (fault.is_of(Rank{rank}) && !is_first_term(plan, step.module, Rank{rank})) return true;
    }
  }
  return false;
}

/// What the last use of a tied parameter adds to its gradient is added twice.
template <class T>
class TiedCountedTwice : public AimedFault<T> {
 public:
  TiedCountedTwice(const Plan& plan, Rank rank, const FaultSpec& fault)
      : AimedFault<T>(plan, rank, fault), uses_(modules_of_parameters(plan.scenario)) {}

  void before(EngineParts<T>& engine, std::int64_t plan_step) override {
    before_.clear();
    if (!this->is_at(plan_step, StepKind::Backward)) return;
    for (const int p : ended_by(this->step_at(plan_step)))
      before_[p] = values_of(engine.memory.accumulated_gradient(p));
  }

  void after(EngineParts<T>& engine, std::int64_t /*plan_step*/) override {
    for (const auto& [p, before] : before_) {
      const RowBlocks<T> place = engine.memory.accumulated_gradient(p);
      std::size_t next = 0;
      place.each_block([&](T* block, std::int64_t /*first*/, std::int64_t rows) {
        for (std::int64_t i = 0; i < rows * place.row_elems; ++i)
          block[i] += block[i] - before[next++];
      });
    }
    before_.clear();
  }

 private:
  /// Tied parameters of which the step is the last backward of a pass, and not the first.
  [[nodiscard]] std::vector<int> ended_by(const Step& step) const {
    std::vector<int> ended;
    for (const int p : this->parameters()) {
      const std::vector<int>& uses = uses_.at(static_cast<std::size_t>(p));
      if (uses.size() < 2 || *std::min_element(uses.begin(), uses.end()) != step.module) continue;
      if (has_gradient(this->plan().scenario, p, step.step, step.micro_batch)) ended.push_back(p);
    }
    return ended;
  }

  static std::vector<T> values_of(const RowBlocks<T>& place) {
    std::vector<T> values;
    place.each_block([&](const T* block, std::int64_t /*first*/, std::int64_t rows) {
      values.insert(values.end(), block, block + rows * place.row_elems);
    });
    return values;
  }

  std::vector<std::vector<int>> uses_;  ///< per parameter
  std::map<int, std::vector<T>> before_;
};

bool tied_has_place(const Plan& plan, const FaultSpec& fault) {
  if (plan.scenario.model.is_elementwise()) return false;
  const auto uses = modules_of_parameters(plan.scenario);
  return any_parameter(plan, fault, [&](int p) {
    return uses.at(static_cast<std::size_t>(p)).size() > 1 &&
           any_step(plan, fault, 0,
                    [&](std::int64_t step) { return has_gradient(plan.scenario, p, step); });
  });
}

}  // namespace

std::vector<EngineFaultKind> model_fault_kinds() {
  return {engine_fault<BiasTpTimes>("bias_tp_times", bias_has_place),
          engine_fault<TiedCountedTwice>("tied_counted_twice", tied_has_place)};
}

}  // namespace hpsim
