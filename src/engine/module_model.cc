#include <algorithm>
#include <map>
#include <utility>

#include "base/check.h"
#include "engine/activation_exchange.h"
#include "engine/local_experts.h"
#include "engine/local_loss.h"
#include "engine/local_model.h"
#include "engine/module_kernels.h"
#include "plan/bypassed_parts.h"
#include "plan/recomputation.h"
#include "scenario/precision.h"

namespace hpsim {
namespace {

/// A graph of modules.
template <class T>
class ModuleModel : public LocalModel<T> {
 public:
  ModuleModel(const Plan& plan, Rank rank, RankMemory<T>& memory, ExactArithmetic& arithmetic)
      : plan_(plan),
        scenario_(plan.scenario),
        memory_(memory),
        arithmetic_(arithmetic),
        coordinate_(plan.mesh().coordinate_of(rank)),
        values_(plan.values.size()),
        loss_(plan, coordinate_) {
    for (const ActivationValue& value : plan.values)
      parts_.push_back(activation_part(scenario_, value.layout, value.features, coordinate_));
    const auto parameters = parameters_of_modules(scenario_);
    for (std::size_t m = 0; m < plan.modules.size(); ++m)
      sites_.push_back(site_of(m, parameters[m]));
    for (const Redistribution& redistribution : plan.redistributions)
      exchanges_.emplace_back(plan, redistribution, coordinate_, memory);
    for (const int module : experts_modules(scenario_.model))
      experts_.emplace(module,
                       LocalExperts<T>(plan, module, coordinate_, site(module).rows(), memory));
  }

  void enter_pass(const Pass& pass) override { pass_ = pass; }

  void forward(const Step& step) override {
    const int module = step.module;
    if (module == 0) draw_input();
    for (const BypassedPart& part : bypassed_parts(plan_, step)) {
      if (part.copies() && part.first == module) kept_inputs_[part.spec] = copy_of(part.input);
    }
    const ModulePlan& planned = planned_at(module);
    const std::vector<const T*> inputs = inputs_of(planned);
    if (LocalExperts<T>* experts = experts_of(module)) {
      arithmetic_.run([&] { experts->forward(inputs.at(0), inputs.at(1)); });
      if (!experts->exchanges()) give_outputs(step, *experts);
      return;
    }
    LocalActivation<T>& output = value(planned.output);
    output = take(planned.output);
    arithmetic_.run([&] { module_forward(site(module), memory_, inputs, output.data.data()); });
    round(output);
    end_forward(step);
  }

  CollectiveEnds<T> begin_loss() override {
    value(plan_.loss.gradient) = take(plan_.loss.gradient);
    return loss_.begin(pass_, this->sample_shift().of_target, value(plan_.loss.output),
                       value(plan_.loss.gradient), memory_);
  }

  std::vector<T> finish_loss() override {
    T loss = 0;
    arithmetic_.run([&] {
      loss = loss_.finish(value(plan_.loss.output), value(plan_.loss.gradient), memory_);
    });
    round(value(plan_.loss.gradient));
    free(plan_.loss.freed);
    return {loss};
  }

  void backward(const Step& step) override {
    const int module = step.module;
    const ModulePlan& planned = planned_at(module);
    LocalExperts<T>* const experts = experts_of(module);
    if (experts == nullptr || !experts->exchanges()) begin_backward(step);
    const T* const dy = value(planned.output_gradient).data.data();
    if (experts != nullptr) {
      arithmetic_.run([&] { experts->backward(dy); });
      const bool sends_back = experts->exchanges() && planned.input_gradients.at(0) >= 0;
      if (!sends_back) give_input_gradients(step, *experts);
      return;
    }
    std::vector<bool> needs(planned.input_gradients.size());
    for (std::size_t i = 0; i < needs.size(); ++i)
      needs[i] = planned.input_gradients[i] >= 0;
    give_input_gradients(step, [&](const std::vector<T*>& gradients) {
      module_backward(site(module), memory_, inputs_of(planned), dy, needs, gradients);
      for (const BypassedPart& part : bypassed_parts(plan_, step)) {
        if (part.last == module && !part.copies()) pass_back_sum(part, step, gradients);
      }
    });
  }

