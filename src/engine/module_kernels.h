#pragma once

#include <cstdint>
#include <vector>

#include "base/interval.h"
#include "engine/rank_memory.h"
#include "model/model_spec.h"

namespace hpsim {

/// What one rank computes of a module.
struct ModuleSite {
  const ModuleSpec* spec = nullptr;
  std::int64_t samples = 0;
  std::int64_t positions = 0;  ///< of each sample
  Interval input_features;     ///< of its first input
  Interval output_features;
  int weight = -1;  ///< parameter; -1: none
  int bias = -1;    ///< parameter; -1: none
  /// Where ranks compute terms of the output, only the first adds the bias.
  bool is_first_term = true;
  DType scratch_dtype = DType::Float32;

  [[nodiscard]] std::int64_t rows() const { return samples * positions; }
};

/// Output of a module from its inputs. \pre its parameters are whole
template <class T>
void module_forward(const ModuleSite& site, RankMemory<T>& memory,
                    const std::vector<const T*>& inputs, T* output);

/// Gradients of the inputs that are needed, overwriting, and of the parameters that have one, from
/// that of the output.
template <class T>
void module_backward(const ModuleSite& site, RankMemory<T>& memory,
                     const std::vector<const T*>& inputs, const T* output_gradient,
                     const std::vector<bool>& needs, const std::vector<T*>& input_gradients);

}  // namespace hpsim
