#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/interval.h"

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

/// The boxes that the elements [flat.begin, flat.end) in row-major order fill, in that order: at
/// most 2n - 1 for n dims, none for an empty interval. Elements of one box are contiguous.
///
///   (2, 64), [42, 84)              (0, 42)+(1, 22)  (1, 0)+(1, 20)
///   (7, 8), [48, 56)               (6, 0)+(1, 8)
///   (5, 3, 6, 7), [126, 420)       (1, 0, 0, 0)+(2, 3, 6, 7)  (3, 0, 0, 0)+(1, 1, 6, 7)
///   (6, 4, 8), [0, 64)             (0, 0, 0)+(2, 4, 8)
///
/// \pre 0 <= begin <= end <= num_elems(shape), at least one dim
[[nodiscard]] std::vector<Box> boxes_of(const Shape& shape, Interval flat);

/// Calls visit(first, count) for the contiguous runs of elements of a tensor of shape `global` that
/// `box` covers, in row-major order; `first` is a row-major index in the tensor.
///
///   (4, 8), (0, 4)+(2, 4)    [4, 8)  [12, 16)
///   (4, 8), (1, 0)+(2, 8)    [8, 24)
void each_run(const Shape& global, const Box& box,
              const std::function<void(std::int64_t first, std::int64_t count)>& visit);

/// Position in storage order -> index in the tensor, for elements stored box after box.
[[nodiscard]] std::vector<std::int64_t> index_in(const std::vector<Box>& boxes,
                                                 std::int64_t position);

/// "(0, 4) + (2, 4)": offset and shape
[[nodiscard]] std::string to_string(const Box& box);
[[nodiscard]] std::string to_string(const std::vector<Box>& boxes);

/// "(7, 8)", "(5,)", "()"
[[nodiscard]] std::string to_string(const Shape& shape);

}  // namespace hpsim
