// Rows of a weight by tokens. Forward is a copy, which rounds nothing. Backward is a sum over all
// rows of dy in which most terms are 0, as of a product with a matrix of zeros and ones. The others
// are rows of one token, whose errors may be alike: deviations add up.

#include "baseline/tracked_arithmetic.h"

namespace hpsim {
TrackedTensor TrackedArithmetic::embedding(const TrackedTensor& tokens,
                                           const TrackedTensor& weight) {
  TrackedTensor y = tracked_zeros(tokens.value.rows, weight.value.cols);
  for (std::int64_t row = 0; row < tokens.value.rows; ++row) {
    const std::int64_t token = token_at(tokens.value, row, weight.value.rows);
    y.value.map().row(row) = weight.value.map().row(token);
    if (!weight.is_exact()) y.variance_map().row(row) = weight.variance_map().row(token);
  }
  return y;
}

TrackedTensor TrackedArithmetic::embedding_gradient(const TrackedTensor& dy,
                                                    const TrackedTensor& tokens,
                                                    std::int64_t num_rows) {
  const auto num_terms = static_cast<double>(dy.value.rows);
  TrackedTensor gradient = tracked_zeros(num_rows, dy.value.cols);
  RowMatrix<double> squares = RowMatrix<double>::Zero(num_rows, dy.value.cols);
  RowMatrix<double> deviations = squares;
  for (std::int64_t row = 0; row < dy.value.rows; ++row) {
    const std::int64_t token = token_at(tokens.value, row, num_rows);
    gradient.value.map().row(token) += dy.value.map().row(row);
    squares.row(token) += dy.value.map().row(row).cwiseAbs2();
    if (!dy.is_exact()) deviations.row(token) += dy.variance_map().row(row).cwiseSqrt();
  }
  gradient.variance_map() =
      deviations.cwiseAbs2() + (num_terms * rounding_.variance() + term_rounding_) * squares;
  add_rounding(gradient, num_terms);
  add_term_rounding(gradient);
  return gradient;
}

}  // namespace hpsim
