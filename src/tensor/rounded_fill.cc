#include "tensor/rounded_fill.h"

#include <algorithm>
#include <array>
#include <type_traits>

namespace hpsim {

template <class T>
void rounded_fill(DType dtype, T* out, std::int64_t count, std::uint64_t key, std::int64_t first,
                  const FillSpec& spec) {
  constexpr DType kOwn = std::is_same_v<T, float> ? DType::Float32 : DType::Float64;
  if (dtype == kOwn || spec.kind == FillSpec::Kind::Token)
    return fill(out, count, key, first, spec);
  constexpr std::int64_t kChunk = 512;
  std::array<double, kChunk> values;
  for (std::int64_t begin = 0; begin < count; begin += kChunk) {
    const std::int64_t size = std::min(kChunk, count - begin);
    fill(values.data(), size, key, first + begin, spec);
    round_to(dtype, values.data(), size);
    std::transform(values.begin(), values.begin() + size, out + begin,
                   [](double value) { return static_cast<T>(value); });
  }
}

template void rounded_fill<float>(DType, float*, std::int64_t, std::uint64_t, std::int64_t,
                                  const FillSpec&);
template void rounded_fill<double>(DType, double*, std::int64_t, std::uint64_t, std::int64_t,
                                   const FillSpec&);

}  // namespace hpsim
