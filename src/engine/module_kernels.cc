#include "engine/module_kernels.h"

#include <algorithm>

#include "base/check.h"
#include "engine/activations.h"
#include "engine/add.h"
#include "engine/attention_core.h"
#include "engine/embedding.h"
#include "engine/layer_norm.h"
#include "engine/linear.h"
#include "engine/rms_norm.h"
#include "engine/silu_gate.h"

namespace hpsim {
namespace {

std::int64_t input_elems(const ModuleSite& site) {
  return site.rows() * site.input_features.length();
}

std::int64_t output_elems(const ModuleSite& site) {
  return site.rows() * site.output_features.length();
}

AttentionShape attention_shape(const ModuleSite& site) {
  const ModuleSpec& spec = *site.spec;
  const std::int64_t heads = site.output_features.length() / spec.head_dim;
  return {.samples = site.samples,
          .seq = site.positions,
          .heads = heads,
          .kv_heads = heads / (spec.heads / spec.kv_heads),
          .head_dim = spec.head_dim,
          .causal = spec.causal};
}

template <class T>
RowBlocks<T> whole_if_any(RankMemory<T>& memory, int parameter) {
  return parameter < 0 ? RowBlocks<T>{} : memory.whole(parameter);
}

template <class T>
RowBlocks<T> gradient_if_any(RankMemory<T>& memory, int parameter) {
  return parameter < 0 ? RowBlocks<T>{} : memory.whole_gradient(parameter);
}

/// Calls compute(scratch) with memory that it lends.
template <class T, class Compute>
void with_scratch(RankMemory<T>& memory, DType dtype, std::int64_t elems, const Compute& compute) {
  Buffer<T> scratch = memory.take(MemoryKind::Activations, dtype, elems);
  compute(scratch.data());
  memory.give_back(MemoryKind::Activations, dtype, scratch, elems);
}

template <class T>
void linear_backward(const ModuleSite& site, RankMemory<T>& memory, const T* x, const T* dy,
                     bool needs, T* dx) {
  linear_parameter_gradients(x, dy, site.rows(), memory.whole_gradient(site.weight),
                             gradient_if_any(memory, site.bias));
  if (needs) linear_input_gradient(dy, site.rows(), memory.whole(site.weight), dx);
}

}  // namespace

template <class T>
void module_forward(const ModuleSite& site, RankMemory<T>& memory,
                    const std::vector<const T*>& inputs, T* output) {
  const ModuleSpec& spec = *site.spec;
  const T* x = inputs.at(0);
  switch (spec.type) {
    case ModuleType::Linear:
      return linear_forward(x, site.rows(), memory.whole(site.weight),
                            whole_if_any(memory, site.is_first_term ? site.bias : -1), output);
    case ModuleType::Relu:
    case ModuleType::Tanh:
    case ModuleType::Silu:
    case ModuleType::Gelu:
      return activation_forward(spec, x, output_elems(site), output);
    case ModuleType::LayerNorm:
      return layer_norm_forward(x, site.rows(), memory.whole(site.weight), memory.whole(site.bias),
                                spec.eps, output);
    case ModuleType::RmsNorm:
      return rms_norm_forward(x, site.rows(), memory.whole(site.weight), spec.eps, output);
    case ModuleType::Embedding:
      return embedding_forward(x, site.rows(), memory.whole(site.weight),
                               memory.whole_box(site.weight).offset.at(0), output);
    case ModuleType::AttentionCore: {
      const AttentionShape shape = attention_shape(site);
      return with_scratch(
          memory, site.scratch_dtype, attention_forward_scratch(shape), [&](T* scratch) {
            attention_core_forward(shape, x, inputs.at(1), inputs.at(2), output, scratch);
          });
    }
    case ModuleType::SiluGate:
      return silu_gate_forward(x, inputs.at(1), output_elems(site), output);
    case ModuleType::Experts:
      break;
    case ModuleType::Add:
      return add_forward(x, inputs.at(1), output_elems(site), output);
  }
  HPSIM_CHECK(false, "no kernel computes {}", name_of(spec.type));
}

template <class T>
void module_backward(const ModuleSite& site, RankMemory<T>& memory,
                     const std::vector<const T*>& inputs, const T* dy,
                     const std::vector<bool>& needs, const std::vector<T*>& gradients) {
  const ModuleSpec& spec = *site.spec;
  const T* x = inputs.at(0);
  T* const dx = gradients.at(0);
  switch (spec.type) {
    case ModuleType::Linear:
      return linear_backward(site, memory, x, dy, needs.at(0), dx);
    case ModuleType::Relu:
    case ModuleType::Tanh:
    case ModuleType::Silu:
    case ModuleType::Gelu:
      return activation_backward(spec, x, dy, input_elems(site), dx);
    case ModuleType::LayerNorm:
      return layer_norm_backward(x, dy, site.rows(), memory.whole(site.weight), spec.eps, dx,
                                 memory.whole_gradient(site.weight),
                                 memory.whole_gradient(site.bias));
    case ModuleType::RmsNorm:
      return rms_norm_backward(x, dy, site.rows(), memory.whole(site.weight), spec.eps, dx,
                               memory.whole_gradient(site.weight));
    case ModuleType::Embedding:
      return embedding_backward(x, dy, site.rows(), memory.whole_gradient(site.weight),
                                memory.whole_box(site.weight).offset.at(0));
    case ModuleType::AttentionCore: {
      const AttentionShape shape = attention_shape(site);
      return with_scratch(memory, site.scratch_dtype, attention_backward_scratch(shape),
                          [&](T* scratch) {
                            attention_core_backward(shape, x, inputs.at(1), inputs.at(2), dy, dx,
                                                    gradients.at(1), gradients.at(2), scratch);
                          });
    }
    case ModuleType::SiluGate:
      return silu_gate_backward(x, inputs.at(1), dy, output_elems(site), dx, gradients.at(1));
    case ModuleType::Experts:
      break;
    case ModuleType::Add:
      for (std::size_t i = 0; i < gradients.size(); ++i) {
        if (needs[i]) std::copy_n(dy, output_elems(site), gradients[i]);
      }
      return;
  }
  HPSIM_CHECK(false, "no kernel computes {}", name_of(spec.type));
}

#define HPSIM_INSTANTIATE(T)                                                                     \
  template void module_forward(const ModuleSite&, RankMemory<T>&, const std::vector<const T*>&,  \
                               T*);                                                              \
  template void module_backward(const ModuleSite&, RankMemory<T>&, const std::vector<const T*>&, \
                                const T*, const std::vector<bool>&, const std::vector<T*>&);
HPSIM_INSTANTIATE(float)
HPSIM_INSTANTIATE(double)
#undef HPSIM_INSTANTIATE

}  // namespace hpsim
