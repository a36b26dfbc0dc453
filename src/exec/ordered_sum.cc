#include "exec/ordered_sum.h"

#include <algorithm>

#include "base/check.h"
#include "engine/exactness.h"

namespace hpsim {
namespace {

template <class T>
void add(void* sum, const void* term, std::int64_t elems) {
  auto* const to = static_cast<T*>(sum);
  const auto* const from = static_cast<const T*>(term);
  for (std::int64_t i = 0; i < elems; ++i)
    to[i] += from[i];
}

template <class T>
void take_larger(void* largest, const void* values, std::int64_t elems) {
  auto* const to = static_cast<T*>(largest);
  const auto* const from = static_cast<const T*>(values);
  for (std::int64_t i = 0; i < elems; ++i)
    to[i] = std::max(to[i], from[i]);
}

}  // namespace

bool add_to(void* sum, const void* term, std::int64_t elems, DType dtype) {
  const InexactWatch watch;
  if (dtype == DType::Float32) {
    add<float>(sum, term, elems);
  } else {
    HPSIM_CHECK(dtype == DType::Float64, "no sum in {}", name_of(dtype));
    add<double>(sum, term, elems);
  }
  return watch.was_inexact();
}

void take_larger(void* largest, const void* values, std::int64_t elems, DType dtype) {
  if (dtype == DType::Float32) return take_larger<float>(largest, values, elems);
  HPSIM_CHECK(dtype == DType::Float64, "no maximum in {}", name_of(dtype));
  take_larger<double>(largest, values, elems);
}

}  // namespace hpsim
