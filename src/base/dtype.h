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

/// "float64", "float32", "bfloat16", "float16", "int64"
[[nodiscard]] std::string_view name_of(DType dtype);

/// The inverse of `name_of`; nothing for any other text.
[[nodiscard]] std::optional<DType> parse_dtype(std::string_view name);

}  // namespace hpsim
