// Cross entropy of every row: the loss is log l - z_t with softmax's z and l, t the target.
//
// Forward, with E of softmax and c = u² / 3: log l inherits sum p² E and the own relative rounding
// of l, and z_t is s_t - max s; in s_t they meet, with the derivative p_t - 1:
//   Var = sum p_j² E_j + Var(s_t) (1 - 2 p_t) + c (n (sum p² + 1) + 16 log² l + lse² + z_t² +
//   loss²)
// 16 log² l is for log within 4u, lse = max s + log l and z_t for the run that forms either.
// Elements of a row are features, whose errors are independent even where samples share errors.
//
// Backward: p_j - (j == t). Its error is that of p, where a run may also form p as exp(s_j - lse):
// log l, lse and the difference then are relative roundings of p.

#include <algorithm>
#include <cmath>

#include "baseline/tracked_arithmetic.h"
#include "baseline/tracked_softmax.h"

namespace hpsim {
namespace {

constexpr double kFunctionRounding = 16;

double square(double x) {
  return x * x;
}

TrackedSoftmax softmax_of_features(Rounding rounding, const TrackedTensor& y) {
  rounding.is_shared = false;
  const RowMatrix<double> variance =
      y.is_exact() ? RowMatrix<double>::Zero(y.value.rows, y.value.cols).eval()
                   : RowMatrix<double>(y.variance_map());
  return softmax(rounding, y.value.map(), variance, false);
}

}  // namespace

TrackedTensor TrackedArithmetic::cross_entropy(const TrackedTensor& y,
                                               const TrackedTensor& targets) {
  const TrackedSoftmax rows = softmax_of_features(rounding_, y);
  TrackedTensor losses = tracked_zeros(y.value.rows, 1);
  for (std::int64_t row = 0; row < y.value.rows; ++row) {
    const std::int64_t target = token_at(targets.value, row, y.value.cols);
    const double s = y.value.map()(row, target);
    const double loss = rows.log_sum[row] - s;
    const double z = rows.log_l[row] - loss;
    const double s_variance = y.is_exact() ? 0 : y.variance_map()(row, target);
    const double inherited = rows.p.row(row).cwiseAbs2().dot(rows.exponent.row(row)) +
                             s_variance * (1 - 2 * rows.p(row, target));
    const double roundings = kFunctionRounding * square(rows.log_l[row]) +
                             square(rows.log_sum[row]) + square(z) + square(loss);
    losses.value.map()(row, 0) = loss;
    losses.variance_map()(row, 0) =
        std::max(0.0, inherited) + rows.sum_rounding[row] + rounding_.variance() * roundings;
  }
  return losses;
}

TrackedTensor TrackedArithmetic::cross_entropy_gradient(const TrackedTensor& y,
                                                        const TrackedTensor& targets) {
  const double c = rounding_.variance();
  Rounding rounding = rounding_;
  rounding.is_shared = false;
  const TrackedSoftmax rows = softmax_of_features(rounding, y);
  TrackedTensor dy = tracked_zeros(y.value.rows, y.value.cols);
  dy.value.map() = rows.p;
  dy.variance_map() = variance_of(rounding, rows);
  for (std::int64_t row = 0; row < y.value.rows; ++row) {
    const double of_log = kFunctionRounding * square(rows.log_l[row]) + square(rows.log_sum[row]);
    const auto log_p = y.value.map().row(row).array() - rows.log_sum[row];
    dy.variance_map().row(row).array() +=
        c * rows.p.row(row).array().square() * (log_p.square() + of_log);
    const std::int64_t target = token_at(targets.value, row, y.value.cols);
    double& at_target = dy.value.map()(row, target);
    at_target -= 1;
    dy.variance_map()(row, target) += c * square(at_target);
  }
  return dy;
}

}  // namespace hpsim
