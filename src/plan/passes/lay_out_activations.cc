#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "base/check.h"
#include "plan/passes/passes.h"
#include "plan/recomputation.h"
#include "scenario/gradients.h"
#include "scenario/module_layouts.h"
#include "scenario/precision.h"

namespace hpsim {
namespace {

using Layout = std::vector<Placement>;

/// Plans what every module reads and writes, forwards and then backwards.
class ActivationPlanner {
 public:
  explicit ActivationPlanner(Plan& plan)
      : plan_(plan),
        model_(plan.scenario.model),
        features_(features_along(model_)),
        dtypes_(module_dtypes(plan.scenario)),
        needs_gradient_(features_.size(), false),
        versions_(features_.size()),
        gradients_(features_.size(), -1) {
    const auto parameters = parameters_of_modules(plan.scenario);
    for (int m = 0; m < num_modules(); ++m) {
      const std::vector<int>& own = parameters[static_cast<std::size_t>(m)];
      bool needs = std::any_of(own.begin(), own.end(),
                               [&](int p) { return is_ever_trained(plan.scenario, p); });
      for (const int input : inputs_of(model_, m))
        needs = needs || needs_gradient_[static_cast<std::size_t>(input)];
      needs_gradient_[static_cast<std::size_t>(m) + 1] = needs;
    }
  }

  void run() {
    plan_forward();
    plan_loss();
    for (int m = num_modules(); m-- > 0;)
      plan_backward(m);
    free_values();
  }

 private:
  /// A layout in which something reads an activation.
  struct Version {
    int value = -1;
    int first_reader = -1;     ///< module; number of modules: the loss. The last one in backward
    std::vector<int> arrived;  ///< gradients of it that its readers left, by layout
  };

  [[nodiscard]] int num_modules() const { return static_cast<int>(model_.modules.size()); }
  [[nodiscard]] ModulePlan& module(int m) { return plan_.modules[static_cast<std::size_t>(m)]; }
  [[nodiscard]] const Layout& layout_of(int value) const {
    return plan_.values[static_cast<std::size_t>(value)].layout;
  }
  [[nodiscard]] DType dtype_of(int value) const {
    return plan_.values[static_cast<std::size_t>(value)].dtype;
  }
  [[nodiscard]] std::vector<Version>& versions(int activation) {
    return versions_[static_cast<std::size_t>(activation)];
  }

  int add_value(int activation, bool is_gradient, Layout layout, DType dtype) {
    plan_.values.push_back({activation, is_gradient,
                            features_[static_cast<std::size_t>(activation)], std::move(layout),
                            dtype});
    return static_cast<int>(plan_.values.size()) - 1;
  }

  /// Brings a value to another layout: the new value, or the same if it has that layout.
  int redistributed(int value, const Layout& wanted, int asked_by, std::vector<int>& list) {
    const ActivationValue from = plan_.values[static_cast<std::size_t>(value)];
    for (Transition& transition : redistribute(from.layout, wanted)) {
      value = changed(value, std::move(transition), from.dtype, asked_by, list);
    }
    return value;
  }

  /// Casts a value: the new value, or the same if it has that dtype.
  int cast(int value, DType wanted, int asked_by, std::vector<int>& list) {
    if (dtype_of(value) == wanted) return value;
    const Layout layout = layout_of(value);
    return changed(value, {RedistributeOp::Keep, {}, layout, layout}, wanted, asked_by, list);
  }

  int changed(int value, Transition transition, DType dtype, int asked_by, std::vector<int>& list) {
    const ActivationValue from = plan_.values[static_cast<std::size_t>(value)];
    const int next = add_value(from.activation, from.is_gradient, transition.after, dtype);
    list.push_back(static_cast<int>(plan_.redistributions.size()));
    plan_.redistributions.push_back({.from = value,
                                     .to = next,
                                     .activation = from.activation,
                                     .asked_by = asked_by,
                                     .is_gradient = from.is_gradient,
                                     .features = from.features,
                                     .transition = std::move(transition)});
    return next;
  }

  /// The value of an activation in a layout and dtype, which a reader asks for: one for all that
  /// do. It is cast before its layout changes, as units cast what they take before their modules
  /// do.
  int version(int activation, const Layout& wanted, DType dtype, int reader, int asked_by,
              std::vector<int>& list) {
    for (const Version& known : versions(activation)) {
      if (layout_of(known.value) == wanted && dtype_of(known.value) == dtype)
        return note_reader(activation, known.value, reader);
    }
    const int base = cast(versions(activation).at(0).value, dtype, asked_by, list);
    versions(activation).push_back({redistributed(base, wanted, asked_by, list), -1, {}});
    return note_reader(activation, versions(activation).back().value, reader);
  }

  int note_reader(int activation, int value, int reader) {
    for (Version& known : versions(activation)) {
      if (known.value == value && known.first_reader < 0) known.first_reader = reader;
    }
    return value;
  }

