#include <utility>

#include "base/check.h"
#include "engine/activation_exchange.h"
#include "engine/activations.h"
#include "engine/linear.h"
#include "engine/local_model.h"
#include "tensor/fill.h"

namespace hpsim {
namespace {

/// What this rank computes of a module.
struct ModulePart {
  std::int64_t samples = 0;
  std::int64_t input_elems = 0;
  std::int64_t output_elems = 0;
  int weight = -1;         ///< parameter; -1: none
  int bias = -1;           ///< parameter; -1: none
  bool adds_bias = false;  ///< where ranks compute terms of the output, only the first does
};

/// A chain of modules.
template <class T>
class ModuleModel : public LocalModel<T> {
 public:
  ModuleModel(const Plan& plan, Rank rank, RankMemory<T>& memory, ExactArithmetic& arithmetic)
      : plan_(plan),
        scenario_(plan.scenario),
        memory_(memory),
        arithmetic_(arithmetic),
        coordinate_(plan.mesh().coordinate_of(rank)),
        features_(features_along(scenario_.model)),
        activations_(features_.size()) {
    const std::vector<int> weights = first_parameters(scenario_);
    for (std::size_t m = 0; m < weights.size(); ++m)
      parts_.push_back(part_of(m, weights[m]));
    while (parts_[static_cast<std::size_t>(first_with_parameters_)].weight < 0)
      ++first_with_parameters_;
    for (const Redistribution& redistribution : plan.redistributions)
      exchanges_.emplace_back(plan, redistribution, coordinate_, memory);
  }

  void enter_step(std::int64_t step) override { step_ = step; }

  void forward(int module) override {
    const auto at = static_cast<std::size_t>(module);
    if (module == 0) draw_input();
    const ModulePart& part = parts_[at];
    HPSIM_CHECK(activations_[at].elems == part.input_elems, "module {} gets {} elements, not {}",
                module, activations_[at].elems, part.input_elems);
    activations_[at + 1] = take_activation(memory_, part.output_elems);
    const T* x = activations_[at].data.data();
    T* y = activations_[at + 1].data.data();
    arithmetic_.run([&] {
      if (part.weight < 0) {
        activation_forward(scenario_.model.modules[at], x, part.output_elems, y);
      } else {
        linear_forward(x, part.samples, memory_.whole(part.weight),
                       part.adds_bias ? memory_.whole(part.bias) : RowBlocks<T>{}, y);
      }
    });
  }

  std::vector<T> loss() override {
    const ActivationPart part = part_at(plan_.output, features_.size() - 1);
    const std::int64_t elems = num_elems(scenario_, part);
    gradient_ = take_activation(memory_, elems);
    // Holds the target first, then the gradient.
    T* const dy = gradient_.data.data();
    draw(dy, part, "target", features_.back(), scenario_.data.target);
    const T* y = activations_.back().data.data();
    const auto divisor =
        static_cast<T>(loss_divisor(scenario_, scenario_.local_batch() * features_.back()));
    T loss = 0;
    arithmetic_.run([&] {
      T sum = 0;
      for (std::int64_t i = 0; i < elems; ++i) {
        const T difference = y[i] - dy[i];
        sum += difference * difference;
        dy[i] = 2 * difference / divisor;
      }
      loss = sum / divisor;
    });
    return {loss};
  }

  void backward(int module) override {
    const auto at = static_cast<std::size_t>(module);
    const ModulePart& part = parts_[at];
    const T* x = activations_[at].data.data();
    const T* dy = gradient_.data.data();
    HPSIM_CHECK(gradient_.elems == part.output_elems, "module {} gets a gradient of {}, not {}",
                module, gradient_.elems, part.output_elems);
    const bool needs_input_gradient = module > first_with_parameters_;
    LocalActivation<T> input_gradient;
    if (needs_input_gradient) input_gradient = take_activation(memory_, part.input_elems);
    T* const dx = input_gradient.data.data();
    arithmetic_.run([&] {
      if (part.weight < 0) {
        activation_backward(scenario_.model.modules[at], x, dy, part.input_elems, dx);
        return;
      }
      linear_parameter_gradients(
          x, dy, part.samples, memory_.whole_gradient(part.weight),
          part.bias < 0 ? RowBlocks<T>{} : memory_.whole_gradient(part.bias));
      if (needs_input_gradient)
        linear_input_gradient(dy, part.samples, memory_.whole(part.weight), dx);
    });
    give_back(memory_, gradient_);
    give_back(memory_, activations_[at + 1]);
    gradient_ = std::move(input_gradient);
    if (needs_input_gradient) return;
    for (std::size_t before = 0; before <= at; ++before)
      give_back(memory_, activations_[before]);
  }

