#pragma once

#include <Eigen/Core>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/check.h"
#include "baseline/aligned_vector.h"

namespace hpsim {

template <class T>
using RowMatrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

template <class T>
using RowMap = Eigen::Map<RowMatrix<T>>;

template <class T>
using ConstRowMap = Eigen::Map<const RowMatrix<T>>;

/// Asks for huge pages for the whole ones within [begin, begin + size_bytes): a fresh small page
/// costs tens of times more per byte, and a baseline of a large model is little but fresh pages.
void advise_huge_pages(void* begin, std::size_t size_bytes);

/// `size` zeros, not touched before the advice.
template <class T, class Allocator = AlignedAllocator<T>>
[[nodiscard]] std::vector<T, Allocator> zeroed_vector(std::size_t size) {
  std::vector<T, Allocator> values;
  values.reserve(size);
  advise_huge_pages(values.data(), size * sizeof(T));
  values.resize(size);
  return values;
}

/// A row-major matrix of the baseline: positions of samples by features, or a parameter (a bias, a
/// weight of a norm or an elementwise parameter is one row).
template <class T>
struct PlainTensor {
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  AlignedVector<T> data;

  PlainTensor() = default;
  PlainTensor(std::int64_t num_rows, std::int64_t num_cols)
      : rows(num_rows),
        cols(num_cols),
        data(zeroed_vector<T>(static_cast<std::size_t>(num_rows * num_cols))) {}
  PlainTensor(std::int64_t num_rows, std::int64_t num_cols, AlignedVector<T> values)
      : rows(num_rows), cols(num_cols), data(std::move(values)) {}

  [[nodiscard]] std::int64_t elems() const { return rows * cols; }
  [[nodiscard]] RowMap<T> map() { return {data.data(), rows, cols}; }
  [[nodiscard]] ConstRowMap<T> map() const { return {data.data(), rows, cols}; }
};

/// Rows [first, first + count).
template <class T>
[[nodiscard]] PlainTensor<T> plain_rows(const PlainTensor<T>& tensor, std::int64_t first,
                                        std::int64_t count) {
  const auto begin = tensor.data.begin() + first * tensor.cols;
  return {count, tensor.cols, AlignedVector<T>(begin, begin + count * tensor.cols)};
}

/// The token in row `row` of a column of them, which is one of `count`.
template <class T>
[[nodiscard]] std::int64_t token_at(const PlainTensor<T>& tokens, std::int64_t row,
                                    std::int64_t count) {
  const auto token = static_cast<std::int64_t>(tokens.data.at(static_cast<std::size_t>(row)));
  HPSIM_CHECK(token >= 0 && token < count, "row {} has token {} of {}", row, token, count);
  return token;
}

}  // namespace hpsim
