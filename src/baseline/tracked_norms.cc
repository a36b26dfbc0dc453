// layer_norm and rms_norm over the n features of a row: with d = x - mean x (layer_norm) or d = x,
//   r = 1 / sqrt(sum d² / n + eps), h = d r, y = h w + b.
// m below is 1 for layer_norm and 0 for rms_norm; c = u² / 3.
//
// Inherited. A row's errors reach h also through the mean and through r, so variances of the steps
// would not be those of independent errors; the derivative of the whole is
//   dh_i / dx_j = r ((i == j) - g_ij), g_ij = (m + h_i h_j) / n
//   Var(h_i) = r² (V_i (1 - 2 g_ii) + sum_j g_ij² V_j).
// The matrix takes a row's common errors out, of shift and of scale, and enlarges none.
//
// Rounded by the run, which forms the mean first and then the sum of d²:
//   mean    c (n (sum x² + (sum x)²) + 2 (sum x)²) / n² =: M. It moves all d alike, by which the
//   sum
//           of d² does not change to first order.
//   d       c d² (layer_norm)
//   sum d²  c (n (sum d⁴ + (sum d²)²) + 4m sum d⁴), the last for what d's roundings do
//   r       a quarter of the relative variance of the radicand, which takes 1/n and its product,
//   eps
//           and the sum; then root and quotient: R, relative
//   h       r² M + h² (R + c (1 + m)), and y two more: h w + b.
// R is common to a row. It is a relative error of h: the sum over n features that reads h counts n
// roundings of its result (tracked_arithmetic.h), as many as R is made of.
//
// Backward: with g = dy w, a = mean g (0 for rms_norm), q = mean (g h),
//   dx = r (g - a - h q), and dw = sum over rows of dy h, db = sum of dy.
//   from g    by the same matrix as h from x
//   from x    d dx_i / dx_j = -r (h_j dx_i + h_i dx_j) / n - r² q ((i == j) - g_ij), symmetric as
//             second derivatives are
//   M         dh = -r and dr = 0: r² (q + h a) per unit of the mean
//   R         (dx - 2 r h q) per relative unit of r, since h and q contain it
//   sums      r² (Var a + h² Var q) of a and q by the rule of sums, with roundings of their terms
//   the rest  each term of the bracket takes up to four factors, and three sums of two terms in any
//             order are at most 3 (g² + a² + (h q)²): 7 c r² (g² + a² + (h q)²) + c dx²

#include <algorithm>
#include <cmath>
#include <vector>

#include "baseline/tracked_arithmetic.h"

