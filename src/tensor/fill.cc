#include "tensor/fill.h"

#include <type_traits>

namespace hpsim {
namespace {

constexpr std::uint64_t kGolden = 0x9E3779B97F4A7C15U;

std::uint64_t mix(std::uint64_t z) {
  z += kGolden;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
  return z ^ (z >> 31);
}

}  // namespace

std::uint64_t fnv1a64(std::string_view bytes) {
  std::uint64_t hash = 0xcbf29ce484222325U;
  for (const char byte : bytes) {
    hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001b3U;
  }
  return hash;
}

std::uint64_t fill_key(std::string_view name, std::uint64_t seed) {
  return fnv1a64(name) + seed * kGolden;
}

double value_at(std::uint64_t key, std::int64_t index, const FillSpec& spec) {
  const std::uint64_t hash = mix(key + static_cast<std::uint64_t>(index));
  if (spec.kind == FillSpec::Kind::Uniform) {
    return (2.0 * static_cast<double>(hash >> 40) / 0x1p24 - 1.0) * spec.bound + spec.offset;
  }
  if (spec.kind == FillSpec::Kind::Token) {
    return static_cast<double>((hash >> 33) % static_cast<std::uint64_t>(spec.vocabulary));
  }
  const std::uint64_t num_values = 2 * static_cast<std::uint64_t>(spec.max) + 1;
  const auto drawn = static_cast<std::int64_t>((hash >> 33) % num_values);
  return static_cast<double>(drawn - spec.max) * spec.scale + spec.offset;
}

template <class T>
void fill(T* out, std::int64_t count, std::uint64_t key, std::int64_t first, const FillSpec& spec) {
  for (std::int64_t i = 0; i < count; ++i) {
    out[i] = static_cast<T>(value_at(key, first + i, spec));
  }
}

template <class T>
void fill(T* out, std::int64_t count, std::uint64_t key, std::int64_t first, const FillSpec& spec,
          DType dtype) {
  const bool is_own = dtype == (std::is_same_v<T, float> ? DType::Float32 : DType::Float64);
  if (is_own || spec.kind == FillSpec::Kind::Token) return fill(out, count, key, first, spec);
  for (std::int64_t i = 0; i < count; ++i) {
    double value = value_at(key, first + i, spec);
    round_to(dtype, &value, 1);
    out[i] = static_cast<T>(value);
  }
}

#define HPSIM_INSTANTIATE(T)                                                          \
  template void fill(T*, std::int64_t, std::uint64_t, std::int64_t, const FillSpec&); \
  template void fill(T*, std::int64_t, std::uint64_t, std::int64_t, const FillSpec&, DType);
HPSIM_INSTANTIATE(float)
HPSIM_INSTANTIATE(double)
#undef HPSIM_INSTANTIATE

}  // namespace hpsim
