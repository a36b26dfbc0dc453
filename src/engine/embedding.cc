#include "engine/embedding.h"

#include <algorithm>
#include <vector>

#include "engine/row_pieces.h"

namespace hpsim {
namespace {

/// Finds rows of the vocabulary in the blocks of a rank.
template <class T>
class RowFinder {
 public:
  RowFinder(const RowBlocks<T>& blocks, std::int64_t first_row)
      : pieces_(row_pieces(blocks)),
        rows_(blocks.rows),
        row_elems_(blocks.row_elems),
        first_row_(first_row) {}

  /// The row of a token; null if it is not here.
  [[nodiscard]] T* find(T token) const {
    const std::int64_t row = static_cast<std::int64_t>(token) - first_row_;
    if (row < 0 || row >= rows_) return nullptr;
    const auto behind =
        std::upper_bound(pieces_.begin(), pieces_.end(), row,
                         [](std::int64_t r, const RowPiece<T>& piece) { return r < piece.first; });
    const RowPiece<T>& piece = *std::prev(behind);
    return piece.data + (row - piece.first) * row_elems_;
  }

 private:
  std::vector<RowPiece<T>> pieces_;
  std::int64_t rows_;
  std::int64_t row_elems_;
  std::int64_t first_row_;
};

}  // namespace

template <class T>
void embedding_forward(const T* tokens, std::int64_t positions, const RowBlocks<T>& weight,
                       std::int64_t first_row, T* y) {
  const RowFinder<T> rows(weight, first_row);
  for (std::int64_t position = 0; position < positions; ++position, y += weight.row_elems) {
    const T* row = rows.find(tokens[position]);
    if (row == nullptr) {
      std::fill_n(y, weight.row_elems, T(0));
    } else {
      std::copy_n(row, weight.row_elems, y);
    }
  }
}

template <class T>
void embedding_backward(const T* tokens, const T* dy, std::int64_t positions,
                        const RowBlocks<T>& weight_gradient, std::int64_t first_row) {
  if (weight_gradient.data == nullptr) return;
  const std::int64_t dim = weight_gradient.row_elems;
  const RowFinder<T> rows(weight_gradient, first_row);
  set_zero(weight_gradient);
  for (std::int64_t position = 0; position < positions; ++position, dy += dim) {
    T* const row = rows.find(tokens[position]);
    if (row == nullptr) continue;
    for (std::int64_t i = 0; i < dim; ++i)
      row[i] += dy[i];
  }
}

#define HPSIM_INSTANTIATE(T)                                                                    \
  template void embedding_forward<T>(const T*, std::int64_t, const RowBlocks<T>&, std::int64_t, \
                                     T*);                                                       \
  template void embedding_backward<T>(const T*, const T*, std::int64_t, const RowBlocks<T>&,    \
                                      std::int64_t);
HPSIM_INSTANTIATE(float)
HPSIM_INSTANTIATE(double)
#undef HPSIM_INSTANTIATE

}  // namespace hpsim