  CollectiveEnds<T> begin_redistribute(int redistribution) override {
    if (&changed_by(redistribution) == activations_.data()) draw_input();
    const auto ends = exchange(redistribution).begin(changed_by(redistribution));
    return {ends.input, ends.output};
  }

  void finish_redistribute(int redistribution) override {
    exchange(redistribution).finish(changed_by(redistribution));
  }

 private:
  [[nodiscard]] ActivationPart part_at(const std::vector<Placement>& layout,
                                       std::size_t activation) const {
    return activation_part(scenario_, layout, features_[activation], coordinate_);
  }

  [[nodiscard]] ModulePart part_of(std::size_t module, int weight) const {
    const ModuleLayout& layout = plan_.modules.at(module);
    const ActivationPart input = part_at(layout.input, module);
    ModulePart part{.samples = num_samples(scenario_, input),
                    .input_elems = num_elems(scenario_, input),
                    .output_elems = num_elems(scenario_, part_at(layout.output, module + 1)),
                    .weight = weight};
    if (weight < 0 || !scenario_.model.modules[module].bias) return part;
    part.bias = weight + 1;
    part.adds_bias = true;
    for (std::size_t dim = 0; dim < layout.output.size(); ++dim) {
      const bool is_partial = std::holds_alternative<Partial>(layout.output[dim]);
      if (is_partial && coordinate_[dim] != 0) part.adds_bias = false;
    }
    return part;
  }

  [[nodiscard]] ActivationExchange<T>& exchange(int redistribution) {
    return exchanges_.at(static_cast<std::size_t>(redistribution));
  }
  /// The activation, or the gradient on its way back, that a redistribution changes.
  [[nodiscard]] LocalActivation<T>& changed_by(int redistribution) {
    const Redistribution& change =
        plan_.redistributions.at(static_cast<std::size_t>(redistribution));
    return change.is_gradient ? gradient_
                              : activations_.at(static_cast<std::size_t>(change.activation));
  }

  /// Unless it is drawn already.
  void draw_input() {
    if (drawn_step_ == step_) return;
    drawn_step_ = step_;
    const ActivationPart part = part_at(input_layout(scenario_), 0);
    activations_[0] = take_activation(memory_, num_elems(scenario_, part));
    draw(activations_[0].data.data(), part, "input", features_[0], scenario_.data.input);
  }

  /// The samples of a part, of this optimizer step.
  void draw(T* data, const ActivationPart& part, const char* name, std::int64_t features,
            const FillSpec& spec) const {
    const std::uint64_t key = fill_key(name, scenario_.data.seed);
    const std::int64_t batch = scenario_.local_batch();
    const std::int64_t width = part.features.length();
    for (const std::int64_t data_rank : part.data_ranks) {
      const std::int64_t first = step_ * scenario_.training.global_batch + data_rank * batch;
      if (width == features) {
        fill(data, batch * features, key, first * features, spec);
        data += batch * features;
        continue;
      }
      for (std::int64_t sample = first; sample < first + batch; ++sample, data += width)
        fill(data, width, key, sample * features + part.features.begin, spec);
    }
  }

  const Plan& plan_;
  const Scenario& scenario_;
  RankMemory<T>& memory_;
  ExactArithmetic& arithmetic_;
  Coordinate coordinate_;
  std::vector<std::int64_t> features_;            ///< before each module and behind the last
  std::vector<LocalActivation<T>> activations_;   ///< [0]: input, [m + 1]: output of module m
  LocalActivation<T> gradient_;                   ///< of the module whose backward comes next
  std::vector<ModulePart> parts_;                 ///< per module
  std::vector<ActivationExchange<T>> exchanges_;  ///< per redistribution
  int first_with_parameters_ = 0;                 ///< module; nothing before it needs a gradient
  std::int64_t step_ = 0;                         ///< optimizer step
  std::int64_t drawn_step_ = -1;  ///< the step of which activations_[0] is, or was, the input
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
