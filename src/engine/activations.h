#pragma once

#include <cstdint>

#include "model/model_spec.h"

namespace hpsim {

// Modules without parameters, element by element over `elems` elements. \pre spec is none of linear

/// y = f(x), see ModuleSpec
template <class T>
void activation_forward(const ModuleSpec& spec, const T* x, std::int64_t elems, T* y);

/// dx = f'(x) dy; relu'(0) = 0
template <class T>
void activation_backward(const ModuleSpec& spec, const T* x, const T* dy, std::int64_t elems,
                         T* dx);

}  // namespace hpsim