  void plan_forward() {
    std::vector<ModuleLayout> layouts = module_layouts(plan_.scenario);
    versions(0).push_back(
        {add_value(0, false, input_layout(plan_.scenario), input_dtype(plan_.scenario)), -1, {}});
    for (int m = 0; m < num_modules(); ++m) {
      ModulePlan& planned = plan_.modules.emplace_back();
      planned.layout = std::move(layouts[static_cast<std::size_t>(m)]);
      const ModuleDTypes& dtypes = dtypes_[static_cast<std::size_t>(m)];
      const std::vector<int> inputs = inputs_of(model_, m);
      for (std::size_t i = 0; i < inputs.size(); ++i) {
        planned.inputs.push_back(
            version(inputs[i], planned.layout.inputs[i], dtypes.inputs[i], m, m, planned.before));
      }
      planned.output = add_value(m + 1, false, planned.layout.output, dtypes.output);
      const int laid_out = redistributed(planned.output, planned.layout.given, m, planned.after);
      const int given = cast(laid_out, dtypes.given, m, planned.after);
      versions(m + 1).push_back({given, -1, {}});
    }
  }

  void plan_loss() {
    const int last = num_modules();
    plan_.output = layout_of(versions(last).at(0).value);
    for (Placement& placement : plan_.output) {
      if (std::holds_alternative<Partial>(placement)) placement = Replicate{};
    }
    const DType dtype = dtype_of(versions(last).at(0).value);
    plan_.loss.output = version(last, plan_.output, dtype, last, -1, plan_.loss.before);
    plan_.loss.gradient = add_value(last, true, gradient_placements(plan_.output), dtype);
    arrive(last, plan_.loss.output, plan_.loss.gradient);
    close(last, plan_.loss.output, last, -1, plan_.loss.after);
  }

  void plan_backward(int m) {
    if (!needs_gradient_[static_cast<std::size_t>(m) + 1]) return;
    ModulePlan& planned = module(m);
    const int given = gradients_[static_cast<std::size_t>(m) + 1];
    HPSIM_CHECK(given >= 0, "nothing reads the output of module {}", m);
    const int taken = cast(given, dtype_of(planned.output), m, planned.before_backward);
    planned.output_gradient = redistributed(taken, gradient_placements(planned.layout.output), m,
                                            planned.before_backward);
    const std::vector<int> inputs = inputs_of(model_, m);
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      planned.input_gradients.push_back(-1);
      planned.added_to.push_back(0);
      if (!needs_gradient_[static_cast<std::size_t>(inputs[i])]) continue;
      const Layout& layout = planned.layout.input_gradients[i];
      std::optional<int> known = arrived(inputs[i], planned.inputs[i], layout);
      planned.added_to.back() = known ? 1 : 0;
      if (!known) {
        known = add_value(inputs[i], true, layout, dtype_of(planned.inputs[i]));
        arrive(inputs[i], planned.inputs[i], *known);
      }
      planned.input_gradients.back() = *known;
    }
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (planned.input_gradients[i] >= 0)
        close(inputs[i], planned.inputs[i], m, m, planned.after_backward);
    }
  }

  [[nodiscard]] Version& version_of(int activation, int value) {
    for (Version& known : versions(activation)) {
      if (known.value == value) return known;
    }
    HPSIM_CHECK(false, "value {} is no version of activation {}", value, activation);
    return versions(activation).front();
  }

  /// The gradient of a version in that layout, if a reader left one.
  std::optional<int> arrived(int activation, int value, const Layout& layout) {
    for (const int gradient : version_of(activation, value).arrived) {
      if (layout_of(gradient) == layout) return gradient;
    }
    return std::nullopt;
  }

  void arrive(int activation, int value, int gradient) {
    version_of(activation, value).arrived.push_back(gradient);
  }

  /// Once the last reader of a version in backward is done, its gradients join that of the
  /// activation as it was given.
  void close(int activation, int value, int reader, int asked_by, std::vector<int>& list) {
    Version& known = version_of(activation, value);
    if (known.first_reader != reader) return;
    const int origin = versions(activation).at(0).value;
    const Layout wanted = gradient_placements(layout_of(origin));
    for (const int gradient : std::exchange(known.arrived, {})) {
      int& joined = gradients_[static_cast<std::size_t>(activation)];
      if (joined < 0) {
        joined =
            cast(redistributed(gradient, wanted, asked_by, list), dtype_of(origin), asked_by, list);
      } else if (joined != gradient) {
        add(gradient, joined, asked_by, list);
      }
    }
  }

