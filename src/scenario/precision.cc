#include "scenario/precision.h"

#include <algorithm>
#include <cmath>

#include "model/units.h"
#include "scenario/module_layouts.h"

namespace hpsim {
namespace {

int significand_bits(DType dtype) {
  switch (dtype) {
    case DType::Float64:
      return 53;
    case DType::Float32:
      return 24;
    case DType::Float16:
      return 11;
    case DType::BFloat16:
      return 8;
    case DType::Int64:
      break;
  }
  return 64;
}

bool takes_tokens(const ModelSpec& model) {
  return !model.modules.empty() && model.modules.front().type == ModuleType::Embedding;
}

/// Calls f(dtype) for every dtype that the file names.
template <class F>
void each_dtype(const Scenario& scenario, const F& f) {
  const MixedPrecision& policy = scenario.fully_shard.mp_policy;
  f(scenario.numerics.dtype);
  for (const DType dtype : scenario.numerics.parameter_dtypes)
    f(dtype);
  for (const std::optional<DType>& dtype :
       {policy.param_dtype, policy.reduce_dtype, policy.output_dtype}) {
    if (dtype) f(*dtype);
  }
}

/// Walks the modules in order.
class DTypeWalk {
 public:
  explicit DTypeWalk(const Scenario& scenario)
      : scenario_(scenario),
        policy_(scenario.fully_shard.mp_policy),
        units_(units_around(scenario.model, scenario.units)),
        parameters_(parameters_of_modules(scenario)) {}

  std::vector<ModuleDTypes> run() {
    std::vector<ModuleDTypes> all;
    given_ = {input_dtype(scenario_)};
    for (int m = 0; m < num_modules(); ++m) {
      all.push_back(of_module(m));
      given_.push_back(all.back().given);
    }
    return all;
  }

 private:
  [[nodiscard]] int num_modules() const { return static_cast<int>(scenario_.model.modules.size()); }

  [[nodiscard]] ModuleDTypes of_module(int m) const {
    ModuleDTypes dtypes;
    for (const int activation : inputs_of(scenario_.model, m)) {
      DType dtype = given_[static_cast<std::size_t>(activation)];
      if (is_cast(m, activation)) dtype = *policy_.param_dtype;
      dtypes.inputs.push_back(dtype);
    }
    const std::vector<int>& own = parameters_[static_cast<std::size_t>(m)];
    dtypes.output = own.empty() ? dtypes.inputs.at(0) : compute_dtype(scenario_, own[0]);
    dtypes.given = dtypes.output;
    if (policy_.output_dtype && ends_unit(m)) dtypes.given = *policy_.output_dtype;
    return dtypes;
  }

  /// Whether a unit takes the activation from outside: the model's input is taken by the root.
  [[nodiscard]] bool is_cast(int m, int activation) const {
    if (!policy_.param_dtype || !policy_.cast_forward_inputs) return false;
    if (activation == 0) return !takes_tokens(scenario_.model);
    const int producer = activation - 1;
    const std::vector<int>& around = units_[static_cast<std::size_t>(m)];
    return std::any_of(around.begin(), around.end(), [&](int unit) {
      const UnitSpec& spec = scenario_.units[static_cast<std::size_t>(unit)];
      return producer < spec.first || producer >= spec.end;
    });
  }

  [[nodiscard]] bool ends_unit(int m) const {
    if (m + 1 == num_modules()) return true;
    const std::vector<int>& around = units_[static_cast<std::size_t>(m)];
    return std::any_of(around.begin(), around.end(), [&](int unit) {
      return scenario_.units[static_cast<std::size_t>(unit)].end == m + 1;
    });
  }

  const Scenario& scenario_;
  const MixedPrecision& policy_;
  std::vector<std::vector<int>> units_;
  std::vector<std::vector<int>> parameters_;
  std::vector<DType> given_;  ///< per activation
};

}  // namespace

DType parameter_dtype(const Scenario& scenario, int p) {
  const std::vector<DType>& own = scenario.numerics.parameter_dtypes;
  return own.empty() ? scenario.numerics.dtype : own.at(static_cast<std::size_t>(p));
}

DType compute_dtype(const Scenario& scenario, int p) {
  if (is_ignored(scenario, p)) return parameter_dtype(scenario, p);
  return scenario.fully_shard.mp_policy.param_dtype.value_or(parameter_dtype(scenario, p));
}

DType reduce_dtype(const Scenario& scenario, int p) {
  if (is_ignored(scenario, p)) return parameter_dtype(scenario, p);
  return scenario.fully_shard.mp_policy.reduce_dtype.value_or(compute_dtype(scenario, p));
}

std::vector<ModuleDTypes> module_dtypes(const Scenario& scenario) {
  if (scenario.model.is_elementwise()) return {};
  return DTypeWalk(scenario).run();
}

DType input_dtype(const Scenario& scenario) {
  const DType dtype = scenario.numerics.dtype;
  return takes_tokens(scenario.model) ? promoted(dtype, DType::Float32) : dtype;
}

ElementwiseDTypes elementwise_dtypes(const Scenario& scenario, int p) {
  const MixedPrecision& policy = scenario.fully_shard.mp_policy;
  const DType weight = compute_dtype(scenario, p);
  const bool is_cast = policy.param_dtype && policy.cast_forward_inputs;
  ElementwiseDTypes dtypes;
  dtypes.input = is_cast ? *policy.param_dtype : input_dtype(scenario);
  dtypes.product = promoted(weight, dtypes.input);
  dtypes.given = policy.output_dtype.value_or(dtypes.product);
  return dtypes;
}

DType loss_dtype(const Scenario& scenario) {
  return scenario.numerics.dtype == DType::Float64 ? DType::Float64 : DType::Float32;
}

DType carrier_dtype(const Scenario& scenario) {
  DType carrier = DType::Float32;
  each_dtype(scenario, [&](DType dtype) { carrier = promoted(carrier, dtype); });
  return carrier;
}

bool is_emulated(const Scenario& scenario) {
  const DType carrier = carrier_dtype(scenario);
  bool is_other = loss_dtype(scenario) != carrier;
  each_dtype(scenario, [&](DType dtype) { is_other = is_other || dtype != carrier; });
  return is_other;
}

DType promoted(DType a, DType b) {
  if (a == b) return a;
  const DType wider = significand_bits(a) > significand_bits(b) ? a : b;
  // Neither of the 16-bit types holds the other.
  return significand_bits(wider) < significand_bits(DType::Float32) ? DType::Float32 : wider;
}

double predivision(DType dtype, double divisor) {
  if (dtype != DType::Float16) return 1;
  double factor = 1;
  while (std::fmod(divisor, factor) == 0 && divisor / factor > factor)
    factor *= 2;
  return 1 / factor;
}

}  // namespace hpsim
