#include <fmt/format.h>

#include <algorithm>

#include "scenario/locate.h"
#include "scenario/module_layouts.h"
#include "scenario/precision.h"
#include "scenario/validate.h"

namespace hpsim {
namespace {

class DTypeCheck {
 public:
  DTypeCheck(const Scenario& scenario, const ObjectReader& file)
      : scenario_(scenario),
        file_(file),
        dtypes_(module_dtypes(scenario)),
        parameters_(parameters_of_modules(scenario)) {}

  void check() {
    for (int m = 0; m < static_cast<int>(dtypes_.size()); ++m) {
      if (differing_parameter(m)) {
        weights_.add(m);
      } else if (reads_another(m)) {
        reads_.add(m);
      } else if (takes_several(m)) {
        inputs_.add(m);
      }
    }
    if (weights_.count > 0) tell_weights();
    if (reads_.count > 0) tell_reads();
    if (inputs_.count > 0) tell_inputs();
  }

 private:
  /// Modules with one mistake in common, told by the first of them.
  struct Culprits {
    int first = -1;
    std::int64_t count = 0;

    void add(int module) {
      if (count++ == 0) first = module;
    }
  };

  [[nodiscard]] const ModuleSpec& module(int m) const {
    return scenario_.model.modules[static_cast<std::size_t>(m)];
  }
  [[nodiscard]] const ModuleDTypes& dtypes(int m) const {
    return dtypes_[static_cast<std::size_t>(m)];
  }
  [[nodiscard]] const std::vector<int>& parameters(int m) const {
    return parameters_[static_cast<std::size_t>(m)];
  }

  /// A parameter of the module that is not computed with in the dtype of its first one. Those that
  /// fully_shard ignores are the user's affair.
  [[nodiscard]] std::optional<int> differing_parameter(int m) const {
    for (const int p : parameters(m)) {
      if (!is_ignored(scenario_, p) && !is_ignored(scenario_, parameters(m).front()) &&
          compute_dtype(scenario_, p) != dtypes(m).output) {
        return p;
      }
    }
    return std::nullopt;
  }

  [[nodiscard]] bool reads_another(int m) const {
    if (parameters(m).empty() || module(m).type == ModuleType::Embedding) return false;
    return other_input(m) != dtypes(m).output;
  }

  /// Of modules without parameters, which compute in the dtype of their first input.
  [[nodiscard]] bool takes_several(int m) const {
    return parameters(m).empty() && other_input(m) != dtypes(m).output;
  }

  /// The dtype of the first input that has not that of the output.
  [[nodiscard]] DType other_input(int m) const {
    const std::vector<DType>& inputs = dtypes(m).inputs;
    const auto other = std::find_if(inputs.begin(), inputs.end(),
                                    [&](DType dtype) { return dtype != dtypes(m).output; });
    return other == inputs.end() ? dtypes(m).output : *other;
  }

  /// `linear "l0" and 2 other modules`
  [[nodiscard]] std::string name(int m) const {
    return fmt::format("{} {}", name_of(module(m).type), in_quotes(module(m).name));
  }
  static std::string others(const Culprits& culprits) {
    if (culprits.count == 1) return "";
    return fmt::format(" ({} other module{} too)", culprits.count - 1,
                       culprits.count == 2 ? "" : "s");
  }
  [[nodiscard]] JsonCursor where(int m) const {
    return file_.at().below(module_pointer(scenario_.model, m));
  }

  void tell_weights() {
    const int m = weights_.first;
    const int p = *differing_parameter(m);
    const auto quoted = [&](int q) {
      return in_quotes(scenario_.parameters[static_cast<std::size_t>(q)].name);
    };
    file_.problems().add(
        where(m),
        fmt::format("{} computes with {} in {}, but with {} in {}{}; PyTorch refuses mixed "
                    "operands",
                    name(m), quoted(parameters(m).front()), name_of(dtypes(m).output), quoted(p),
                    name_of(compute_dtype(scenario_, p)), others(weights_)),
        "give both one dtype in numerics.parameter_dtypes, or all in mp_policy.param_dtype");
  }

  void tell_reads() {
    const int m = reads_.first;
    file_.problems().add(
        where(m),
        fmt::format("{} computes in {}, but reads {}{}; PyTorch refuses mixed operands", name(m),
                    name_of(dtypes(m).output), name_of(other_input(m)), others(reads_)),
        way_out());
  }

  void tell_inputs() {
    const int m = inputs_.first;
    file_.problems().add(
        where(m),
        fmt::format("{} takes {} and {}{}: its inputs must have one dtype", name(m),
                    name_of(dtypes(m).output), name_of(other_input(m)), others(inputs_)),
        way_out());
  }

  [[nodiscard]] std::string way_out() const {
    const MixedPrecision& policy = scenario_.fully_shard.mp_policy;
    const std::string_view dtype = name_of(scenario_.numerics.dtype);
    std::string text;
    const auto add = [&](std::string other) {
      text += (text.empty() ? "" : ", or ") + std::move(other);
    };
    if (policy.param_dtype && !policy.cast_forward_inputs) {
      add("write \"cast_forward_inputs\": true: units then cast what they take");
    }
    if (policy.output_dtype) add("leave \"output_dtype\" out");
    if (!scenario_.numerics.parameter_dtypes.empty()) {
      add("give all parameters one dtype in numerics.parameter_dtypes");
    }
    if (!policy.param_dtype) {
      add(fmt::format("name a \"param_dtype\", such as \"{}\": units cast what they take to it",
                      dtype));
    } else if (policy.cast_forward_inputs) {
      add("let one unit hold the modules between which the dtype changes");
    }
    return text;
  }

  const Scenario& scenario_;
  const ObjectReader& file_;
  std::vector<ModuleDTypes> dtypes_;
  std::vector<std::vector<int>> parameters_;
  Culprits weights_;
  Culprits reads_;
  Culprits inputs_;
};

}  // namespace

void check_dtypes(const Scenario& scenario, const ObjectReader& file) {
  const MixedPrecision& policy = scenario.fully_shard.mp_policy;
  const bool has_one =
      scenario.numerics.parameter_dtypes.empty() && !policy.param_dtype && !policy.output_dtype;
  if (has_one || !file.problems().empty()) return;
  DTypeCheck(scenario, file).check();
}

}  // namespace hpsim