  void add(int gradient, int joined, int asked_by, std::vector<int>& list) {
    const std::size_t before = list.size();
    const int last = cast(redistributed(gradient, layout_of(joined), asked_by, list),
                          dtype_of(joined), asked_by, list);
    if (list.size() > before) {
      Redistribution& change = plan_.redistributions[static_cast<std::size_t>(list.back())];
      change.to = joined;
      change.is_added = true;
      plan_.values.pop_back();
      return;
    }
    const ActivationValue from = plan_.values[static_cast<std::size_t>(last)];
    list.push_back(static_cast<int>(plan_.redistributions.size()));
    plan_.redistributions.push_back(
        {.from = last,
         .to = joined,
         .is_added = true,
         .activation = from.activation,
         .asked_by = asked_by,
         .is_gradient = true,
         .features = from.features,
         .transition = {RedistributeOp::Keep, {}, from.layout, from.layout}});
  }

  /// Walks all uses from the end: where a value is seen first, it is used last.
  void free_values() {
    is_used_later_.assign(plan_.values.size(), 0);
    for (int m = 0; m < num_modules(); ++m) {
      use_in_backward(m);
      const int part = recomputed_part_of(plan_.scenario, m);
      if (part >= 0) use_in_recomputation(m, part);
    }
    use_all(plan_.loss.after, &Redistribution::freed);
    use(plan_.loss.gradient, plan_.loss.freed);
    use(plan_.loss.output, plan_.loss.freed);
    use_all(plan_.loss.before, &Redistribution::freed);
    for (int m = num_modules(); m-- > 0;)
      use_in_forward(m, &Redistribution::freed, &ModulePlan::freed_after_forward);
  }

  void use(int value, std::vector<int>& freed) {
    if (value < 0 || is_used_later_[static_cast<std::size_t>(value)] != 0) return;
    is_used_later_[static_cast<std::size_t>(value)] = 1;
    freed.push_back(value);
  }

  void use_all(const std::vector<int>& list, std::vector<int> Redistribution::*freed) {
    for (std::size_t i = list.size(); i-- > 0;) {
      Redistribution& change = plan_.redistributions[static_cast<std::size_t>(list[i])];
      use(change.to, change.*freed);
      use(change.from, change.*freed);
    }
  }

  void use_in_forward(int m, std::vector<int> Redistribution::*freed_by_changes,
                      std::vector<int> ModulePlan::*freed) {
    ModulePlan& planned = module(m);
    use_all(planned.after, freed_by_changes);
    use(planned.output, planned.*freed);
    for (const int input : planned.inputs)
      use(input, planned.*freed);
    use_all(planned.before, freed_by_changes);
  }

  void use_in_backward(int m) {
    ModulePlan& planned = module(m);
    use_all(planned.after_backward, &Redistribution::freed);
    for (const int gradient : planned.input_gradients)
      use(gradient, planned.freed_after_backward);
    use(planned.output_gradient, planned.freed_after_backward);
    if (planned.output_gradient >= 0 && keeps_inputs(model_.modules[static_cast<std::size_t>(m)])) {
      for (const int input : planned.inputs)
        use(input, planned.freed_after_backward);
    }
    use_all(planned.before_backward, &Redistribution::freed);
  }

  /// Once `m` is the last module of a part, backward computes that part again before it. What is
  /// made there was made in forward, too, and no use after the recomputation is one of that.
  void use_in_recomputation(int m, int part) {
    const RecomputedSpec& spec = plan_.scenario.training.recomputed[static_cast<std::size_t>(part)];
    if (m + 1 != spec.end || !is_computed_again(plan_, spec)) return;
    for (int again = spec.end; again-- > spec.first;)
      use_in_forward(again, &Redistribution::freed_when_recomputed,
                     &ModulePlan::freed_after_recomputation);
    for (int again = spec.first; again < spec.end; ++again)
      forget_made_by(module(again));
  }

  void forget_made_by(const ModulePlan& planned) {
    is_used_later_[static_cast<std::size_t>(planned.output)] = 0;
    for (const std::vector<int>* const list : {&planned.before, &planned.after}) {
      for (const int r : *list) {
        const int made = plan_.redistributions[static_cast<std::size_t>(r)].to;
        is_used_later_[static_cast<std::size_t>(made)] = 0;
      }
    }
  }

  /// Whether its backward reads what its forward read.
  static bool keeps_inputs(const ModuleSpec& module) { return module.type != ModuleType::Add; }

  Plan& plan_;
  const ModelSpec& model_;
  std::vector<std::int64_t> features_;
  std::vector<ModuleDTypes> dtypes_;            ///< per module
  std::vector<bool> needs_gradient_;            ///< per activation
  std::vector<std::vector<Version>> versions_;  ///< per activation: as it is given, then others
  std::vector<int> gradients_;                  ///< per activation: as it was given; -1: none yet
  std::vector<char> is_used_later_;             ///< per value, in free_values
};

}  // namespace

Plan lay_out_activations(Plan plan) {
  if (plan.scenario.model.is_elementwise()) {
    plan.output = input_layout(plan.scenario);
  } else {
    ActivationPlanner(plan).run();
  }
  return plan;
}

bool has_activations(const Plan& plan) {
  return plan.modules.size() == plan.scenario.model.modules.size() &&
         static_cast<int>(plan.output.size()) == plan.mesh().num_dims();
}

}  // namespace hpsim
