#include "engine/local_model.h"

#include <utility>

#include "engine/activations.h"
#include "engine/elementwise.h"
#include "engine/linear.h"
#include "tensor/fill.h"

namespace hpsim {

template <class T>
LocalModel<T>::LocalModel(const Scenario& scenario, Rank rank, RankMemory<T>& memory,
                          ExactArithmetic& arithmetic)
    : scenario_(scenario),
      memory_(memory),
      arithmetic_(arithmetic),
      batch_(scenario.local_batch()),
      first_sample_(batch_ * scenario.mesh.index_along(scenario.data.data_dims,
                                                       scenario.mesh.coordinate_of(rank))) {
  const ModelSpec& model = scenario.model;
  if (model.is_elementwise()) {
    inputs_.resize(model.elementwise.size());
    targets_.resize(model.elementwise.size());
    return;
  }
  activations_.resize(model.modules.size() + 1);
  weight_of_.assign(model.modules.size(), -1);
  for (std::size_t p = scenario.parameters.size(); p-- > 0;) {
    weight_of_.at(static_cast<std::size_t>(scenario.parameters[p].module)) = static_cast<int>(p);
  }
  if (!scenario.parameters.empty()) first_with_parameters_ = scenario.parameters[0].module;
}

template <class T>
std::int64_t LocalModel<T>::first_element(std::int64_t elems) const {
  return (step_ * scenario_.training.global_batch + first_sample_) * elems;
}

template <class T>
T LocalModel<T>::loss_divisor(std::int64_t count) const {
  if (scenario_.training.loss_normalization == LossNormalization::Sum) return T(1);
  return static_cast<T>(mean_divisor(scenario_, count));
}

template <class T>
std::int64_t LocalModel<T>::input_elems(int module) const {
  return batch_ * features_before_module(scenario_.model, module);
}

template <class T>
RowBlocks<T> LocalModel<T>::bias_of(int module, bool of_gradient) {
  const auto at = static_cast<std::size_t>(module);
  if (!scenario_.model.modules[at].bias) return {};
  const int bias = weight_of_[at] + 1;
  return of_gradient ? memory_.whole_gradient(bias) : memory_.whole(bias);
}

template <class T>
void LocalModel<T>::forward(int module) {
  if (scenario_.model.is_elementwise()) return forward_elementwise(module);
  const auto at = static_cast<std::size_t>(module);
  const ModuleSpec& spec = scenario_.model.modules[at];
  if (module == 0) {
    activations_[0] = memory_.take(MemoryKind::Activations, input_elems(0));
    fill(activations_[0].data(), input_elems(0), fill_key("input", scenario_.data.seed),
         first_element(features_before_module(scenario_.model, 0)), scenario_.data.input);
  }
  const std::int64_t output_elems = input_elems(module + 1);
  activations_[at + 1] = memory_.take(MemoryKind::Activations, output_elems);
  const T* x = activations_[at].data();
  T* y = activations_[at + 1].data();
  arithmetic_.run([&] {
    if (spec.type == ModuleType::Linear) {
      linear_forward(x, batch_, memory_.whole(weight_of_[at]), bias_of(module, false), y);
    } else {
      activation_forward(spec, x, output_elems, y);
    }
  });
}

template <class T>
void LocalModel<T>::forward_elementwise(int p) {
  const auto at = static_cast<std::size_t>(p);
  const ElementwiseSpec& spec = scenario_.model.elementwise[at];
  const std::int64_t elems = num_elems(spec.shape);
  const auto draw = [&](Buffer<T>& buffer, const char* suffix, const FillSpec& fill_spec) {
    buffer = memory_.take(MemoryKind::Activations, batch_ * elems);
    fill(buffer.data(), batch_ * elems, fill_key(spec.name + suffix, scenario_.data.seed),
         first_element(elems), fill_spec);
  };
  draw(inputs_[at], "/input", scenario_.data.input);
  draw(targets_[at], "/target", scenario_.data.target);
  arithmetic_.run([&] {
    const T sum =
        elementwise_loss_sum(memory_.whole(p), inputs_[at].data(), targets_[at].data(), batch_);
    loss_ += sum / loss_divisor(batch_ * elems);
  });
}

template <class T>
T LocalModel<T>::loss() {
  if (!scenario_.model.is_elementwise()) {
    const std::int64_t features = output_features(scenario_.model);
    const std::int64_t elems = batch_ * features;
    output_gradient_ = memory_.take(MemoryKind::Activations, elems);
    // Holds the target first, then the gradient.
    T* const dy = output_gradient_.data();
    fill(dy, elems, fill_key("target", scenario_.data.seed), first_element(features),
         scenario_.data.target);
    const T* y = activations_.back().data();
    const T divisor = loss_divisor(elems);
    arithmetic_.run([&] {
      T sum = 0;
      for (std::int64_t i = 0; i < elems; ++i) {
        const T difference = y[i] - dy[i];
        sum += difference * difference;
        dy[i] = 2 * difference / divisor;
      }
      loss_ = sum / divisor;
    });
  }
  return std::exchange(loss_, T(0));
}

template <class T>
void LocalModel<T>::backward(int module) {
  if (scenario_.model.is_elementwise()) return backward_elementwise(module);
  const auto at = static_cast<std::size_t>(module);
  const ModuleSpec& spec = scenario_.model.modules[at];
  const std::int64_t output_elems = input_elems(module + 1);
  const T* x = activations_[at].data();
  const T* dy = output_gradient_.data();
  Buffer<T> input_gradient;
  if (module > first_with_parameters_) {
    input_gradient = memory_.take(MemoryKind::Activations, input_elems(module));
  }
  arithmetic_.run([&] {
    if (spec.type == ModuleType::Linear) {
      const int weight = weight_of_[at];
      linear_parameter_gradients(x, dy, batch_, memory_.whole_gradient(weight),
                                 bias_of(module, true));
      if (input_gradient.data() != nullptr) {
        linear_input_gradient(dy, batch_, memory_.whole(weight), input_gradient.data());
      }
    } else {
      activation_backward(spec, x, dy, input_elems(module), input_gradient.data());
    }
  });
  memory_.give_back(MemoryKind::Activations, output_gradient_, output_elems);
  memory_.give_back(MemoryKind::Activations, activations_[at + 1], output_elems);
  output_gradient_ = std::move(input_gradient);
  if (module > first_with_parameters_) return;
  for (int before = 0; before <= module; ++before) {
    memory_.give_back(MemoryKind::Activations, activations_[static_cast<std::size_t>(before)],
                      input_elems(before));
  }
}

template <class T>
void LocalModel<T>::backward_elementwise(int p) {
  const auto at = static_cast<std::size_t>(p);
  const std::int64_t elems = batch_ * num_elems(scenario_.model.elementwise[at].shape);
  arithmetic_.run([&] {
    elementwise_gradient(memory_.whole(p), inputs_[at].data(), targets_[at].data(), batch_,
                         loss_divisor(elems), memory_.whole_gradient(p));
  });
  memory_.give_back(MemoryKind::Activations, inputs_[at], elems);
  memory_.give_back(MemoryKind::Activations, targets_[at], elems);
}

template class LocalModel<float>;
template class LocalModel<double>;

}  // namespace hpsim
