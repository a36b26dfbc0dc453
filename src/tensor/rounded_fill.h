#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "tensor/fill.h"

namespace hpsim {

/// out[i] = value_at(key, first + i), rounded once to `dtype`, whose values T holds; tokens are
/// whole numbers, and left alone.
///
///   0.15576171875 - 2^-30 as bfloat16    0.1552734375, but rounded to float32 first 0.15625
template <class T>
void rounded_fill(DType dtype, T* out, std::int64_t count, std::uint64_t key, std::int64_t first,
                  const FillSpec& spec);

}  // namespace hpsim
