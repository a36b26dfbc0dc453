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

namespace {

/// Appends the boxes of `flat` inside one slice of the tensor: dims before `dim` are fixed at
/// `offset`.
void append_boxes(const Shape& shape, std::size_t dim, const std::vector<std::int64_t>& offset,
                  Interval flat, std::vector<Box>& boxes) {
  if (flat.empty()) return;
  std::int64_t inner = 1;
  for (std::size_t i = dim + 1; i < shape.size(); ++i)
    inner *= shape[i];
  const auto recurse = [&](std::int64_t index, Interval part) {
    std::vector<std::int64_t> at = offset;
    at[dim] = index;
    append_boxes(shape, dim + 1, at, part, boxes);
  };
  const std::int64_t first = flat.begin / inner;
  if (flat.end <= (first + 1) * inner && flat.length() < inner) {
    return recurse(first, {flat.begin - first * inner, flat.end - first * inner});
  }
  const std::int64_t first_whole = first + (flat.begin % inner != 0 ? 1 : 0);
  const std::int64_t end_whole = flat.end / inner;
  if (first_whole > first) recurse(first, {flat.begin - first * inner, inner});
  if (first_whole < end_whole) {
    Box box{offset, shape};
    box.offset[dim] = first_whole;
    for (std::size_t i = 0; i < dim; ++i)
      box.shape[i] = 1;
    box.shape[dim] = end_whole - first_whole;
    boxes.push_back(std::move(box));
  }
  if (flat.end > end_whole * inner) recurse(end_whole, {0, flat.end - end_whole * inner});
}

}  // namespace

std::vector<Box> boxes_of(const Shape& shape, Interval flat) {
  HPSIM_CHECK(
      !shape.empty() && flat.begin >= 0 && flat.begin <= flat.end && flat.end <= num_elems(shape),
      "elements {} of shape {}", to_string(flat), to_string(shape));
  std::vector<Box> boxes;
  append_boxes(shape, 0, std::vector<std::int64_t>(shape.size(), 0), flat, boxes);
  return boxes;
}

void each_run(const Shape& global, const Box& box,
              const std::function<void(std::int64_t first, std::int64_t count)>& visit) {
  if (num_elems(box.shape) == 0) return;
  // Trailing dims that the box covers whole are part of one run; so is the dim before them.
  std::size_t outer = global.size();
  std::int64_t count = 1;
  std::int64_t stride = 1;
  while (outer > 0) {
    --outer;
    count *= box.shape[outer];
    if (box.shape[outer] != global[outer]) break;
  }
  std::vector<std::int64_t> strides(global.size());
  for (std::size_t dim = global.size(); dim-- > 0;) {
    strides[dim] = stride;
    stride *= global[dim];
  }
  std::vector<std::int64_t> index(outer, 0);
  for (;;) {
    std::int64_t first = 0;
    for (std::size_t dim = 0; dim < global.size(); ++dim) {
      first += (box.offset[dim] + (dim < outer ? index[dim] : 0)) * strides[dim];
    }
    visit(first, count);
    std::size_t dim = outer;
    while (dim > 0 && ++index[dim - 1] == box.shape[dim - 1])
      index[--dim] = 0;
    if (dim == 0) return;
  }
}

std::vector<std::int64_t> index_in(const std::vector<Box>& boxes, std::int64_t position) {
  for (const Box& box : boxes) {
    const std::int64_t elems = num_elems(box.shape);
    if (position >= elems) {
      position -= elems;
      continue;
    }
    std::vector<std::int64_t> index = index_at(box.shape, position);
    for (std::size_t dim = 0; dim < index.size(); ++dim)
      index[dim] += box.offset[dim];
    return index;
  }
  HPSIM_CHECK(false, "position {} behind the last box", position);
  return {};
}

std::string to_string(const Box& box) {
  return fmt::format("{} + {}", to_string(box.offset), to_string(box.shape));
}

std::string to_string(const std::vector<Box>& boxes) {
  std::string text;
  for (const Box& box : boxes)
    text += (text.empty() ? "" : ", ") + to_string(box);
  return text;
}

std::string to_string(const Shape& shape) {
  if (shape.size() == 1) return fmt::format("({},)", shape[0]);
  return fmt::format("({})", fmt::join(shape, ", "));
}

}  // namespace hpsim
