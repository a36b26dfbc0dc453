#include "tensor/shape.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/check.h"

namespace hpsim {

std::int64_t num_elems(const Shape& shape) {
  std::int64_t product = 1;
  for (const std::int64_t size : shape)
    product *= size;
  return product;
}

std::optional<std::int64_t> checked_num_elems(const Shape& shape) {
  std::int64_t product = 1;
  for (const std::int64_t size : shape) {
    if (__builtin_mul_overflow(product, size, &product)) return std::nullopt;
  }
  return product;
}

std::int64_t row_elems(const Shape& shape) {
  HPSIM_CHECK(!shape.empty(), "a scalar has no rows");
  std::int64_t product = 1;
  for (std::size_t dim = 1; dim < shape.size(); ++dim)
    product *= shape[dim];
  return product;
}

std::vector<std::int64_t> index_at(const Shape& shape, std::int64_t position) {
  std::vector<std::int64_t> index(shape.size());
  for (std::size_t dim = shape.size(); dim-- > 0;) {
    index[dim] = position % shape[dim];
    position /= shape[dim];
  }
  return index;
}

std::string to_string(const Shape& shape) {
  if (shape.size() == 1) return fmt::format("({},)", shape[0]);
  return fmt::format("({})", fmt::join(shape, ", "));
}

}  // namespace hpsim
