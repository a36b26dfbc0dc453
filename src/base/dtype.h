#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace hpsim {

/// Element types, named as in PyTorch.
enum class DType { Float64, Float32, BFloat16, Float16, Int64 };

/// 8, 4, 2, 2, 8
[[nodiscard]] std::int64_t size_bytes(DType dtype);

/// Unit roundoff of round-to-nearest: 2^-53, 2^-24, 2^-8, 2^-11. \pre not an integer type
[[nodiscard]] double unit_roundoff(DType dtype);

/// Rounds values to those of `dtype`, to the nearest, ties to even; beyond its range they become
/// infinite, below its smallest normal number they lose digits as its subnormals do. Nothing is
/// done where T is `dtype`, or narrower. Returns whether a finite value changed.
template <class T>
bool round_to(DType dtype, T* values, std::int64_t count);

/// How many values are none of `dtype`.
template <class T>
[[nodiscard]] std::int64_t count_foreign(DType dtype, const T* values, std::int64_t count);

/// Whether `value` is one of `dtype`; NaN is.
[[nodiscard]] bool is_representable(DType dtype, double value);

/// The smallest positive normal number of the dtype, and of its subnormals: 2^-14 and 2^-24 for
/// float16. \pre not an integer type
[[nodiscard]] double smallest_normal(DType dtype);
[[nodiscard]] double smallest_subnormal(DType dtype);

/// "float64", "float32", "bfloat16", "float16", "int64"
[[nodiscard]] std::string_view name_of(DType dtype);

/// The inverse of `name_of`; nothing for any other text.
[[nodiscard]] std::optional<DType> parse_dtype(std::string_view name);

}  // namespace hpsim