  TokenEnds begin_tokens(const Step& step) override {
    const ModulePlan& planned = planned_at(step.module);
    LocalExperts<T>& experts = experts_.at(step.module);
    TokenEnds ends;
    arithmetic_.run([&] {
      if (step.kind == StepKind::Route) {
        ends = experts.begin_route(inputs_of(planned).at(1));
      } else if (step.kind == StepKind::Combine) {
        ends = experts.begin_combine(direction_of(step));
      } else {
        const bool is_forward = runs_forward(step);
        if (!is_forward) begin_backward(step);
        const int rows = is_forward ? planned.inputs.at(0) : planned.output_gradient;
        ends = experts.begin_dispatch(direction_of(step), value(rows).data.data());
      }
    });
    return ends;
  }

  void finish_tokens(const Step& step) override {
    LocalExperts<T>& experts = experts_.at(step.module);
    if (step.kind == StepKind::Route) return experts.finish_route();
    if (step.kind == StepKind::Dispatch) return experts.finish_dispatch(direction_of(step));
    experts.finish_combine();
    if (runs_forward(step)) return give_outputs(step, experts);
    give_input_gradients(step, experts);
  }

  [[nodiscard]] std::vector<std::int64_t> routed_counts(int module) const override {
    return experts_.at(module).routed_counts();
  }

  [[nodiscard]] std::span<T> routing_weights(int module) override {
    return experts_.at(module).probabilities();
  }

  [[nodiscard]] std::span<T> output_of(int module) override {
    LocalActivation<T>& output = value(planned_at(module).output);
    return {output.data.data(), static_cast<std::size_t>(output.elems)};
  }
  [[nodiscard]] std::int64_t* first_class() override { return loss_.first_class(); }

  CollectiveEnds<T> begin_redistribute(const Step& step) override {
    const Redistribution& change = redistribution_at(step.redistribution);
    if (change.activation == 0 && !change.is_gradient) draw_input();
    const auto ends = exchange(step.redistribution).begin(value(change.from), step.is_recomputed);
    return {ends.input, ends.output};
  }

  void finish_redistribute(const Step& step) override {
    const Redistribution& change = redistribution_at(step.redistribution);
    arithmetic_.run([&] {
      arithmetic_.note(exchange(step.redistribution).finish(value(change.from), value(change.to)));
    });
    for (const int freed : freed_after(plan_, step)) {
      if (freed != change.from) give_back(memory_, value(freed));
    }
  }

 private:
  [[nodiscard]] LocalActivation<T>& value(int index) {
    return values_.at(static_cast<std::size_t>(index));
  }
  [[nodiscard]] const ActivationPart& part(int index) const {
    return parts_.at(static_cast<std::size_t>(index));
  }
  [[nodiscard]] std::int64_t elems_of(int index) const { return num_elems(scenario_, part(index)); }
  [[nodiscard]] const ModulePlan& planned_at(int module) const {
    return plan_.modules.at(static_cast<std::size_t>(module));
  }
  [[nodiscard]] const ModuleSite& site(int module) const {
    return sites_.at(static_cast<std::size_t>(module));
  }
  [[nodiscard]] ActivationExchange<T>& exchange(int redistribution) {
    return exchanges_.at(static_cast<std::size_t>(redistribution));
  }
  [[nodiscard]] const Redistribution& redistribution_at(int redistribution) const {
    return plan_.redistributions.at(static_cast<std::size_t>(redistribution));
  }

  /// None of other modules.
  [[nodiscard]] LocalExperts<T>* experts_of(int module) {
    const auto found = experts_.find(module);
    return found == experts_.end() ? nullptr : &found->second;
  }
  [[nodiscard]] std::vector<const T*> inputs_of(const ModulePlan& planned) {
    std::vector<const T*> inputs;
    for (const int input : planned.inputs)
      inputs.push_back(value(input).data.data());
    return inputs;
  }

  /// As the experts see it: what is recomputed is the way forward.
  static Phase direction_of(const Step& step) {
    return runs_forward(step) ? Phase::Forward : Phase::Backward;
  }

