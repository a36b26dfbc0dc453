#include "baseline/pass_dtypes.h"

#include <algorithm>
#include <initializer_list>
#include <variant>

namespace hpsim {
namespace {

bool has_partial(const std::vector<Placement>& layout) {
  return std::any_of(layout.begin(), layout.end(), [](const Placement& placement) {
    return std::holds_alternative<Partial>(placement);
  });
}

/// Of a chain of casts those that round.
std::vector<DType> roundings(DType from, std::initializer_list<DType> chain) {
  std::vector<DType> result;
  for (const DType to : chain) {
    if (promoted(from, to) != to) result.push_back(to);
    from = to;
  }
  return result;
}

}  // namespace

PassDTypes::PassDTypes(const Scenario& scenario)
    : scenario_(scenario),
      carrier_(carrier_dtype(scenario)),
      is_emulated_(hpsim::is_emulated(scenario)) {
  if (!is_emulated_ || scenario.model.is_elementwise()) return;
  modules_ = module_dtypes(scenario);
  layouts_ = module_layouts(scenario);
}

DType PassDTypes::given(std::size_t activation) const {
  if (!is_emulated_) return carrier_;
  return activation == 0 ? input_dtype(scenario_) : of_module(activation - 1).given;
}

bool PassDTypes::has_terms(std::size_t module) const {
  if (!is_emulated_) return false;
  return scenario_.model.modules[module].type == ModuleType::Experts ||
         has_partial(layouts_[module].output);
}

bool PassDTypes::has_gradient_terms(std::size_t module) const {
  if (!is_emulated_) return false;
  return scenario_.model.modules[module].type == ModuleType::Experts ||
         has_partial(layouts_[module].input_gradients.at(0));
}

std::vector<DType> PassDTypes::passing(const Bypass& bypass) const {
  if (!is_emulated_) return {};
  const ModuleDTypes& first = of_module(static_cast<std::size_t>(bypass.first));
  const ModuleDTypes& last = of_module(static_cast<std::size_t>(bypass.last));
  return roundings(given(static_cast<std::size_t>(bypass.source)),
                   {first.inputs.at(0), last.output, last.given});
}

std::vector<DType> PassDTypes::passing_back(const Bypass& bypass) const {
  if (!is_emulated_) return {};
  const ModuleDTypes& first = of_module(static_cast<std::size_t>(bypass.first));
  const ModuleDTypes& last = of_module(static_cast<std::size_t>(bypass.last));
  return roundings(last.given, {last.output, first.inputs.at(0),
                                given(static_cast<std::size_t>(bypass.source))});
}

}  // namespace hpsim
