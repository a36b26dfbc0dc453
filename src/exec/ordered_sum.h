#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace hpsim {

// Sums in group order, the one order that every executor uses: results are equal bit for bit.

/// sum[i] += term[i]. Returns whether an addition rounded (the INEXACT flag), which exact mode
/// forbids. \pre dtype is float32 or float64; the two do not overlap
[[nodiscard]] bool add_to(void* sum, const void* term, std::int64_t elems, DType dtype);

/// largest[i] = max(largest[i], value[i]). \pre likewise
void take_larger(void* largest, const void* values, std::int64_t elems, DType dtype);

}  // namespace hpsim
