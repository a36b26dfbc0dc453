#pragma once

#include <cstdint>
#include <string_view>

#include "base/dtype.h"

namespace hpsim {

/// How the values of a tensor are drawn. A value depends on (tensor name, global index, seed) only,
/// never on rank or order, so any rank, any framework and the baseline can make any element alone.
struct FillSpec {
  enum class Kind { Uniform, Integer, Token };
  Kind kind = Kind::Uniform;
  double bound = 1;             ///< uniform on [-bound, bound)
  std::int64_t max = 2;         ///< integer on {-max, ..., max} ...
  double scale = 1;             ///< ... times scale
  std::int64_t vocabulary = 0;  ///< token: one of {0, ..., vocabulary - 1}
  double offset = 0;            ///< added to the value; not to a token
  bool operator==(const FillSpec&) const = default;
};

/// fnv1a64(name) + seed * 0x9E3779B97F4A7C15, modulo 2^64.
[[nodiscard]] std::uint64_t fill_key(std::string_view name, std::uint64_t seed);

/// FNV-1a over bytes: offset 0xcbf29ce484222325, prime 0x100000001b3.
[[nodiscard]] std::uint64_t fnv1a64(std::string_view bytes);

/// Element `index` (row-major in the global tensor) of the tensor with this key, in float64:
///   h = mix(key + index), the splitmix64 finaliser
///   uniform: (2 * (h >> 40) / 2^24 - 1) * bound
///   integer: ((h >> 33) % (2 * max + 1) - max) * scale
///   token:   (h >> 33) % vocabulary
/// plus `offset`, in float64.
[[nodiscard]] double value_at(std::uint64_t key, std::int64_t index, const FillSpec& spec);

/// out[i] = value_at(key, first + i), rounded once to T.
template <class T>
void fill(T* out, std::int64_t count, std::uint64_t key, std::int64_t first, const FillSpec& spec);

/// The same rounded once to `dtype`, and held as T, which has all of its numbers; tokens are not
/// rounded.
template <class T>
void fill(T* out, std::int64_t count, std::uint64_t key, std::int64_t first, const FillSpec& spec,
          DType dtype);

}  // namespace hpsim
