#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace hpsim {

/// Sizes of a tensor's dims, row-major; {} is a scalar.
using Shape = std::vector<std::int64_t>;

/// A box of a global tensor: first index and size along each dim.
struct Box {
  std::vector<std::int64_t> offset;
  Shape shape;
  bool operator==(const Box&) const = default;
};

/// Product of the sizes; 1 for a scalar.
[[nodiscard]] std::int64_t num_elems(const Shape& shape);

/// The product, or nothing if it does not fit 63 bits. \pre sizes >= 0
[[nodiscard]] std::optional<std::int64_t> checked_num_elems(const Shape& shape);

/// Elements of one row (one index of dim 0): product of all other sizes. \pre at least one dim
[[nodiscard]] std::int64_t row_elems(const Shape& shape);

/// Global index of the element at row-major position `position`: {2, 3}, 4 -> (1, 1).
[[nodiscard]] std::vector<std::int64_t> index_at(const Shape& shape, std::int64_t position);

/// "(7, 8)", "(5,)", "()"
[[nodiscard]] std::string to_string(const Shape& shape);

}  // namespace hpsim