  void give_outputs(const Step& step, LocalExperts<T>& experts) {
    const ModulePlan& planned = planned_at(step.module);
    LocalActivation<T>& output = value(planned.output);
    output = take(planned.output);
    arithmetic_.run([&] { experts.outputs(output.data.data()); });
    if (!keeps_for_backward(plan_, step)) experts.forget_forward();
    round(output);
    end_forward(step);
  }

  void give_input_gradients(const Step& step, LocalExperts<T>& experts) {
    give_input_gradients(step, [&](const std::vector<T*>& gradients) {
      experts.input_gradients(gradients.at(0), gradients.at(1));
    });
  }

  /// Calls compute(gradients), null where none is needed; what it wrote becomes the gradients of
  /// the inputs, or is added to what is there.
  template <class Compute>
  void give_input_gradients(const Step& step, const Compute& compute) {
    const ModulePlan& planned = planned_at(step.module);
    std::vector<T*> gradients;
    std::vector<LocalActivation<T>> computed(planned.inputs.size());
    for (std::size_t i = 0; i < computed.size(); ++i) {
      if (planned.input_gradients[i] >= 0) computed[i] = take(planned.input_gradients[i]);
      gradients.push_back(computed[i].data.data());
    }
    arithmetic_.run([&] { compute(gradients); });
    for (std::size_t i = 0; i < computed.size(); ++i) {
      if (planned.input_gradients[i] < 0) continue;
      round(computed[i]);
      LocalActivation<T>& gradient = value(planned.input_gradients[i]);
      if (planned.added_to[i] == 0) {
        gradient = std::move(computed[i]);
        continue;
      }
      arithmetic_.run([&] { add_activation(computed[i], gradient); });
      round(gradient);
      give_back(memory_, computed[i]);
    }
    end_backward(step);
  }

  void end_forward(const Step& step) {
    for (const BypassedPart& part : bypassed_parts(plan_, step)) {
      if (part.last == step.module) pass_on(part, step);
    }
    free(freed_after(plan_, step));
  }
  void begin_backward(const Step& step) {
    for (const BypassedPart& part : bypassed_parts(plan_, step)) {
      if (part.last == step.module) hold_back(part, step);
    }
  }
  void end_backward(const Step& step) {
    for (const BypassedPart& part : bypassed_parts(plan_, step)) {
      if (part.first == step.module && part.copies()) pass_back(part, step);
    }
    free(freed_after(plan_, step));
  }

  [[nodiscard]] LocalActivation<T> take(int index) {
    return take_activation(memory_, plan_.values.at(static_cast<std::size_t>(index)).dtype,
                           elems_of(index));
  }
  void round(LocalActivation<T>& activation) {
    arithmetic_.round(activation.dtype, activation.data.data(), activation.elems);
  }
  [[nodiscard]] LocalActivation<T> copy_of(int index) {
    LocalActivation<T> copy = take(index);
    std::copy_n(value(index).data.data(), copy.elems, copy.data.data());
    return copy;
  }

  [[nodiscard]] bool is_inactive(const BypassedPart& part, const Step& step) const {
    return is_inactive_at(plan_, step, part.first, coordinate_);
  }

  /// The last module of an inactive part gives what the first one took, or what it adds to.
  void pass_on(const BypassedPart& part, const Step& step) {
    LocalActivation<T>& output = value(planned_at(part.last).output);
    if (!part.copies()) {
      if (!is_inactive(part, step)) return;
      const int kept = planned_at(part.last).inputs.at(static_cast<std::size_t>(part.kept));
      std::copy_n(value(kept).data.data(), output.elems, output.data.data());
      return;
    }
    LocalActivation<T>& input = kept_inputs_.at(part.spec);
    if (is_inactive(part, step)) std::copy_n(input.data.data(), output.elems, output.data.data());
    give_back(memory_, input);
  }

  /// The gradient of what an inactive part gives goes around it: inside it is zero.
  void hold_back(const BypassedPart& part, const Step& step) {
    if (!part.copies()) return;
    LocalActivation<T>& gradient = value(part.output_gradient);
    if (part.input_gradient >= 0) kept_gradients_[part.spec] = copy_of(part.output_gradient);
    if (is_inactive(part, step)) std::fill_n(gradient.data.data(), gradient.elems, T(0));
  }