namespace hpsim {
namespace {

using Row = Eigen::RowVectorXd;

double square(double x) {
  return x * x;
}

Row values_of(const TrackedTensor& tensor, std::int64_t row) {
  return tensor.value.map().row(row);
}

Row variances_of(const TrackedTensor& tensor, std::int64_t row) {
  return tensor.is_exact() ? Row::Zero(tensor.value.cols).eval()
                           : Row(tensor.variance_map().row(row));
}

/// One row without its weight, and where its own errors come from.
struct NormRow {
  double m = 0;  ///< 1 for layer_norm
  double n = 1;
  double r = 0;
  double mean_rounding = 0;      ///< M
  double relative_rounding = 0;  ///< R
  Row h;
};

NormRow norm_row(const Rounding& rounding, const ModuleSpec& spec, const Row& x) {
  const double c = rounding.variance();
  NormRow row;
  row.m = spec.type == ModuleType::LayerNorm ? 1 : 0;
  row.n = static_cast<double>(x.size());
  const double n = row.n;
  const double sum = x.sum();
  row.mean_rounding = row.m * c * (n * (x.squaredNorm() + square(sum)) + 2 * square(sum)) / (n * n);
  const Row d = (x.array() - row.m * sum / n).matrix();
  const double squares = d.squaredNorm();
  const double fourths = d.cwiseAbs2().squaredNorm();
  const double radicand = squares / n + spec.eps;
  const double of_squares = c * (n * (fourths + square(squares)) + 4 * row.m * fourths) / (n * n);
  row.relative_rounding = (of_squares / square(radicand) + 4 * c) / 4 + 2 * c;
  row.r = 1 / std::sqrt(radicand);
  row.h = d * row.r;
  return row;
}

/// r² (V_i (1 - 2 g_ii) + sum_j g_ij² V_j).
Row inherited(const NormRow& row, const Row& variance) {
  const auto h = row.h.array();
  const auto v = variance.array();
  const double of_h = (h * v).sum();
  const double of_squares = (h.square() * v).sum();
  const auto diagonal = (row.m + h.square()) / row.n;
  const auto others =
      (row.m * v.sum() + 2 * row.m * h * of_h + h.square() * of_squares) / square(row.n);
  return (square(row.r) * (v * (1 - 2 * diagonal) + others)).max(0.0).matrix();
}

Row h_variance(const Rounding& rounding, const NormRow& row, const Row& x_variance) {
  Row variance = inherited(row, x_variance);
  variance.array() +=
      square(row.r) * row.mean_rounding +
      row.h.array().square() * (row.relative_rounding + rounding.variance() * (1 + row.m));
  return variance;
}

/// h of every row, as a tensor.
TrackedTensor normalized(const Rounding& rounding, const ModuleSpec& spec, const TrackedTensor& x) {
  TrackedTensor h = tracked_zeros(x.value.rows, x.value.cols);
  for (std::int64_t i = 0; i < x.value.rows; ++i) {
    const NormRow row = norm_row(rounding, spec, values_of(x, i));
    h.value.map().row(i) = row.h;
    h.variance_map().row(i) = h_variance(rounding, row, variances_of(x, i));
  }
  return h;
}

/// What the run rounds of dx.
Row gradient_rounding(const Rounding& rounding, const NormRow& row, const Row& g, const Row& dx) {
  const double c = rounding.variance();
  const double n = row.n;
  const auto h = row.h.array();
  const auto variance_of_mean = [&](const Row& terms, double term_roundings) {
    const double squares = terms.squaredNorm();
    const double total = square(terms.sum());
    return c * ((n + term_roundings) * squares + (n + 2) * total) / (n * n);
  };
  const Row products = g.cwiseProduct(row.h);
  const double a = row.m * g.sum() / n;
  const double q = products.sum() / n;
  const double a_variance = row.m * variance_of_mean(g, 1);
  const double q_variance = variance_of_mean(products, 2 + row.m);
  const double r_square = square(row.r);
  return (row.mean_rounding * square(r_square) * (q + h * a).square() +
          row.relative_rounding * (dx.array() - 2 * row.r * q * h).square() +
          r_square * (a_variance + h.square() * q_variance) +
          7 * c * r_square * (g.array().square() + square(a) + (h * q).square()) +
          c * dx.array().square())
      .matrix();
}

/// sum_j (alpha (i == j) + (A_i + B_i h_j + C_i dx_j) / n)² V_j, the derivative by x.
Row inherited_from_x(const NormRow& row, const Row& g, const Row& dx, const Row& variance) {
  const double q = g.cwiseProduct(row.h).sum() / row.n;
  const double alpha = -square(row.r) * q;
  const double a = -row.m * alpha;
  const auto v = variance.array();
  const auto h = row.h.array();
  const auto e = dx.array();
  const Row b = (-row.r * e - alpha * h).matrix();
  const Row c = -row.r * row.h;
  const double v_1 = v.sum();
  const double v_h = (v * h).sum();
  const double v_e = (v * e).sum();
  const double v_hh = (v * h.square()).sum();
  const double v_he = (v * h * e).sum();
  const double v_ee = (v * e.square()).sum();
  const auto off = a * a * v_1 + b.array().square() * v_hh + c.array().square() * v_ee +
                   2 * a * (b.array() * v_h + c.array() * v_e) + 2 * b.array() * c.array() * v_he;
  const auto diagonal = (a + b.array() * h + c.array() * e) / row.n;
  return (v * (square(alpha) + 2 * alpha * diagonal) + off / square(row.n)).max(0.0).matrix();
}

}  // namespace

TrackedTensor TrackedArithmetic::norm(const ModuleSpec& spec, const TrackedTensor& x,
                                      const TrackedTensor& weight, const TrackedTensor* bias) {
  const TrackedTensor h = normalized(rounding_, spec, x);
  const Row w = values_of(weight, 0);
  const Row w_variance = variances_of(weight, 0);
  const Row b = bias == nullptr ? Row::Zero(x.value.cols).eval() : values_of(*bias, 0);
  TrackedTensor y = tracked_zeros(x.value.rows, x.value.cols);
  for (std::int64_t i = 0; i < x.value.rows; ++i) {
    const Row product = values_of(h, i).cwiseProduct(w);
    const Row h_spread = variances_of(h, i);
    y.value.map().row(i) = product + b;
    y.variance_map().row(i) = h_spread.cwiseProduct(w.cwiseAbs2() + w_variance) +
                              values_of(h, i).cwiseAbs2().cwiseProduct(w_variance) +
                              rounding_.variance() * product.cwiseAbs2();
    if (bias != nullptr) {
      y.variance_map().row(i) +=
          variances_of(*bias, 0) + rounding_.variance() * (product + b).cwiseAbs2();
    }
  }
  return y;
}

TrackedTensor TrackedArithmetic::norm_weight_gradient(const ModuleSpec& spec,
                                                      const TrackedTensor& x,
                                                      const TrackedTensor& dy) {
  return column_products(dy, normalized(rounding_, spec, x));
}

TrackedTensor TrackedArithmetic::norm_input_gradient(const ModuleSpec& spec, const TrackedTensor& x,
                                                     const TrackedTensor& weight,
                                                     const TrackedTensor& dy) {
  const Row w = values_of(weight, 0);
  const Row w_variance = variances_of(weight, 0);
  TrackedTensor result = tracked_zeros(x.value.rows, x.value.cols);
  for (std::int64_t i = 0; i < x.value.rows; ++i) {
    const NormRow row = norm_row(rounding_, spec, values_of(x, i));
    const Row g = values_of(dy, i).cwiseProduct(w);
    const Row dy_variance = variances_of(dy, i);
    const Row g_variance = dy_variance.cwiseProduct(w.cwiseAbs2() + w_variance) +
                           values_of(dy, i).cwiseAbs2().cwiseProduct(w_variance);
    const double a = row.m * g.sum() / row.n;
    const double q = g.cwiseProduct(row.h).sum() / row.n;
    const Row dx = (row.r * (g.array() - a - row.h.array() * q)).matrix();
    const Row from_g = inherited(row, g_variance);
    const Row from_x = inherited_from_x(row, g, dx, variances_of(x, i));
    const Row rounded = gradient_rounding(rounding_, row, g, dx);
    result.value.map().row(i) = dx;
    for (std::int64_t j = 0; j < x.value.cols; ++j) {
      result.variance_map()(i, j) = rounding_.join(from_g[j], from_x[j]) + rounded[j];
    }
  }
  return result;
}

}  // namespace hpsim
