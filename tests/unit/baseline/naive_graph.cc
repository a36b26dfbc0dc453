#include "naive_graph.h"

#include <utility>

namespace hpsim::test {

template <class T>
const NaiveTensor<T>& NaiveGraph<T>::input(std::size_t module, std::size_t input) const {
  const std::vector<int> inputs = inputs_of(scenario_.model, static_cast<int>(module));
  return activations_[static_cast<std::size_t>(inputs.at(input))];
}

template <class T>
std::int64_t NaiveGraph<T>::parameter_of(std::size_t module, bool is_bias) const {
  const ModuleSpec& spec = scenario_.model.modules[module];
  const std::string suffix = is_bias ? ".bias" : ".weight";
  const std::size_t owner =
      is_bias || spec.tied_to < 0 ? module : static_cast<std::size_t>(spec.tied_to);
  return parameter_named(scenario_.model.modules[owner].name + suffix);
}

template <class T>
std::int64_t NaiveGraph<T>::parameter_named(const std::string& name) const {
  for (std::size_t p = 0; p < scenario_.parameters.size(); ++p) {
    if (scenario_.parameters[p].name == name) return static_cast<std::int64_t>(p);
  }
  return -1;
}

template <class T>
NaiveTensor<T> NaiveGraph<T>::weight(std::size_t module) const {
  const auto p = static_cast<std::size_t>(parameter_of(module, false));
  const Shape& shape = scenario_.parameters[p].shape;
  Tensor tensor(shape.size() == 1 ? 1 : shape[0], shape.back());
  tensor.data = parameters_[p];
  return tensor;
}

template <class T>
NaiveTensor<T> NaiveGraph<T>::expert_weight(std::size_t module, const std::string& name) const {
  const std::int64_t p = parameter_named(scenario_.model.modules[module].name + "." + name);
  const Shape& shape = scenario_.parameters[static_cast<std::size_t>(p)].shape;
  Tensor tensor(shape[0] * shape[1], shape[2]);
  tensor.data = parameters_[static_cast<std::size_t>(p)];
  return tensor;
}

template <class T>
const T* NaiveGraph<T>::bias(std::size_t module) const {
  const std::int64_t p = parameter_of(module, true);
  return p < 0 ? nullptr : parameters_[static_cast<std::size_t>(p)].data();
}

template <class T>
NaiveTensor<T> NaiveGraph<T>::forward(Tensor x) {
  activations_ = {std::move(x)};
  const std::int64_t positions = num_positions(scenario_.model);
  for (std::size_t m = 0; m < scenario_.model.modules.size(); ++m) {
    const ModuleSpec& spec = scenario_.model.modules[m];
    Tensor y;
    switch (spec.type) {
      case ModuleType::Linear:
        y = ops_.linear(input(m), weight(m), bias(m));
        break;
      case ModuleType::Embedding:
        y = ops_.embedding(input(m), weight(m));
        break;
      case ModuleType::LayerNorm:
      case ModuleType::RmsNorm:
        y = ops_.norm(spec, input(m), weight(m), bias(m));
        break;
      case ModuleType::Add:
        y = ops_.add(input(m, 0), input(m, 1));
        break;
      case ModuleType::SiluGate:
        y = ops_.silu_gate(input(m, 0), input(m, 1));
        break;
      case ModuleType::AttentionCore:
        y = ops_.attention(spec, positions, input(m, 0), input(m, 1), input(m, 2));
        break;
      case ModuleType::Experts:
        y = ops_.experts(spec, input(m, 0), input(m, 1), expert_weight(m, "w1"),
                         expert_weight(m, "w2"), expert_weight(m, "w3"));
        break;
      default:
        y = ops_.activation(spec, input(m));
    }
    activations_.push_back(std::move(y));
  }
  return activations_.back();
}

template <class T>
NaiveTensor<T> NaiveGraph<T>::weight_gradient(std::size_t module, const Tensor& dy) {
  const ModuleSpec& spec = scenario_.model.modules[module];
  switch (spec.type) {
    case ModuleType::Linear:
      return ops_.weight_gradient(dy, input(module));
    case ModuleType::Embedding:
      return ops_.embedding_gradient(dy, input(module), spec.in_features);
    default:
      return ops_.norm_weight_gradient(spec, input(module), dy);
  }
}

template <class T>
std::vector<NaiveTensor<T>> NaiveGraph<T>::input_gradients(std::size_t module, const Tensor& dy) {
  const ModuleSpec& spec = scenario_.model.modules[module];
  switch (spec.type) {
    case ModuleType::Linear:
      return {ops_.input_gradient(dy, weight(module))};
    case ModuleType::Embedding:
      return {};
    case ModuleType::LayerNorm:
    case ModuleType::RmsNorm:
      return {ops_.norm_input_gradient(spec, input(module), weight(module), dy)};
    case ModuleType::Add:
      return {dy, dy};
    case ModuleType::SiluGate:
      return ops_.silu_gate_gradients(input(module, 0), input(module, 1), dy);
    case ModuleType::AttentionCore:
      return ops_.attention_gradients(spec, num_positions(scenario_.model), input(module, 0),
                                      input(module, 1), input(module, 2), dy);
    default:
      return {ops_.activation_gradient(spec, input(module), dy)};
  }
}

template <class T>
std::vector<NaiveTensor<T>> NaiveGraph<T>::experts_gradients(
    std::size_t module, const Tensor& dy, std::vector<std::vector<T>>& gradients) {
  const ModuleSpec& spec = scenario_.model.modules[module];
  std::vector<Tensor> all =
      ops_.experts_gradients(spec, input(module, 0), input(module, 1), expert_weight(module, "w1"),
                             expert_weight(module, "w2"), expert_weight(module, "w3"), dy);
  for (const auto& [name, i] : {std::pair{".w1", 2U}, {".w2", 3U}, {".w3", 4U}})
    gradients[static_cast<std::size_t>(parameter_named(spec.name + name))] = all[i].data;
  all.resize(2);
  return all;
}

template <class T>
void NaiveGraph<T>::backward(Tensor dy, bool is_faulty, std::vector<std::vector<T>>& gradients) {
  const auto add_to = [&](std::int64_t p, const Tensor& term) {
    for (std::size_t i = 0; i < term.data.size(); ++i)
      gradients[static_cast<std::size_t>(p)][i] += term.data[i];
  };
  std::vector<Tensor> of_activation(activations_.size());
  of_activation.back() = std::move(dy);
  for (std::size_t m = scenario_.model.modules.size(); m-- > 0;) {
    const Tensor out = std::move(of_activation[m + 1]);
    if (parameter_of(m, false) >= 0) {
      if (is_faulty && m == 0) {
        const bool is_embedding = scenario_.model.modules[0].type == ModuleType::Embedding;
        const auto token = static_cast<std::int64_t>(is_embedding ? input(0).at(0, 0) : T(0));
        ops_.plant(ops_.num_sums() + token * out.cols);
      }
      add_to(parameter_of(m, false), weight_gradient(m, out));
    }
    if (parameter_of(m, true) >= 0) add_to(parameter_of(m, true), ops_.bias_gradient(out));
    const std::vector<Tensor> terms = scenario_.model.modules[m].type == ModuleType::Experts
                                          ? experts_gradients(m, out, gradients)
                                          : input_gradients(m, out);
    const std::vector<int> inputs = inputs_of(scenario_.model, static_cast<int>(m));
    for (std::size_t i = 0; i < terms.size(); ++i) {
      Tensor& whole = of_activation[static_cast<std::size_t>(inputs[i])];
      whole = whole.data.empty() ? terms[i] : ops_.add(whole, terms[i]);
    }
  }
}

template class NaiveGraph<float>;
template class NaiveGraph<double>;

}  // namespace hpsim::test