  void pass_back(const BypassedPart& part, const Step& step) {
    if (part.input_gradient < 0) return;
    LocalActivation<T>& around = kept_gradients_.at(part.spec);
    LocalActivation<T>& gradient = value(part.input_gradient);
    if (is_inactive(part, step)) {
      arithmetic_.run([&] { add_activation(around, gradient); });
      round(gradient);
    }
    give_back(memory_, around);
  }

  /// Of a residual: what is added to it has no gradient.
  void pass_back_sum(const BypassedPart& part, const Step& step,
                     const std::vector<T*>& gradients) const {
    if (!is_inactive(part, step)) return;
    const ModulePlan& planned = planned_at(part.last);
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      if (static_cast<int>(i) == part.kept || gradients[i] == nullptr) continue;
      std::fill_n(gradients[i], elems_of(planned.input_gradients[i]), T(0));
    }
  }

  void free(const std::vector<int>& values) {
    for (const int index : values)
      give_back(memory_, value(index));
  }

  /// Unless it is drawn already: it is where it is first needed.
  void draw_input() {
    if (drawn_ == pass_) return;
    drawn_ = pass_;
    const int input = 0;  // the model's input, as it comes, is the first value
    value(input) = take(input);
    draw_samples(scenario_, pass_, "input", scenario_.data.input, part(input),
                 plan_.values[static_cast<std::size_t>(input)].features,
                 this->sample_shift().of_input, value(input).data.data());
  }

  [[nodiscard]] ModuleSite site_of(std::size_t module, const std::vector<int>& parameters) const {
    const ModulePlan& planned = plan_.modules[module];
    const ActivationPart& input = part(planned.inputs.at(0));
    ModuleSite site{.spec = &scenario_.model.modules[module],
                    .samples = num_samples(scenario_, input),
                    .positions = input.positions.length(),
                    .input_features = input.features,
                    .output_features = part(planned.output).features};
    if (site.spec->type == ModuleType::Experts) return site;  // LocalExperts knows its weights
    const ActivationValue& given = plan_.values[static_cast<std::size_t>(planned.output)];
    site.scratch_dtype = promoted(given.dtype, DType::Float32);
    if (!parameters.empty()) site.weight = parameters[0];
    if (parameters.size() > 1) site.bias = parameters[1];
    for (std::size_t dim = 0; dim < planned.layout.output.size(); ++dim) {
      const bool is_partial = std::holds_alternative<Partial>(planned.layout.output[dim]);
      if (is_partial && coordinate_[dim] != 0) site.is_first_term = false;
    }
    return site;
  }

  const Plan& plan_;
  const Scenario& scenario_;
  RankMemory<T>& memory_;
  ExactArithmetic& arithmetic_;
  Coordinate coordinate_;
  std::vector<LocalActivation<T>> values_;        ///< like Plan::values
  std::vector<ActivationPart> parts_;             ///< likewise
  std::vector<ModuleSite> sites_;                 ///< per module
  std::vector<ActivationExchange<T>> exchanges_;  ///< per redistribution
  std::map<int, LocalExperts<T>> experts_;        ///< per experts module
  LocalLoss<T> loss_;
  std::map<int, LocalActivation<T>> kept_inputs_;     ///< of inactive parts, by BypassedPart::spec
  std::map<int, LocalActivation<T>> kept_gradients_;  ///< likewise, of their outputs
  Pass pass_;
  Pass drawn_ = {-1, -1};  ///< of which the model's input is drawn
};

}  // namespace

template <class T>
std::unique_ptr<LocalModel<T>> make_module_model(const Plan& plan, Rank rank, RankMemory<T>& memory,
                                                 ExactArithmetic& arithmetic) {
  return std::make_unique<ModuleModel<T>>(plan, rank, memory, arithmetic);
}

template std::unique_ptr<LocalModel<float>> make_module_model(const Plan&, Rank, RankMemory<float>&,
                                                              ExactArithmetic&);
template std::unique_ptr<LocalModel<double>> make_module_model(const Plan&, Rank,
                                                               RankMemory<double>&,
                                                               ExactArithmetic&);

}  // namespace hpsim
