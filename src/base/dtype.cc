#include "base/dtype.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <type_traits>

#include "base/check.h"

namespace hpsim {
namespace {

/// A float in a format of float32's exponents and 7 bits of fraction.
float to_bfloat16(float value) {
  if (std::isnan(value)) return value;
  std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  bits += 0x7fffU + ((bits >> 16) & 1U);  // carries into the exponent, up to infinity
  return std::bit_cast<float>(bits & 0xffff0000U);
}

/// A float in float16's format: 10 bits of fraction, exponents from -14 to 15.
float to_float16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = bits & 0x80000000U;
  const std::uint32_t size = bits ^ sign;
  constexpr std::uint32_t kInfinity = 0x7f800000U;
  constexpr std::uint32_t kSmallestNormal = 0x38800000U;  // 2^-14
  constexpr std::uint32_t kBeyond = 0x47800000U;          // 2^16
  if (size > kInfinity) return value;                     // NaN
  std::uint32_t rounded = 0;
  if (size < kSmallestNormal) {
    // Between 1/2 and 1 the last bit is 2^-24, that of the subnormals.
    rounded = std::bit_cast<std::uint32_t>(std::bit_cast<float>(size) + 0.5F - 0.5F);
  } else {
    rounded = (size + 0xfffU + ((size >> 13) & 1U)) & ~0x1fffU;
    if (rounded >= kBeyond) rounded = kInfinity;
  }
  return std::bit_cast<float>(sign | rounded);
}

/// A value in a format with this many bits of fraction and exponents from `min_exponent` (of the
/// smallest normal number) to `max_exponent`.
template <class T>
T to_format(T value, int fraction_bits, int min_exponent, int max_exponent) {
  if (value == 0 || !std::isfinite(value)) return value;
  const int exponent = std::max(std::ilogb(value), min_exponent);
  // Scaled so that the last bit of the format is 1: rint rounds ties to even there.
  const T rounded = std::scalbn(std::nearbyint(std::scalbn(value, fraction_bits - exponent)),
                                exponent - fraction_bits);
  const T limit = std::scalbn(T(1), max_exponent + 1);
  if (std::abs(rounded) < limit) return rounded;
  return std::copysign(std::numeric_limits<T>::infinity(), value);
}

template <class T>
T rounded_to(DType dtype, T value) {
  switch (dtype) {
    case DType::Float64:
    case DType::Int64:
      return value;
    case DType::Float32:
      return static_cast<T>(static_cast<float>(value));
    case DType::BFloat16:
      if constexpr (std::is_same_v<T, float>) return to_bfloat16(value);
      return to_format(value, 7, -126, 127);
    case DType::Float16:
      if constexpr (std::is_same_v<T, float>) return to_float16(value);
      return to_format(value, 10, -14, 15);
  }
  return value;
}

/// Whether a T is a `dtype` already.
template <class T>
bool is_carrier(DType dtype) {
  return dtype == DType::Float64 || dtype == DType::Int64 ||
         (std::is_same_v<T, float> && dtype == DType::Float32);
}

/// Calls f(round) where round(value) is rounded_to(dtype, value), the dtype known to the compiler.
template <class T, class F>
void with_rounding(DType dtype, const F& f) {
  if (dtype == DType::BFloat16) return f([](T v) { return rounded_to<T>(DType::BFloat16, v); });
  if (dtype == DType::Float16) return f([](T v) { return rounded_to<T>(DType::Float16, v); });
  f([](T v) { return rounded_to<T>(DType::Float32, v); });
}

}  // namespace

std::int64_t size_bytes(DType dtype) {
  switch (dtype) {
    case DType::Float64:
      return 8;
    case DType::Float32:
      return 4;
    case DType::BFloat16:
    case DType::Float16:
      return 2;
    case DType::Int64:
      return 8;
  }
  HPSIM_CHECK(false, "unknown dtype {}", static_cast<int>(dtype));
  return 0;
}

double unit_roundoff(DType dtype) {
  switch (dtype) {
    case DType::Float64:
      return 0x1p-53;
    case DType::Float32:
      return 0x1p-24;
    case DType::BFloat16:
      return 0x1p-8;
    case DType::Float16:
      return 0x1p-11;
    case DType::Int64:
      break;
  }
  HPSIM_CHECK(false, "dtype {} does not round", static_cast<int>(dtype));
  return 0;
}

template <class T>
bool round_to(DType dtype, T* values, std::int64_t count) {
  if (is_carrier<T>(dtype)) return false;
  bool has_changed = false;
  with_rounding<T>(dtype, [&](const auto& round) {
    for (std::int64_t i = 0; i < count; ++i) {
      const T rounded = round(values[i]);
      has_changed |= rounded != values[i] && std::isfinite(values[i]);
      values[i] = rounded;
    }
  });
  return has_changed;
}

template bool round_to<float>(DType, float*, std::int64_t);
template bool round_to<double>(DType, double*, std::int64_t);

template <class T>
std::int64_t count_foreign(DType dtype, const T* values, std::int64_t count) {
  if (is_carrier<T>(dtype)) return 0;
  std::int64_t foreign = 0;
  with_rounding<T>(dtype, [&](const auto& round) {
    for (std::int64_t i = 0; i < count; ++i)
      foreign += round(values[i]) != values[i] && !std::isnan(values[i]) ? 1 : 0;
  });
  return foreign;
}

template std::int64_t count_foreign<float>(DType, const float*, std::int64_t);
template std::int64_t count_foreign<double>(DType, const double*, std::int64_t);

bool is_representable(DType dtype, double value) {
  return std::isnan(value) || rounded_to(dtype, value) == value;
}

double smallest_normal(DType dtype) {
  switch (dtype) {
    case DType::Float64:
      return 0x1p-1022;
    case DType::Float32:
    case DType::BFloat16:
      return 0x1p-126;
    case DType::Float16:
      return 0x1p-14;
    case DType::Int64:
      break;
  }
  HPSIM_CHECK(false, "dtype {} has no subnormals", name_of(dtype));
  return 0;
}

double smallest_subnormal(DType dtype) {
  // The last bit of the smallest normal number.
  return smallest_normal(dtype) * 2 * unit_roundoff(dtype);
}

std::string_view name_of(DType dtype) {
  switch (dtype) {
    case DType::Float64:
      return "float64";
    case DType::Float32:
      return "float32";
    case DType::BFloat16:
      return "bfloat16";
    case DType::Float16:
      return "float16";
    case DType::Int64:
      return "int64";
  }
  HPSIM_CHECK(false, "unknown dtype {}", static_cast<int>(dtype));
  return {};
}

std::optional<DType> parse_dtype(std::string_view name) {
  for (const DType dtype :
       {DType::Float64, DType::Float32, DType::BFloat16, DType::Float16, DType::Int64}) {
    if (name == name_of(dtype)) return dtype;
  }
  return std::nullopt;
}

}  // namespace hpsim
