#include "naive_graph.h"

#include <algorithm>
#include <utility>

#include "base/dtype.h"

namespace hpsim::test {

namespace {

template <class T>
void cast(DType dtype, NaiveTensor<T>& tensor) {
  round_to(dtype, tensor.data.data(), static_cast<std::int64_t>(tensor.data.size()));
}

bool has(const std::vector<std::int64_t>& values, std::int64_t value) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

}  // namespace

std::vector<NaivePart> parts_left_out(const Scenario& scenario, std::int64_t step,
                                      std::int64_t micro_batch, std::int64_t rank) {
  std::vector<NaivePart> parts;
  for (const InactiveSpec& part : scenario.data.inactive) {
    if (has(part.steps, step) && has(part.micro_batches, micro_batch) &&
        has(part.data_ranks, rank)) {
      parts.push_back({part.first, part.end});
    }
  }
  return parts;
}

template <class T>
DType NaiveGraph<T>::dtype_of(std::size_t activation) const {
  return activation == 0 ? input_dtype(scenario_) : dtypes_[activation - 1].given;
}

template <class T>
NaiveTensor<T> NaiveGraph<T>::input(std::size_t module, std::size_t input) const {
  const std::vector<int> inputs = inputs_of(scenario_.model, static_cast<int>(module));
  Tensor x = activations_[static_cast<std::size_t>(inputs.at(input))];
  cast(dtypes_[module].inputs[input], x);
  return x;
}

template <class T>
bool NaiveGraph<T>::is_left_out(std::size_t module) const {
  const int m = static_cast<int>(module);
  return std::any_of(left_out_.begin(), left_out_.end(),
                     [&](const NaivePart& part) { return part.first <= m && m < part.end; });
}

template <class T>
const NaivePart* NaiveGraph<T>::part_before(std::size_t module) const {
  const NaivePart* outermost = nullptr;
  for (const NaivePart& part : left_out_) {
    if (part.end != static_cast<int>(module) + 1) continue;
    if (outermost == nullptr || part.first < outermost->first) outermost = &part;
  }
  return outermost;
}

template <class T>
std::int64_t NaiveGraph<T>::parameter_of(std::size_t module, bool is_bias) const {
  const ModuleSpec& spec = scenario_.model.modules[module];
  const std::string suffix = is_bias ? ".bias" : ".weight";
  const bool is_other = spec.tied_to >= 0 && (!is_bias || spec.ties_bias);
  const std::size_t owner = is_other ? static_cast<std::size_t>(spec.tied_to) : module;
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
NaiveTensor<T> NaiveGraph<T>::output(std::size_t module) {
  const std::int64_t positions = num_positions(scenario_.model);
  const ModuleSpec& spec = scenario_.model.modules[module];
  Tensor y;
  switch (spec.type) {
    case ModuleType::Linear:
      y = ops_.linear(input(module), weight(module), bias(module));
      break;
    case ModuleType::Embedding:
      y = ops_.embedding(input(module), weight(module));
      break;
    case ModuleType::LayerNorm:
    case ModuleType::RmsNorm:
      y = ops_.norm(spec, input(module), weight(module), bias(module));
      break;
    case ModuleType::Add:
      y = ops_.add(input(module, 0), input(module, 1));
      break;
    case ModuleType::SiluGate:
      y = ops_.silu_gate(input(module, 0), input(module, 1));
      break;
    case ModuleType::AttentionCore:
      y = ops_.attention(spec, positions, input(module, 0), input(module, 1), input(module, 2));
      break;
    case ModuleType::Experts:
      y = ops_.experts(spec, input(module, 0), input(module, 1), expert_weight(module, "w1"),
                       expert_weight(module, "w2"), expert_weight(module, "w3"));
      break;
    default:
      y = ops_.activation(spec, input(module));
  }
  cast(dtypes_[module].output, y);
  cast(dtypes_[module].given, y);
  return y;
}

template <class T>
NaiveTensor<T> NaiveGraph<T>::forward(Tensor x) {
  activations_ = {std::move(x)};
  for (std::size_t m = 0; m < scenario_.model.modules.size(); ++m) {
    if (const NaivePart* part = part_before(m)) {
      Tensor passed = input(static_cast<std::size_t>(part->first));
      cast(dtypes_[m].given, passed);
      activations_.push_back(std::move(passed));
    } else {
      activations_.push_back(is_left_out(m) ? Tensor{} : output(m));
    }
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
void NaiveGraph<T>::add_gradient(std::size_t activation, Tensor term) {
  cast(dtype_of(activation), term);
  Tensor& whole = gradients_[activation];
  whole = whole.data.empty() ? std::move(term) : ops_.add(whole, term);
  cast(dtype_of(activation), whole);
}

template <class T>
void NaiveGraph<T>::backward(Tensor dy, bool is_faulty, std::vector<std::vector<T>>& gradients) {
  const auto add_to = [&](std::int64_t p, const Tensor& term) {
    for (std::size_t i = 0; i < term.data.size(); ++i)
      gradients[static_cast<std::size_t>(p)][i] += term.data[i];
  };
  gradients_.assign(activations_.size(), Tensor{});
  add_gradient(activations_.size() - 1, std::move(dy));
  for (std::size_t m = scenario_.model.modules.size(); m-- > 0;) {
    const auto inputs = [&](std::size_t module) {
      return inputs_of(scenario_.model, static_cast<int>(module));
    };
    Tensor out = std::move(gradients_[m + 1]);
    if (const NaivePart* part = part_before(m)) {
      const auto first = static_cast<std::size_t>(part->first);
      cast(dtypes_[first].inputs[0], out);
      add_gradient(static_cast<std::size_t>(inputs(first)[0]), std::move(out));
      continue;
    }
    if (is_left_out(m)) continue;
    cast(dtypes_[m].output, out);
    if (parameter_of(m, false) >= 0) {
      if (is_faulty && m == 0) {
        const bool is_embedding = scenario_.model.modules[0].type == ModuleType::Embedding;
        const auto token = static_cast<std::int64_t>(is_embedding ? input(0).at(0, 0) : T(0));
        ops_.plant(ops_.num_sums() + token * out.cols);
      }
      add_to(parameter_of(m, false), weight_gradient(m, out));
    }
    if (parameter_of(m, true) >= 0) add_to(parameter_of(m, true), ops_.bias_gradient(out));
    std::vector<Tensor> terms = scenario_.model.modules[m].type == ModuleType::Experts
                                    ? experts_gradients(m, out, gradients)
                                    : input_gradients(m, out);
    for (std::size_t i = 0; i < terms.size(); ++i) {
      cast(dtypes_[m].inputs[i], terms[i]);
      add_gradient(static_cast<std::size_t>(inputs(m)[i]), std::move(terms[i]));
    }
  }
}

template class NaiveGraph<float>;
template class NaiveGraph<double>;

}  // namespace hpsim::test
