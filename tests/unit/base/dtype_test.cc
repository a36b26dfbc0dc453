#include "base/dtype.h"

#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include "support/catch.h"

namespace hpsim {
namespace {

/// A format of 16 bits by its fields.
struct Format {
  DType dtype;
  int exponent_bits;
  int fraction_bits;
};

constexpr Format kBFloat16 = {DType::BFloat16, 8, 7};
constexpr Format kFloat16 = {DType::Float16, 5, 10};

/// The number that 16 bits stand for, by the definition of the format.
double value_of(std::uint32_t bits, const Format& format) {
  const int bias = (1 << (format.exponent_bits - 1)) - 1;
  const std::uint32_t fraction = bits & ((1U << format.fraction_bits) - 1);
  const auto exponent =
      static_cast<int>((bits >> format.fraction_bits) & ((1U << format.exponent_bits) - 1));
  const double sign = (bits >> 15) != 0 ? -1 : 1;
  if (exponent == (1 << format.exponent_bits) - 1) {
    return fraction == 0 ? sign * std::numeric_limits<double>::infinity() : std::nan("");
  }
  const double digits = fraction + (exponent == 0 ? 0 : std::ldexp(1, format.fraction_bits));
  return sign * std::ldexp(digits, std::max(exponent, 1) - bias - format.fraction_bits);
}

/// The nearest number of the format, ties to the even pattern, found by search: patterns of
/// positive numbers are in the order of the numbers, and infinity follows the largest at the
/// distance that the next exponent would have.
double nearest(double value, const Format& format) {
  const std::uint32_t infinity = ((1U << format.exponent_bits) - 1) << format.fraction_bits;
  const int bias = (1 << (format.exponent_bits - 1)) - 1;
  const double beyond = std::ldexp(1, bias + 1);
  const auto at = [&](std::uint32_t bits) {
    return bits == infinity ? beyond : value_of(bits, format);
  };
  const double size = std::abs(value);
  std::uint32_t below = 0;
  std::uint32_t above = infinity;
  if (size >= beyond) return std::copysign(std::numeric_limits<double>::infinity(), value);
  while (above - below > 1) {
    const std::uint32_t middle = (below + above) / 2;
    (at(middle) <= size ? below : above) = middle;
  }
  const double to_below = size - at(below);
  const double to_above = at(above) - size;
  const bool takes_above = to_above < to_below || (to_above == to_below && above % 2 == 0);
  return std::copysign(value_of(takes_above ? above : below, format), value);
}

template <class T>
T rounded(DType dtype, T value) {
  round_to(dtype, &value, 1);
  return value;
}

bool are_same(double a, double b) {
  return std::bit_cast<std::uint64_t>(a) == std::bit_cast<std::uint64_t>(b);
}

TEST_CASE("rounding to 16 bits goes to the nearest, ties to even, as the bits say") {
  std::mt19937_64 random(20240611);
  for (const Format& format : {kBFloat16, kFloat16}) {
    CAPTURE(name_of(format.dtype));
    std::uint64_t num_wrong = 0;
    for (int i = 0; i < 100'000; ++i) {
      // All exponents of float32, with few digits that often make ties, or with many.
      auto bits = static_cast<std::uint32_t>(random());
      if (i % 2 == 0) bits &= 0xffffffffU << (i % 16);
      const auto value = std::bit_cast<float>(bits);
      if (std::isnan(value)) continue;
      const double wanted = std::isinf(value) ? value : nearest(value, format);
      const bool is_good = are_same(rounded(format.dtype, value), wanted) &&
                           are_same(rounded(format.dtype, static_cast<double>(value)), wanted);
      num_wrong += is_good ? 0 : 1;
    }
    CHECK(num_wrong == 0);
  }
}

TEST_CASE("every number of a format stays, and halfway to the next one goes to the even one") {
  for (const Format& format : {kBFloat16, kFloat16}) {
    const std::uint32_t infinity = ((1U << format.exponent_bits) - 1) << format.fraction_bits;
    for (std::uint32_t bits = 0; bits < infinity; ++bits) {
      const double value = value_of(bits, format);
      REQUIRE(are_same(rounded(format.dtype, value), value));
      REQUIRE(are_same(rounded(format.dtype, -value), -value));
      REQUIRE(are_same(rounded(format.dtype, static_cast<float>(value)), value));
      REQUIRE(is_representable(format.dtype, value));
      if (bits + 1 == infinity) continue;
      const double halfway = (value + value_of(bits + 1, format)) / 2;
      REQUIRE(are_same(rounded(format.dtype, halfway),
                       value_of(bits % 2 == 0 ? bits : bits + 1, format)));
      REQUIRE_FALSE(is_representable(format.dtype, halfway));
    }
  }
}

TEST_CASE("a double is rounded to 16 bits once, not by way of float32") {
  // Slightly above a tie, by less than a float32 holds.
  const double above_tie = 1 + 0x1p-8 + 0x1p-40;
  CHECK(rounded(DType::BFloat16, above_tie) == 1 + 0x1p-7);
  CHECK(rounded(DType::BFloat16, 1 + 0x1p-8) == 1);
  CHECK(rounded(DType::Float16, 1 + 0x1p-11 + 0x1p-40) == 1 + 0x1p-10);
}

TEST_CASE("the ends of the formats") {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  CHECK(rounded(DType::Float16, 65504.0) == 65504);
  CHECK(rounded(DType::Float16, 65519.99) == 65504);
  CHECK(rounded(DType::Float16, 65520.0) == kInfinity);
  CHECK(rounded(DType::Float16, -65520.0F) == -kInfinity);
  CHECK(rounded(DType::Float16, 1e300) == kInfinity);
  CHECK(rounded(DType::BFloat16, 3.4e38F) == kInfinity);
  CHECK(rounded(DType::BFloat16, 3.39e38F) == 0x1.fep127F);
  CHECK(rounded(DType::Float16, 0x1p-24) == 0x1p-24);
  CHECK(rounded(DType::Float16, 0x1p-25) == 0);
  CHECK(rounded(DType::Float16, 0x1.8p-25) == 0x1p-24);
  CHECK(std::signbit(rounded(DType::Float16, -0x1p-30)));
  CHECK(rounded(DType::BFloat16, 0x1p-133) == 0x1p-133);
  CHECK(rounded(DType::BFloat16, 0x1p-134) == 0);
  for (const DType dtype : {DType::BFloat16, DType::Float16}) {
    CHECK(std::isnan(rounded(dtype, std::nan(""))));
    CHECK(std::isnan(rounded(dtype, std::nanf(""))));
    CHECK(rounded(dtype, kInfinity) == kInfinity);
    CHECK(is_representable(dtype, smallest_subnormal(dtype)));
    CHECK_FALSE(is_representable(dtype, smallest_subnormal(dtype) * 1.5));
    CHECK(is_representable(dtype, std::nan("")));
  }
  CHECK(smallest_normal(DType::Float16) == 0x1p-14);
  CHECK(smallest_subnormal(DType::Float16) == 0x1p-24);
  CHECK(smallest_subnormal(DType::BFloat16) == 0x1p-133);
  CHECK(smallest_subnormal(DType::Float32) == 0x1p-149);
  CHECK(smallest_subnormal(DType::Float64) == 0x1p-1074);
}

TEST_CASE("rounding says whether a finite value changed") {
  double values[] = {1, 0.5, -2};
  CHECK_FALSE(round_to(DType::BFloat16, values, 3));
  values[1] = 0.1;
  CHECK_FALSE(round_to(DType::Float64, values, 3));
  CHECK(values[1] == 0.1);
  CHECK(round_to(DType::Float32, values, 3));
  CHECK(values[1] == static_cast<double>(0.1F));
  float singles[] = {0.1F, std::numeric_limits<float>::infinity(), std::nanf("")};
  CHECK_FALSE(round_to(DType::Float32, singles, 3));
  CHECK_FALSE(round_to(DType::Float16, singles + 1, 2));
  CHECK(round_to(DType::Float16, singles, 3));
}

}  // namespace
}  // namespace hpsim
