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
                                                       scenario.mesh.coordinate_of(rank))),
      coordinate_(scenario.mesh.coordinate_of(rank)) {
  const ModelSpec& model = scenario.model;
  loss_terms_.assign(model.is_elementwise() ? model.elementwise.size() : 1, T(0));
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
std::vector<Interval> LocalModel<T>::samples_of(int p) const {
  const MeshDims& data_dims = scenario_.data.data_dims;
  const MeshDims shared = shared_data_dims(scenario_, p);
  Coordinate coordinate = coordinate_;
  for (const int dim : shared)
    coordinate[static_cast<std::size_t>(dim)] = 0;
  std::vector<Interval> samples;
  do {
    const std::int64_t first = batch_ * scenario_.mesh.index_along(data_dims, coordinate);
    samples.push_back({first, first + batch_});
  } while (advance(scenario_.mesh, shared, coordinate));
  return samples;
}

template <class T>
void LocalModel<T>::forward_elementwise(int p) {
  const auto at = static_cast<std::size_t>(p);
  const ElementwiseSpec& spec = scenario_.model.elementwise[at];
  const std::int64_t elems = num_elems(spec.shape);
  const Box& box = memory_.whole_box(p);
  const std::int64_t part_elems = num_elems(box.shape);
  const std::vector<Interval> samples = samples_of(p);
  const std::int64_t num_samples = batch_ * static_cast<std::int64_t>(samples.size());
  const auto draw = [&](Buffer<T>& buffer, const char* suffix, const FillSpec& fill_spec) {
    buffer = memory_.take(MemoryKind::Activations, num_samples * part_elems);
    const std::uint64_t key = fill_key(spec.name + suffix, scenario_.data.seed);
    T* next = buffer.data();
    for (const Interval& range : samples) {
      for (std::int64_t sample = range.begin; sample < range.end; ++sample) {
        const std::int64_t base = (step_ * scenario_.training.global_batch + sample) * elems;
        each_run(spec.shape, box, [&](std::int64_t first, std::int64_t count) {
          fill(next, count, key, base + first, fill_spec);
          next += count;
        });
      }
    }
  };
  draw(inputs_[at], "/input", scenario_.data.input);
  draw(targets_[at], "/target", scenario_.data.target);
  arithmetic_.run([&] {
    const T sum = elementwise_loss_sum(memory_.whole(p), inputs_[at].data(), targets_[at].data(),
                                       num_samples);
    loss_terms_[at] = sum / loss_divisor(batch_ * elems);
  });
}

template <class T>
std::vector<T> LocalModel<T>::loss() {
  if (scenario_.model.is_elementwise()) return loss_terms_;
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
    loss_terms_[0] = sum / divisor;
  });
  return loss_terms_;
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
  const std::int64_t num_samples = batch_ * scenario_.mesh.size(shared_data_dims(scenario_, p));
  const std::int64_t drawn = num_samples * num_elems(memory_.whole_box(p).shape);
  arithmetic_.run([&] {
    // The mean is over a rank's own samples, and over all elements of the parameter.
    const std::int64_t count = batch_ * num_elems(scenario_.model.elementwise[at].shape);
    elementwise_gradient(memory_.whole(p), inputs_[at].data(), targets_[at].data(), num_samples,
                         loss_divisor(count), memory_.whole_gradient(p));
  });
  memory_.give_back(MemoryKind::Activations, inputs_[at], drawn);
  memory_.give_back(MemoryKind::Activations, targets_[at], drawn);
}

template class LocalModel<float>;
template class LocalModel<double>;

}  // namespace hpsim
